#!/usr/bin/env bash
# Runs what stands behind eleven pages of results/, for the embedded target's head or another. Six of
# them are written with the new numbers in those tables that come from one run. Resumes.
#     QUESTIONS=question.jsonl scripts/figures.sh        all: reckoned 14 hours of one core
#     scripts/figures.sh drafters mt_bench_8             these pages
#     PART=10 QUESTIONS=... scripts/figures.sh           a tenth of each page's questions: 86 minutes
#     HEAD=runs/mine OUTPUT=runs/mine_figures QUESTIONS=... scripts/figures.sh     of another head
#     EXECUTE_CODE=1 IFEVAL=input_data.jsonl scripts/figures.sh tasks     8 hours more
# QUESTIONS has at least 64 questions, a line each, to choose values on, and is never reported:
# FastChat's vicuna_bench. EXECUTE_CODE=1 lets HumanEval run the model's code, IFEVAL is that set's
# file. PROCESSES=4: four processes share the questions of runs that measure no speed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/figures}
part=${PART:-1}
pages=(drafters defaults mt_bench_8 priced_trees mt_bench_80 reader calibration temperature_07
    rules_temperature_1 rule_front tasks)

# --- what is asked is checked before hours pass ---------------------------------------------------

for page in "$@"; do
    if [[ " ${pages[*]} " != *" $page "* ]]; then
        echo "error: $page is no page that this script makes: ${pages[*]}" >&2
        exit 2
    fi
done
if [ $# -gt 0 ]; then pages=("$@"); fi
if ! [[ "$part ${PROCESSES:-1}" =~ ^[1-9][0-9]*\ [1-9][0-9]*$ ]]; then
    echo "error: PART=$part and PROCESSES=${PROCESSES:-1} must be whole numbers above 0" >&2
    exit 2
fi
if [[ " ${pages[*]} " =~ \ (defaults|calibration|rules_temperature_1|rule_front)\  ]]; then
    if [ ! -f "${QUESTIONS:-}" ] || [ "$(wc -l <"$QUESTIONS")" -lt 64 ]; then
        echo "error: QUESTIONS=${QUESTIONS:-} must be a file of 64 questions or more, a line each, to choose on, not those that are reported (docs/evaluate.md)" >&2
        exit 2
    fi
    questions_file=$(realpath "$QUESTIONS")
fi
if [ -n "${IFEVAL:-}" ] && [ ! -f "$IFEVAL" ]; then
    echo "error: IFEVAL=$IFEVAL is no file: set it to that set's file (docs/evaluate.md), or not" >&2
    exit 2
fi
if [ "${pages[*]}" = tasks ] && [ -z "${EXECUTE_CODE:-}${IFEVAL:-}" ]; then
    echo "error: tasks needs EXECUTE_CODE=1, IFEVAL=a file, or both" >&2
    exit 2
fi
bash "$root/scripts/setup.sh" ${IFEVAL:+tasks}

# --- how things are run ---------------------------------------------------------------------------

python=$root/.venv/bin/python
launch=("$python")
if [ "${PROCESSES:-1}" -gt 1 ]; then
    export ACCELERATE_USE_CPU=true
    launch=("$root/.venv/bin/accelerate" launch --config_file "$root/scripts/accelerate/ddp.yaml"
        --num_processes "$PROCESSES")
fi
head=()
if [ -n "${HEAD:-}" ]; then
    if [ -d "$HEAD" ]; then HEAD=$(realpath "$HEAD"); fi # else a hub id
    head=(--head "$HEAD")
fi
ask() { echo --questions "$((($1 + part - 1) / part))"; }
timed() { # in one process: a command of evaluate/, the run's name, options
    "$python" "$root/evaluate/$1.py" --output "$output/$2" ${head[@]+"${head[@]}"} "${@:3}"
}
untimed() { # eight answers together are those made one at a time (results/batches)
    "${launch[@]}" "$root/evaluate/$1.py" --quality_only --dtype float32 --batch 8 \
        --output "$output/$2" ${head[@]+"${head[@]}"} "${@:3}"
}
fill() { # a page, then the sources of its tables, in the output's folder
    local page
    page=$(cd "$output" && "$python" "$root/extras/fill_tables.py" \
        "$root/results/$1/README.md" "${@:2}")
    echo "$page" >"$output/$1.md"
}

# --- the pages ------------------------------------------------------------------------------------

drafters() { # tokens a round of fixed trees, and how often each level is right
    "$python" "$root/evaluate/replay.py" ${HEAD:+--heads "$HEAD"} $(ask 80) \
        --arms exact@eagle:{7x4x6,15x4x6,23x5x8,59x6x10,12x6x4\,keep=0.1\,deepen=0.4} \
        exact@hybrid:{15x4x6,12x6x4\,keep=0.1\,deepen=0.4} --output "$output/drafters"
    fill drafters drafters/replay.json
}
defaults() { # values of the main job's lossy arms, and the prices of a draft on this machine
    untimed mt_bench defaults --question_file "$questions_file" $(ask 24) --turns 1 \
        --arms plain exact@hybrid {fsd:{0.2,0.25,0.3,0.35},path:{0.6,0.75,0.9,1.1}}@hybrid
    timed speed prices --arms plain exact exact@hybrid
}
mt_bench_8() { # the main job
    timed mt_bench mt_bench_8 $(ask 8)
    fill mt_bench_8 mt_bench_8
}
priced_trees() { # speeds above temperature 0
    local temperature
    for temperature in 0.7 1; do
        timed mt_bench "speed_$temperature" $(ask 16) --turns 1 --temperature "$temperature" \
            --arms plain exact exact@hybrid path:0.9@hybrid
    done
    fill priced_trees speed_0.7+speed_1
}
mt_bench_80() { # quality on all questions, and speeds on 16
    untimed mt_bench mt_bench_80 $(ask 80) --arms plain exact exact@hybrid \
        {path:{1.5,3.5},relaxed:{0.4,0.9},fsd:{0.35,0.45,0.55},random:{0.3,0.65}} \
        {path:{0.4,0.9},relaxed:{0.36,0.7},fsd:{0.3,0.48},random:{0.3,0.5}}@hybrid
    timed mt_bench mt_bench_16 $(ask 16) \
        --arms plain exact@hybrid {fsd:0.3,path:0.9,relaxed:0.36,random:0.3}@hybrid
    untimed mt_bench mt_bench_80_15x4x6 $(ask 80) --tree 15x4x6 \
        --arms plain exact@hybrid {path:0.6,fsd:0.48,relaxed:0.36,random:0.3}@hybrid
    # a table takes the first run that has all its arms, so the run with most arms comes last
    fill mt_bench_80 mt_bench_80_15x4x6 mt_bench_16 mt_bench_80
}
reader() { # what gemma-3-270m says of the answers of mt_bench_80
    if [ ! -f "$output/mt_bench_80.md" ]; then mt_bench_80; fi
    "$python" "$root/extras/reader.py" "$output/mt_bench_80" --output "$output/reader"
    fill reader mt_bench_80+reader/reader.json
}
calibration() { # what every other question foretells, and what comes true on those between
    local arms=({path:{0.15,0.3,0.5,0.77,1.25,2},fsd:{0.3,0.35,0.4,0.45}}@hybrid)
    awk 'NR % 2 == 1' "$questions_file" >"$output/odd.jsonl"
    awk 'NR % 2 == 0' "$questions_file" >"$output/even.jsonl"
    timed calibrate foretold --question_file "$output/odd.jsonl" $(ask 32) --tree 15x4x6 \
        --dtype float32 --arms "${arms[@]}"
    untimed mt_bench came_true --question_file "$output/even.jsonl" $(ask 32) --turns 1 \
        --tree 15x4x6 --arms plain exact@hybrid "${arms[@]}"
}
temperature_07() {
    untimed mt_bench temperature_07 $(ask 80) --temperature 0.7 --arms plain exact \
        {path:{0.5,1},relaxed:{0.06,0.2},typical:{0.6,0.35},fsd:{0.25,0.45},random:{0.1,0.3}} \
        exact@hybrid {path:{0.6,1.5},relaxed:{0.08,0.2},typical:{0.6,0.3}}@hybrid \
        {fsd:{0.35,0.5},random:{0.1,0.3}}@hybrid
    "$python" "$root/extras/reader.py" "$output/temperature_07" --output "$output/reader_07"
    fill temperature_07 temperature_07+reader_07/reader.json
}
rules_temperature_1() {
    untimed mt_bench rules_temperature_1 --question_file "$questions_file" $(ask 32) --turns 1 \
        --max_new_tokens 64 --temperature 1 --tree 15x4x6 \
        --arms plain exact {exact,rejection}@eagle,sample=1 fsd:{0.3,0.38,0.45} \
        fsd-paper:{0.3,0.45} {fsd,fsd-paper}:{0.3,0.45},child=sample@eagle,sample=1 \
        path:{0.25,0.6,1} ratio:{0.5,1,1.5} typical:{0.3,0.2,0.09} relaxed:{0.15,0.25,0.4} \
        random:{0.15,0.4}
    "$python" "$root/extras/rule_front.py" "$output/rules_temperature_1" \
        >"$output/rules_temperature_1.md"
}
rule_front() {
    untimed mt_bench rule_front --question_file "$questions_file" $(ask 32) --turns 1 \
        --tree 15x4x6 --plugin "$root/extras/rivals.py" --arms plain exact path:{0.35,0.77,1.25,2} \
        ratio:{0.5,1,1.5,2.5} relaxed:{0.15,0.3,0.5,0.7} typical:{0.3,0.15,0.09,0.04} \
        fsd:{0.3,0.35,0.4,0.45}{,\,child=draft} random:{0.07,0.14,0.25,0.4} \
        asd:{0.5,1,2},ledger=inf exact@hybrid \
        {path:{0.35,0.77,1.25,2},ratio:{0.5,1,1.5,2.5},relaxed:{0.15,0.3,0.5,0.7}},ends=0@hybrid \
        {typical:{0.3,0.15,0.09,0.04},fsd:{0.3,0.35,0.4,0.45}},ends=0@hybrid \
        random:{0.07,0.14,0.25,0.4},ends=0@hybrid
    "$python" "$root/extras/rule_front.py" "$output/rule_front" \
        --plugin "$root/extras/rivals.py" >"$output/rule_front.md"
}
tasks() { # a task is left out where its variable is not set
    local arms=(plain exact@hybrid {path:{0.6,1.1},fsd:0.48,relaxed:0.36,random:0.3}@hybrid)
    if [ -n "${EXECUTE_CODE:-}" ]; then
        untimed tasks humaneval --task humaneval --execute_code $(ask 164) --tree 15x4x6 \
            --arms "${arms[@]}"
    fi
    if [ -n "${IFEVAL:-}" ]; then
        untimed tasks ifeval --task "ifeval:$IFEVAL" $(ask 541) --tree 15x4x6 --arms "${arms[@]}"
    fi
}

mkdir -p "$output"
for page in "${pages[@]}"; do
    started=$SECONDS
    echo "figures: $page" >&2
    "$page"
    echo "figures: $page took $((SECONDS - started)) s" >&2
done
echo "figures: pages with new numbers, and every run, are in $output"

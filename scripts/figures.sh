#!/usr/bin/env bash
# The figures of the embedded target's head made anew: for every page of results/ below its runs, and
# the page with their numbers in its tables. Sentences are not made anew: read them again. Resumes.
#     QUESTIONS=question.jsonl scripts/figures.sh                all pages: about a day on two cores
#     QUESTIONS=question.jsonl scripts/figures.sh drafters mt_bench_8    these pages
#     PART=10 QUESTIONS=... scripts/figures.sh                   a tenth of each page's questions
#     HEAD=runs/mine OUTPUT=runs/mine_figures QUESTIONS=... scripts/figures.sh     of another head
#     EXECUTE_CODE=1 IFEVAL=input_data.jsonl QUESTIONS=... scripts/figures.sh tasks
# QUESTIONS is what values are chosen on and never reported: FastChat's vicuna_bench. HumanEval runs
# the model's code, so EXECUTE_CODE=1 asks for it; IFEVAL is that set's file. PROCESSES=4 shares the
# questions of what is not timed out over processes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/figures}
part=${PART:-1}
known=(drafters defaults mt_bench_8 priced_trees mt_bench_80 reader calibration temperature_07
    rules_temperature_1 rule_front tasks)
for file in "${QUESTIONS:-}" ${IFEVAL:+"$IFEVAL"}; do # read only after hours
    if [ ! -f "$file" ]; then
        echo "error: '$file' is no file: set QUESTIONS to a question file (docs/evaluate.md) to choose on, not the one that is reported, and IFEVAL, if at all, to that set's file" >&2
        exit 2
    fi
done
if ! [[ $part =~ ^[1-9][0-9]*$ ]]; then
    echo "error: PART=$part must be a whole number above 0: 10 asks a tenth of the questions" >&2
    exit 2
fi
for page in "$@"; do
    if [[ " ${known[*]} " != *" $page "* ]]; then
        echo "error: $page is no page that this script makes: ${known[*]}" >&2
        exit 2
    fi
done
bash "$root/scripts/setup.sh" ${IFEVAL:+tasks}
python=$root/.venv/bin/python
launch=("$python")
if [ "${PROCESSES:-1}" -gt 1 ]; then
    export ACCELERATE_USE_CPU=true
    launch=("$root/.venv/bin/accelerate" launch --config_file "$root/scripts/accelerate/ddp.yaml"
        --num_processes "$PROCESSES")
fi
head=(${HEAD:+--head "$HEAD"})
choose=(--question_file "${QUESTIONS:-}" --turns 1)
questions() { echo --questions "$((($1 + part - 1) / part))"; }
timed() { # a run's name, then options
    "$python" "$root/evaluate/mt_bench.py" --output "$output/$1" ${head[@]+"${head[@]}"} "${@:2}"
}
untimed() {
    "${launch[@]}" "$root/evaluate/mt_bench.py" --quality_only --dtype float32 \
        --output "$output/$1" ${head[@]+"${head[@]}"} "${@:2}"
}
fill() { # a page, then the sources of its tables, in the output's folder
    (cd "$output" && "$python" "$root/extras/fill_tables.py" "$root/results/$1/README.md" \
        "${@:2}" >"$1.md")
}

# --- the pages ------------------------------------------------------------------------------------

drafters() { # tokens a round of fixed trees, and how often each level is right
    "$python" "$root/evaluate/replay.py" ${HEAD:+--heads "$HEAD"} $(questions 80) \
        --arms exact@eagle:{7x4x6,15x4x6,23x5x8,59x6x10,12x6x4\,keep=0.1\,deepen=0.4} \
        exact@hybrid:{15x4x6,12x6x4\,keep=0.1\,deepen=0.4} \
        --texts "$output/texts" --output "$output/drafters"
    fill drafters drafters/replay.json
}
defaults() { # values of the main job's lossy arms, and the prices of a draft on this machine
    untimed defaults "${choose[@]}" $(questions 24) --arms plain exact@hybrid \
        {fsd:{0.2,0.25,0.3,0.35},path:{0.6,0.75,0.9,1.1}}@hybrid
    "$python" "$root/evaluate/speed.py" ${head[@]+"${head[@]}"} --output "$output/prices" \
        --arms plain exact exact@hybrid
    fill defaults defaults
}
mt_bench_8() { # the main job
    timed mt_bench_8 $(questions 8)
    fill mt_bench_8 mt_bench_8
}
priced_trees() { # speeds above temperature 0
    local temperature
    for temperature in 0.7 1; do
        timed "speed_$temperature" $(questions 16) --turns 1 --temperature "$temperature" \
            --arms plain exact exact@hybrid path:0.9@hybrid
    done
    fill priced_trees "speed_0.7+speed_1"
}
mt_bench_80() { # quality of all questions, and speeds of 16
    untimed mt_bench_80 $(questions 80) --arms plain exact exact@hybrid \
        {path:{1.5,3.5},relaxed:{0.4,0.9},fsd:{0.35,0.45,0.55},random:{0.3,0.65}} \
        {path:{0.4,0.9,1.3},relaxed:{0.36,0.7,0.8},fsd:{0.3,0.48,0.65}}@hybrid \
        random:{0.3,0.5,0.8}@hybrid
    timed mt_bench_16 $(questions 16) \
        --arms plain exact@hybrid {fsd:0.3,path:0.9,relaxed:0.36,random:0.3}@hybrid
    untimed mt_bench_80_15x4x6 $(questions 80) --tree 15x4x6 \
        --arms plain exact@hybrid {path:0.6,fsd:0.48,relaxed:0.36,random:0.3}@hybrid
    fill mt_bench_80 mt_bench_80 mt_bench_16 mt_bench_80_15x4x6
}
reader() { # gemma-3-270m on the answers of mt_bench_80
    "$python" "$root/extras/reader.py" "$output/mt_bench_80" --output "$output/reader"
    fill reader "mt_bench_80+reader/reader.json" reader/reader.json
}
calibration() { # what is expected of half of QUESTIONS, and what comes true on the others
    tail -n +33 "$QUESTIONS" >"$output/others.jsonl"
    local arms=({path:{0.15,0.3,0.5,0.77,1.25,2},fsd:{0.3,0.35,0.4,0.45}}@hybrid)
    "$python" "$root/evaluate/calibrate.py" --question_file "$QUESTIONS" $(questions 32) \
        --tree 15x4x6 ${head[@]+"${head[@]}"} --output "$output/expected" --arms "${arms[@]}"
    untimed came_true --question_file "$output/others.jsonl" --turns 1 $(questions 32) \
        --tree 15x4x6 --arms plain exact@hybrid "${arms[@]}"
}
temperature_07() {
    untimed temperature_07 $(questions 80) --batch 8 --temperature 0.7 --arms plain exact \
        {path:{0.5,1},relaxed:{0.06,0.2},typical:{0.6,0.35},fsd:{0.25,0.45},random:{0.1,0.3}} \
        exact@hybrid {path:{0.6,1.5},relaxed:{0.08,0.2},typical:{0.6,0.3}}@hybrid \
        {fsd:{0.35,0.5},random:{0.1,0.3}}@hybrid
    "$python" "$root/extras/reader.py" "$output/temperature_07" --output "$output/reader_07"
    fill temperature_07 "temperature_07+reader_07/reader.json"
}
rules_temperature_1() {
    untimed rules_temperature_1 "${choose[@]}" $(questions 32) --max_new_tokens 64 \
        --temperature 1 --tree 15x4x6 \
        --arms plain exact {exact,rejection}@eagle,sample=1 fsd:{0.3,0.38,0.45} \
        fsd-paper:{0.3,0.45} {fsd,fsd-paper}:{0.3,0.45},child=sample@eagle,sample=1 \
        path:{0.25,0.6,1} ratio:{0.5,1,1.5} typical:{0.3,0.2,0.09} relaxed:{0.15,0.25,0.4} \
        random:{0.15,0.4}
    "$python" "$root/extras/rule_front.py" "$output/rules_temperature_1" \
        >"$output/rules_temperature_1.md"
}
rule_front() {
    untimed rule_front "${choose[@]}" $(questions 32) --tree 15x4x6 \
        --plugin "$root/extras/rivals.py" --arms plain exact path:{0.35,0.77,1.25,2} \
        ratio:{0.5,1,1.5,2.5} relaxed:{0.15,0.3,0.5,0.7} typical:{0.3,0.15,0.09,0.04} \
        fsd:{0.3,0.35,0.4,0.45}{,\,child=draft} random:{0.07,0.14,0.25,0.4} \
        asd:{0.5,1,2},ledger=inf exact@hybrid \
        {path:{0.35,0.77,1.25,2},ratio:{0.5,1,1.5,2.5},relaxed:{0.15,0.3,0.5,0.7}},ends=0@hybrid \
        {typical:{0.3,0.15,0.09,0.04},fsd:{0.3,0.35,0.4,0.45}},ends=0@hybrid \
        random:{0.07,0.14,0.25,0.4},ends=0@hybrid
    "$python" "$root/extras/rule_front.py" "$output/rule_front" \
        --plugin "$root/extras/rivals.py" >"$output/rule_front.md"
}
tasks() {
    local options=(--quality_only --tree 15x4x6 ${head[@]+"${head[@]}"}
        --arms plain exact@hybrid {path:{0.6,1.1},fsd:0.48,relaxed:0.36,random:0.3}@hybrid)
    if [ -n "${EXECUTE_CODE:-}" ]; then
        "${launch[@]}" "$root/evaluate/tasks.py" --task humaneval --execute_code $(questions 164) \
            --output "$output/humaneval" "${options[@]}"
    fi
    if [ -n "${IFEVAL:-}" ]; then
        "${launch[@]}" "$root/evaluate/tasks.py" --task "ifeval:$IFEVAL" $(questions 541) \
            --output "$output/ifeval" "${options[@]}"
    fi
}

mkdir -p "$output"
if [ $# = 0 ]; then set -- "${known[@]}"; fi
for page in "$@"; do
    echo "figures of results/$page" >&2
    started=$SECONDS
    "$page"
    echo "made results/$page in $((SECONDS - started)) s" >&2
done

#!/usr/bin/env bash
# The quality of FSD on the embedded target: MT-Bench whole, tasks with answers, one report.
# About two hours on two CPU cores; killed, it goes on where it was.
#     scripts/evaluate_smollm2.sh
#     EXECUTE_CODE=1 IFEVAL=input_data.jsonl GSM8K=test.jsonl scripts/evaluate_smollm2.sh
# EXECUTE_CODE=1 adds HumanEval, and so runs the model's code; IFEVAL and GSM8K are files of those
# sets. PROCESSES=4 shares the questions out over processes (the same answers, no speeds).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/evaluate}
for file in ${IFEVAL:+"$IFEVAL"} ${GSM8K:+"$GSM8K"}; do # read only after MT-Bench
    if [ ! -f "$file" ]; then
        echo "error: $file is no file: set IFEVAL and GSM8K to files of those sets (docs/evaluate.md), or not" >&2
        exit 2
    fi
done
bash "$root/scripts/setup.sh" ${IFEVAL:+tasks}
launch=("$root/.venv/bin/python")
if [ "${PROCESSES:-1}" -gt 1 ]; then
    export ACCELERATE_USE_CPU=true
    launch=("$root/.venv/bin/accelerate" launch --config_file "$root/scripts/accelerate/ddp.yaml"
        --num_processes "$PROCESSES")
fi
"${launch[@]}" "$root/evaluate/mt_bench.py" --questions 80 --output "$output/mt_bench" \
    --arms plain exact fsd:{0.3,0.35,0.4,0.45} path:{0.25,0.5,0.77} \
    random:{0.07,0.14,0.25} --traces 3
runs=("$output/mt_bench")
task() { # name, --task, then further options
    local name=$1 source=$2
    shift 2
    "${launch[@]}" "$root/evaluate/tasks.py" --task "$source" --output "$output/$name" \
        --arms plain exact fsd:{0.35,0.42} path:{0.5,0.77} random:{0.1,0.2} \
        --max_new_tokens 128 "$@"
    runs+=("$output/$name")
}
if [ -n "${EXECUTE_CODE:-}" ]; then task humaneval humaneval --questions 40 --execute_code; fi
if [ -n "${IFEVAL:-}" ]; then task ifeval "ifeval:$IFEVAL" --questions 200; fi
if [ -n "${GSM8K:-}" ]; then task gsm8k "gsm8k:$GSM8K" --questions 50; fi
"$root/.venv/bin/python" "$root/evaluate/report.py" "${runs[@]}" --output "$output/report"

#!/usr/bin/env bash
# The quality of FSD on the embedded target: MT-Bench whole, tasks with answers, one report.
# About two hours on two CPU cores; killed, it goes on where it was.
#     scripts/evaluate_smollm2.sh
#     IFEVAL=input_data.jsonl GSM8K=test.jsonl scripts/evaluate_smollm2.sh    with these sets too
#     OUTPUT=runs/x LAUNCH="accelerate launch --num_processes 4" scripts/evaluate_smollm2.sh
# LAUNCH shares the questions out over processes (answers stay the same, no speeds are given).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/evaluate}
bash "$root/scripts/setup.sh"
export PATH="$root/.venv/bin:$PATH"
read -ra launch <<<"${LAUNCH:-python}"
arms=(--arms plain exact fsd --thresholds 0.35 0.42 --max_new_tokens 128)
"${launch[@]}" "$root/evaluate/mt_bench.py" --questions 80 --output "$output/mt_bench" \
    --arms generate plain exact fsd random --generate_questions 16 \
    --thresholds 0.3 0.35 0.4 0.45 --rates 0.07 0.14 0.25 --traces 3
runs=("$output/mt_bench")
"${launch[@]}" "$root/evaluate/tasks.py" --task humaneval --execute_code --questions 40 \
    "${arms[@]}" --output "$output/humaneval"
runs+=("$output/humaneval")
if [ -n "${IFEVAL:-}" ]; then
    "${launch[@]}" "$root/evaluate/tasks.py" --task "ifeval:$IFEVAL" --questions 200 "${arms[@]}" \
        --output "$output/ifeval"
    runs+=("$output/ifeval")
fi
if [ -n "${GSM8K:-}" ]; then
    "${launch[@]}" "$root/evaluate/tasks.py" --task "gsm8k:$GSM8K" --questions 50 "${arms[@]}" \
        --output "$output/gsm8k"
    runs+=("$output/gsm8k")
fi
python "$root/evaluate/report.py" "${runs[@]}" --output "$output/report"

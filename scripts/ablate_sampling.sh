#!/usr/bin/env bash
# Sampling: temperature x child (`sample` among them) x T. A run a temperature, joined by the report.
#     scripts/ablate_sampling.sh
#     OUTPUT=runs/x TEMPERATURES="0.7 1" scripts/ablate_sampling.sh --num_choices 2
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_sampling}
bash "$root/scripts/setup.sh"
runs=()
for temperature in ${TEMPERATURES:-0.7 1}; do
    "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" --output "$output/t$temperature" \
        --questions 16 --turns 1 --temperature "$temperature" \
        --arms plain exact fsd:{0.2,0.35},child={draft,target,sample} \
        path:{0.25,0.5} ratio:1 random:0.1 "$@"
    runs+=("$output/t$temperature")
done
"$root/.venv/bin/python" "$root/evaluate/report.py" "${runs[@]}" --output "$output-report"

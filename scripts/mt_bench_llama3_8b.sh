#!/usr/bin/env bash
# MT-Bench on LLaMA-3-Instruct 8B with the published EAGLE head; needs the model hub and a GPU. The
# EAGLE-2 paper gives tokens_per_round 4.53 at temperature 0.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" \
    --target meta-llama/Meta-Llama-3-8B-Instruct --head yuhuili/EAGLE-LLaMA3-Instruct-8B \
    --dtype float16 --max_new_tokens 1024 \
    --tree 59x6x10 \
    --output "$root/runs/mt_bench_llama3_8b" "$@"

#!/usr/bin/env bash
# MT-Bench on LLaMA-3.1-Instruct 8B with the published EAGLE-3 head; needs the model hub and a GPU. The
# EAGLE-3 paper gives tokens_per_round 6.13 at temperature 0. How to log in, and what it takes:
# docs/your_model.md.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" \
    --target meta-llama/Llama-3.1-8B-Instruct --head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B \
    --dtype float16 --max_new_tokens 1024 \
    --tree 59x8x10 \
    --output "$root/runs/mt_bench_llama31_8b_eagle3" "$@"

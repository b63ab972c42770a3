#!/usr/bin/env bash
# MT-Bench on LLaMA-3.1-Instruct 8B with the published EAGLE-3 head; needs the model hub and a GPU. The
# EAGLE-3 paper gives tokens_per_round 6.13 at temperature 0. How to log in, what it takes, and what to
# expect of the comparison: docs/gpu.md.
#
# As upstream evaluates: in float16, under Llama 2's system message (llama_system.txt, from its
# gen_ea_answer_llama3chat.py), answers of at most 512 tokens, since that script passes its
# --max-new-token 1024 to nothing. Exact drafting has two trees: upstream's default of the model (depth
# 7, 59x8x10 here) and that of its evaluation script (depth 5, 59x6x10 here).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" \
    --target meta-llama/Llama-3.1-8B-Instruct --head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B \
    --device cuda --dtype float16 --system "$root/scripts/llama_system.txt" --max_new_tokens 512 \
    --tree 59x8x10 \
    --arms generate plain exact exact@eagle:59x6x10 fsd:0.3 {exact,fsd:0.3,path:0.9}@hybrid \
    --output "$root/runs/mt_bench_llama31_8b_eagle3" "$@"

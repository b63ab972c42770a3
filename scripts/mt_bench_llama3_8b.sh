#!/usr/bin/env bash
# MT-Bench on LLaMA-3-Instruct 8B with the published EAGLE head; needs the model hub and a GPU. The
# EAGLE-2 paper gives tokens_per_round 4.53 at temperature 0.
#
# As upstream evaluates: in float16, under Llama 2's system message (llama_system.txt, from its
# gen_ea_answer_llama3chat.py), answers of at most 512 tokens, since that script passes its
# --max-new-token 1024 to nothing. Exact drafting has two trees: that of upstream's evaluation script
# (depth 5, 59x6x10 here) and its default of the model (depth 7, 59x8x10 here).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" \
    --target meta-llama/Meta-Llama-3-8B-Instruct --head yuhuili/EAGLE-LLaMA3-Instruct-8B \
    --device cuda --dtype float16 --system "$root/scripts/llama_system.txt" --max_new_tokens 512 \
    --tree 59x6x10 \
    --arms generate plain exact exact@eagle:59x8x10 fsd:0.3 {exact,fsd:0.3,path:0.9}@hybrid \
    --output "$root/runs/mt_bench_llama3_8b" "$@"

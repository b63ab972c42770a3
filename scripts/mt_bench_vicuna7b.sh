#!/usr/bin/env bash
# MT-Bench on Vicuna-7B v1.3 with the published EAGLE head; needs the model hub and a GPU. The EAGLE-2
# paper gives tokens_per_round 4.98 at temperature 0. Answers have at most 512 tokens as upstream's
# have: gen_ea_answer_vicuna.py passes its --max-new-token 1024 to nothing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" \
    --target lmsys/vicuna-7b-v1.3 --head yuhuili/EAGLE-Vicuna-7B-v1.3 --device cuda --dtype float16 \
    --conv_template vicuna_v1.1 --max_new_tokens 512 \
    --tree 59x6x10 \
    --output "$root/runs/mt_bench_vicuna7b" "$@"

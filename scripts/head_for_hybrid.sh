#!/usr/bin/env bash
# A draft head for a target with recurrent layers, from nothing, in some ten minutes on a CPU: a tiny
# target that learns to count and to spell, its answers, a head that is trained on them, and exact
# and fuzzy decoding of 30 questions that neither has seen. Resumes when run again.
#     scripts/head_for_hybrid.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/tiny_hybrid}
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
[ -f "$output/target/question.jsonl" ] ||
    "$python" "$root/scripts/analysis/tiny_hybrid.py" --output "$output/target"
"$python" "$root/train/make_data.py" --target "$output/target" --output "$output/data" \
    --features "$output/features" --dialogues 600 --max_new_tokens 80 --dtype float32 \
    --exclude "$output/target/question.jsonl"
"$python" "$root/train/train_head.py" --target "$output/target" --data "$output/data" \
    --features "$output/features" --output "$output/head" --target_dtype float32 --epochs 12
"$python" "$root/evaluate/mt_bench.py" --target "$output/target" --head "$output/head" \
    --question_file "$output/target/question.jsonl" --max_new_tokens 80 --dtype float32 \
    --output "$output/bench" --arms generate plain exact@eagle exact@hybrid fsd:0.3@eagle

#!/usr/bin/env bash
# One recipe on more and more data, judged by replay: does data bind, or capacity? Resumes.
#     DATA="a.jsonl b.jsonl" FEATURES="cache_a cache_b" scripts/learning_curve.sh
#     SIZES="100000 1000000" OUTPUT=runs/curve ... --epochs 2   options go to train_head.py
# SIZES are answer tokens, 0 is all; a smaller part lies within a larger one.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/learning_curve}
: "${DATA:?name the data files, from train/make_data.py}"
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
cd "$root"
heads=()
for size in ${SIZES:-55000 110000 220000 440000 0}; do
    "$python" train/train_head.py --data $DATA ${FEATURES:+--features $FEATURES} \
        --output "$output/tokens-$size" --answer_tokens "$size" --epochs 3 --loss_vocab 16384 "$@"
    heads+=("$output/tokens-$size")
done
"$python" evaluate/replay.py --heads "${heads[@]}" --questions 24 --output "$output/replay"

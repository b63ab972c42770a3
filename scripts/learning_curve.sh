#!/usr/bin/env bash
# One recipe on more and more data, judged by replay: does data bind, or capacity? Resumes.
#     DATA=folder QUESTIONS=mine.jsonl scripts/learning_curve.sh    FEATURES=folder: kept states
#     SIZES="100000 1000000 0" TARGET=T OUTPUT=runs/curve ... --epochs 2   options go to train_head.py
# DATA is of train/make_data.py, QUESTIONS a question file that is not the test set.
# SIZES are answer tokens, 0 is all; a smaller part lies within a larger one.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/learning_curve}
target=${TARGET:-smollm2}
if [ ! -e "${DATA:-}" ]; then
    echo "error: DATA=${DATA:-} is not there: set it to a folder of train/make_data.py (docs/heads.md)" >&2
    exit 2
fi
if [ ! -f "${QUESTIONS:-}" ]; then
    echo "error: QUESTIONS=${QUESTIONS:-} is no file: set it to a question file (docs/evaluate.md) to choose on, not the one that is reported" >&2
    exit 2
fi
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
heads=()
for size in ${SIZES:-55000 110000 220000 440000 0}; do
    "$python" "$root/train/train_head.py" --target "$target" --data "$DATA" \
        --features "${FEATURES:-$output/features}" --output "$output/tokens-$size" \
        --answer_tokens "$size" --epochs 3 --loss_vocab 16384 "$@"
    heads+=("$output/tokens-$size")
done
"$python" "$root/evaluate/replay.py" --target "$target" --heads "${heads[@]}" \
    --question_file "$QUESTIONS" --arms exact@eagle:15x4x6 --texts "$output/texts" --output "$output/replay"

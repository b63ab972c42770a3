#!/usr/bin/env bash
# Recipes of head training against each other at equal tokens seen, judged by replay. Resumes.
#     QUESTIONS=mine.jsonl scripts/ablate_head.sh            makes 300,000 answer tokens first
#     DATA=folder FEATURES=folder QUESTIONS=...              from train/make_data.py; kept states
#     STEPS=150 SEEDS="0 1 2" TARGET=T OUTPUT=runs/ablation scripts/ablate_head.sh
# QUESTIONS is a question file that is not the test set: recipes are chosen on it.
# An arm is one line below; options go to train_head.py.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_head}
target=${TARGET:-smollm2}
if [ ! -f "${QUESTIONS:-}" ]; then
    echo "error: QUESTIONS=${QUESTIONS:-} is no file: set it to a question file (docs/evaluate.md) to choose on, not the one that is reported" >&2
    exit 2
fi
if [ -n "${DATA:-}" ] && [ ! -e "$DATA" ]; then
    echo "error: DATA=$DATA is not there: set it to a folder of train/make_data.py (docs/heads.md), or not" >&2
    exit 2
fi
if ! [[ "${STEPS:-70} ${SEEDS:-0 1}" =~ ^[1-9][0-9]*(\ +[0-9]+)+$ ]]; then
    echo "error: STEPS=${STEPS:-70} must be a whole number above 0, and SEEDS=${SEEDS:-0 1} whole numbers" >&2
    exit 2
fi
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
mkdir -p "$output"
data=${DATA:-$output/data}
features=${FEATURES:-$output/features}
if [ -z "${DATA:-}" ]; then
    "$python" "$root/train/make_data.py" --target "$target" --output "$data" \
        --answer_tokens 300000
fi
extra=("$@")
heads=()
arm() { # name, then the options that make the arm
    local name=$1 seed
    shift
    for seed in ${SEEDS:-0 1}; do
        "$python" "$root/train/train_head.py" --target "$target" --data "$data" \
            --output "$output/$name-$seed" --seed "$seed" --steps "${STEPS:-70}" \
            "$@" ${extra[@]+"${extra[@]}"}
        heads+=("$output/$name-$seed")
    done
}
loss16k=(--features "$features" --loss_vocab 16384 --recipe)
arm eagle "${loss16k[@]}" eagle,learning_rate=1.5e-3
arm unrolled-ce0.1 "${loss16k[@]}" unrolled,ce=0.1
arm unrolled "${loss16k[@]}" unrolled
arm muon "${loss16k[@]}" unrolled,optimizer=muon
arm ce-only "${loss16k[@]}" unrolled,feature=0 # forward KL has the same gradient
arm loss8k --features "$features" --loss_vocab 8192
arm full-vocab --features "$features"
arm eagle3 --features "$features" --head_type eagle3 --recipe eagle3,unroll_steps=3 --loss_vocab 16384
"$python" "$root/evaluate/replay.py" --target "$target" --heads "${heads[@]}" \
    --question_file "$QUESTIONS" --texts "$output/texts" --max_new_tokens 64 \
    --arms exact@eagle:{7,15}x4x6 --output "$output/replay"

#!/usr/bin/env bash
# Recipes of head training against each other at equal tokens seen, judged by replay. Resumes.
#     DATA="a.jsonl" FEATURES="cache" scripts/ablate_head.sh       (from train/make_data.py)
#     STEPS=150 SEEDS="0 1 2" OUTPUT=runs/ablation ... --target T  options go to train_head.py
# Without DATA, 300,000 answer tokens are made first. An arm is one line below.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_head}
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
cd "$root"
mkdir -p "$output"
if [ -z "${DATA:-}" ]; then
    DATA=$output/data.jsonl FEATURES=$output/features
    "$python" train/make_data.py --output "$DATA" --features "$FEATURES" --answer_tokens 300000
fi
features=${FEATURES:-$output/features}
heads=()
arm() { # name, then the options that make the arm
    local name=$1 seed
    shift
    for seed in ${SEEDS:-0 1}; do
        "$python" train/train_head.py --data $DATA --output "$output/$name-$seed" --seed "$seed" \
            --steps "${STEPS:-70}" --learning_rate 1.5e-3 "$@" "${extra[@]}"
        heads+=("$output/$name-$seed")
    done
}
extra=("$@")
eagle="--features $features --loss_vocab 16384"
eagle3="--features $features-eagle3 --head_type eagle3 --recipe eagle3 --unroll_steps 3 --draft_vocab 16384"
arm eagle $eagle --recipe eagle
arm eagle-unrolled $eagle --losses "feature=1 ce=0.1"
arm unrolled $eagle
arm ce-only $eagle --losses ce=1
arm rkl-only $eagle --losses rkl=1
arm js-only $eagle --losses js=1
arm tv-only $eagle --losses tv=1
arm vocab8k --features $features --draft_vocab 8192
arm vocab16k --features $features --draft_vocab 16384
arm start-target $eagle --start target
arm eagle3 $eagle3
arm eagle3-start-target $eagle3 --start target
"$python" evaluate/replay.py --heads "${heads[@]}" --questions 24 --max_new_tokens 128 \
    --trees 7x4x6 15x4x6 --output "$output/replay"

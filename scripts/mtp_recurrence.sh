#!/usr/bin/env bash
# Does training an MTP layer for recurrence raise its acceptance below the first level? On tiny
# targets that have learnt a small grammar; five minutes on one core for each family. Resumes.
#     scripts/mtp_recurrence.sh                          all three
#     FAMILIES=qwen2 SEED=1 OUTPUT=runs/mtp scripts/mtp_recurrence.sh
# one_step is what checkpoints ship with: a layer that was trained for one step. more has as many
# steps of that again; recurrent has as many of the recipe mtp, from the same start.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
cd "$root"
export OMP_NUM_THREADS=1
python=.venv/bin/python seed=${SEED:-0}
for family in ${FAMILIES:-qwen2 qwen3_5_text deepseek_v3}; do
    folder=${OUTPUT:-runs/mtp_recurrence}/$family
    made=(--family "$family" --output "$folder/target" --steps "${TARGET_STEPS:-400}" --seed "$seed")
    [ -f "$folder/target/config.json" ] || "$python" scripts/analysis/tiny_mtp_target.py "${made[@]}"
    [ -f "$folder/held_out.jsonl" ] ||
        "$python" scripts/analysis/tiny_mtp_target.py "${made[@]}" --texts "$folder"
    train() { # name, start, recipe, steps
        "$python" train/train_head.py --target "$folder/target" --data "$folder/data.jsonl" \
            --features "$folder/features" --target_dtype float32 --precision no \
            --output "$folder/$1" --start "$2" --recipe "$3" --steps "$4" --seed "$seed"
    }
    train one_step mtp mtp,unroll_steps=1,learning_rate=3e-3 "${STEPS:-600}"
    train more "$folder/one_step" mtp,unroll_steps=1 "${FURTHER_STEPS:-300}"
    train recurrent "$folder/one_step" mtp "${FURTHER_STEPS:-300}"
    "$python" scripts/analysis/mtp_levels.py --target "$folder/target" \
        --texts "$folder/held_out.jsonl" --output "$folder/levels.json" \
        --heads "$folder"/{one_step,more,recurrent}
done

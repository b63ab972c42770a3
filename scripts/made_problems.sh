#!/usr/bin/env bash
# A test of quality with power: a small target that solves made problems, its head, its model of harm,
# and what every rule loses of its score against tokens a round. Two hours of one core; resumes when
# run again.
#     scripts/made_problems.sh
#     QUESTIONS=500 scripts/made_problems.sh      fewer problems an arm than 2,000
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/made_problems}
target=$output/target
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
[ -f "$target/config.json" ] || "$python" "$root/scripts/analysis/made_problems.py" --output "$target"
"$python" "$root/train/make_data.py" --target "$target" --output "$output/data" \
    --features "$output/features" --sources "$target/prompts.jsonl=1" --dialogues 4000 \
    --max_new_tokens 48 --max_prompt_tokens 256 --dtype float32 \
    --exclude "$target/test.jsonl" "$target/choice.jsonl" "$target/forks.jsonl"
"$python" "$root/train/train_head.py" --target "$target" --data "$output/data" \
    --features "$output/features" --output "$output/head" --target_dtype float32 --epochs 6
"$python" "$root/train/mine_forks.py" --target "$target" --head "$output/head" --tree 15x4x6 \
    --tasks "$target/forks.jsonl" --scorer last_number --max_new_tokens 48 --dtype float32 \
    --output "$output/forks"
"$python" "$root/train/train_harm.py" --forks "$output/forks" --output "$output/harm"
for set in choice test; do
    "$python" "$root/evaluate/tasks.py" --target "$target" --head "$output/head" --tree 15x4x6 \
        --harm "$output/harm" --task "$target/$set.jsonl" --scorer last_number --max_new_tokens 48 \
        --questions "${QUESTIONS:-2000}" --dtype float32 --quality_only --output "$output/$set" \
        --arms plain exact
done

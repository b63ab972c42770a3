#!/usr/bin/env bash
# A test of quality with power: a small target that solves made problems, its head, its model of harm,
# and what every rule loses of its score against tokens a round. Two hours of one core; resumes when
# run again.
#     scripts/made_problems.sh
#     QUESTIONS=100 scripts/made_problems.sh      fewer problems an arm than 500
#     ARMS="plain exact harm:0.1" scripts/made_problems.sh
# The head is trained for 60 steps alone, so that it guesses as a head of a large target does.
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
    --features "$output/features" --output "$output/head" --target_dtype float32 --steps 60
"$python" "$root/train/mine_forks.py" --target "$target" --head "$output/head" --tree 15x4x6 \
    --tasks "$target/forks.jsonl" --scorer last_number --max_new_tokens 48 --dtype float32 \
    --output "$output/forks"
"$python" "$root/train/train_harm.py" --forks "$output/forks" --output "$output/harm"
arms="plain exact fsd:0.2 fsd:0.35 fsd:0.5 path:0.5 path:1 path:2 path:4 relaxed:0.1 relaxed:0.4 random:0.1
    random:0.3 fsd-paper:0.2 fsd-paper:0.4 harm:0.05 harm:0.2 harm:0.4 path:0.05,cost=harm path:0.2,cost=harm"
read -ra arms -d '' <<<"${ARMS:-$arms}" || true
"$python" "$root/evaluate/tasks.py" --target "$target" --head "$output/head" --tree 15x4x6 \
    --harm "$output/harm" --task "$target/test.jsonl" --scorer last_number --max_new_tokens 48 \
    --questions "${QUESTIONS:-500}" --dtype float32 --quality_only --output "$output/test" --arms "${arms[@]}"
cd "$root" && "$python" scripts/analysis/score_front.py "$output/test" last_number

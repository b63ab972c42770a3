#!/usr/bin/env bash
# A test of quality with power: a small target that solves made problems, its head, its model of harm,
# and what every rule loses of its score against tokens a round, on chains of six drafts. Three hours
# of one core; resumes when run again.
#     scripts/made_problems.sh
#     QUESTIONS=100 scripts/made_problems.sh      fewer problems an arm than 500
#     ARMS="plain exact harm:0.1" scripts/made_problems.sh
# The head is trained for 60 steps alone, so that it guesses as a head of a large target does. The
# values of the arms were read off the first 45 problems of choice.jsonl, which are not reported on.
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
"$python" "$root/train/mine_forks.py" --target "$target" --head "$output/head" --tree 6x6x1 \
    --tasks "$target/forks.jsonl" --scorer last_number --max_new_tokens 48 --dtype float32 \
    --output "$output/forks"
[ -f "$output/harm/report.md" ] ||
    "$python" "$root/train/train_harm.py" --forks "$output/forks" --output "$output/harm"
arms="plain exact fsd:0.25 fsd:0.3 fsd:0.36 fsd:0.41 fsd:0.485 path:0.8 path:1.5 path:2.8 path:3.6
    path:4.7 harm:0.05 harm:0.2 harm:0.43 harm:0.65 harm:0.9 path:0.01,cost=harm path:0.036,cost=harm
    path:0.11,cost=harm path:0.2,cost=harm path:0.28,cost=harm fsd-paper:0.38 fsd-paper:0.42
    fsd-paper:0.455 relaxed:0.3 relaxed:0.9 random:0.05 random:0.125 random:0.21 random:0.4"
read -ra arms -d '' <<<"${ARMS:-$arms}" || true
"$python" "$root/evaluate/tasks.py" --target "$target" --head "$output/head" --tree 6x6x1 \
    --harm "$output/harm" --task "$target/test.jsonl" --scorer last_number --max_new_tokens 48 \
    --questions "${QUESTIONS:-500}" --dtype float32 --quality_only --output "$output/test" --arms "${arms[@]}"
"$python" "$root/scripts/analysis/made_workings.py" "$output/test" "$target/test.jsonl"
for score in last_number with_working; do
    "$python" "$root/scripts/analysis/score_front.py" "$output/test" $score
done

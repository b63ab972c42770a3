#!/usr/bin/env bash
# Rules against each other at matched gain: divergence x child x T, the price on the token, chance.
# Thresholds of a row stand at the same quantiles (5, 20, 35 %) of the divergence where the exact
# test ends a round, measured with an earlier head; set your own for another.
#     scripts/ablate_rules.sh                  47 arms, 16 questions x 64 tokens
#     OUTPUT=runs/x scripts/ablate_rules.sh --questions 32 --max_new_tokens 128
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_rules}
bash "$root/scripts/setup.sh"
"$root/.venv/bin/python" "$root/evaluate/mt_bench.py" --output "$output" \
    --questions 16 --turns 1 --max_new_tokens 64 \
    --arms plain exact \
    {fsd,fsd-paper}:{0.25,0.34,0.42},child={draft,target} \
    {fsd,fsd-paper}:{0.56,0.68,0.76},child={draft,target},divergence=tv \
    {fsd,fsd-paper}:{1.3,2,2.9},child={draft,target},divergence=kl_draft_target \
    ratio:{0.5,1,2} path:{0.25,0.5,0.77} random:{0.05,0.2,0.35} "$@"
"$root/.venv/bin/python" "$root/evaluate/report.py" "$output" --output "$output-report"

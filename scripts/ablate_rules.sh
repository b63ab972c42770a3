#!/usr/bin/env bash
# Rule form x divergence x child x T, with random acceptance at matched rates, and the report.
# Thresholds of a row stand at the same quantiles (5, 20, 35 %) of the divergence where the exact
# test ends a round, measured with the shipped head; set your own for another.
#     scripts/ablate_rules.sh                  54 cells + 3 controls, 16 questions x 64 tokens
#     OUTPUT=runs/x scripts/ablate_rules.sh --questions 32 --max_new_tokens 128
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_rules}
bash "$root/scripts/setup.sh"
"$root/.venv/bin/python" "$root/evaluate/ablate.py" --output "$output" \
    --axes rule=fsd,fsd-paper,random divergence=js,tv,kl_draft_target \
    child=draft,target,deepest child@random=draft \
    threshold@js=0.25,0.34,0.42 threshold@tv=0.56,0.68,0.76 \
    threshold@kl_draft_target=1.3,2,2.9 threshold@random=0.05,0.2,0.35 \
    --questions 16 --max_new_tokens 64 --generate_questions 2 "$@"
"$root/.venv/bin/python" "$root/evaluate/report.py" "$output" --output "$output-report"

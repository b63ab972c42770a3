#!/usr/bin/env bash
# Sampling: temperature x raw or processed rows x child (`sample` among them) x T.
#     scripts/ablate_sampling.sh
#     OUTPUT=runs/x scripts/ablate_sampling.sh --num_choices 2
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_sampling}
bash "$root/scripts/setup.sh"
"$root/.venv/bin/python" "$root/evaluate/ablate.py" --output "$output" \
    --axes temperature=0.7,1 logits=raw,processed child=draft,target,sample \
    threshold=0.2,0.35 "$@"
"$root/.venv/bin/python" "$root/evaluate/report.py" "$output" --output "$output-report"

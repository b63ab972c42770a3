#!/usr/bin/env bash
# Drafts, levels and top-k of the tree against T: what a larger tree buys exact and FSD.
#     scripts/ablate_trees.sh
#     OUTPUT=runs/x scripts/ablate_trees.sh --questions 32
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/ablate_trees}
bash "$root/scripts/setup.sh"
"$root/.venv/bin/python" "$root/evaluate/mt_bench.py" --output "$output" \
    --questions 16 --turns 1 \
    --arms plain {exact,fsd:0.3,fsd:0.4}@eagle:{4x4x1,7x3x4,15x4x6,23x5x8,59x6x10} "$@"
"$root/.venv/bin/python" "$root/evaluate/report.py" "$output" --output "$output-report"

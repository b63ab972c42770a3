#!/usr/bin/env bash
# The main job: MT-Bench on the embedded target, transformers' generate against the plain loop
# against EAGLE-2 against FSD. Sets up first. Options go to evaluate/mt_bench.py, e.g.
#     scripts/mt_bench.sh --questions 80 --arms plain exact fsd:{0.3,0.4} --output runs/mt_bench_80
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" "$@"

#!/usr/bin/env bash
# The CPU's speed table: all arms on the embedded target, contexts up to the target's end. Sets up
# first. Run it on an idle machine; options go to evaluate/speed.py, e.g.
#     scripts/speed_cpu.sh --dtype float32 --output runs/speed_cpu_float32
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/speed.py" --device cpu --output "$root/runs/speed_cpu" \
    --arms generate generate_compiled plain exact@eagle:{7x3x4,15x4x6} \
    fsd:{0.3,0.4}@eagle:7x3x4 exact@{hybrid:{7x3x4,15x4x6},ngram} --context 200 4000 7900 "$@"

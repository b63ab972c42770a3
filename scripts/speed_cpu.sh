#!/usr/bin/env bash
# The CPU's speed table: all arms on the embedded target, 16 first turns of MT-Bench. Sets up first.
# Run it on an idle machine; options go to evaluate/mt_bench.py, e.g.
#     scripts/speed_cpu.sh --dtype float32 --output runs/speed_cpu_float32
# Where the time of a round goes: evaluate/speed.py --context 200 4000 7900
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/evaluate/mt_bench.py" --device cpu --output "$root/runs/speed_cpu" \
    --questions 16 --turns 1 --num_choices 3 \
    --arms generate generate_compiled plain exact@eagle:{7x3x4,15x4x6} \
    fsd:{0.3,0.4}@eagle:7x3x4 exact@{hybrid:{7x3x4,15x4x6},ngram} "$@"

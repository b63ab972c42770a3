#!/usr/bin/env bash
# Which causal families of the installed transformers decode draft trees exactly, by trial of them
# all: writes the tables of results/families. A quarter of an hour on one core; sets up first.
# Options go to extras/families.py:
#     scripts/families.sh
#     scripts/families.sh --families llama phi3 --quick
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
cd "$root"
OMP_NUM_THREADS=1 exec .venv/bin/python extras/families.py "$@"

#!/usr/bin/env bash
# Sets up and passes the tests: the fast ones, then those on the embedded target (minutes).
#     scripts/test.sh --fast     only the fast ones
# Other options go to pytest. The longest are left out: .venv/bin/python -m pytest -m slow
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh" test
cd "$root"
chosen="not slow"
if [ "${1:-}" = "--fast" ]; then
    shift
    chosen="not slow and not embedded and not processes"
fi
# a process a core, each of one thread: threads of several processes wait for one another
export OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -q -n logical --maxprocesses 4 --dist worksteal -m "$chosen" "$@"

#!/usr/bin/env bash
# Sets up and passes the tests: the fast ones, then those on the embedded target (minutes).
#     scripts/test.sh --fast     only the fast ones (under three minutes)
# Other options go to pytest. The longest are left out: .venv/bin/pytest -m slow
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
cd "$root"
if [ "${1:-}" = "--fast" ]; then
    shift
    exec .venv/bin/python -m pytest -q -m "not embedded and not processes and not slow" "$@"
fi
exec .venv/bin/python -m pytest -q -m "not slow" "$@"

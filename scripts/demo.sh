#!/usr/bin/env bash
# A page in the browser, on which a slider turns a rule's dial: sets up, loads the model and prints
# the page's address. Options go to evaluate/demo.py:
#     scripts/demo.sh
#     scripts/demo.sh --target T --head H --port 8000
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh" demo
exec "$root/.venv/bin/python" "$root/evaluate/demo.py" "$@"

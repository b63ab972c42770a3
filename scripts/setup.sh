#!/usr/bin/env bash
# Set-up in steps, each once: virtual environment in .venv, this library in it with its dependencies
# in the versions of requirements*.txt, the embedded target and MT-Bench in the cache folder
# ($EAGLE_FSD_CACHE, default ~/.cache/eagle_fsd). A second run takes seconds.
#     scripts/setup.sh           what the main job, its report and training need
#     scripts/setup.sh tasks     also the judge's client and IFEval's checkers
#     scripts/setup.sh test      also what the tests need
#     scripts/setup.sh demo      what the main job and scripts/demo.sh need
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
wanted=${1:+-$1}
if [[ ! $wanted =~ ^(|-tasks|-test|-demo)$ ]]; then
    echo "error: $1 is no step of the set-up: give tasks, test, demo or nothing" >&2
    exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    found=$("$python" -V 2>/dev/null || true)
    echo "error: Python 3.11 or later is needed, and $python is ${found:-none}; name one with PYTHON=..." >&2
    exit 2
fi
if [[ "$(cat "$root/.venv/setup-stamp" 2>/dev/null)" != "$root "* ]]; then
    # also where it was copied or moved with its checkout: it would import the old folder's library
    if [ -L "$root/.venv" ]; then
        echo "error: $root/.venv is a link to an environment of another checkout, which set-up would clear: remove the link" >&2
        exit 2
    fi
    echo "set-up: a new environment in $root/.venv" >&2
    "$python" -m venv --clear "$root/.venv"
fi
# one call of pip for all steps up to the wanted one: each builds the library anew
steps=("" -tasks -test)
if [ "$wanted" = -demo ]; then steps=("" -demo); fi
pinned=("$root/pyproject.toml") stamps=() missing=
for step in "${steps[@]}"; do
    requirements=$root/requirements$step.txt
    pinned+=("$requirements")
    stamp="$root $(cat "${pinned[@]}" | sha256sum)"
    stamps+=("$stamp")
    if [ "$(cat "$root/.venv/setup-stamp$step" 2>/dev/null)" != "$stamp" ]; then missing=1; fi
    if [ "$step" = "$wanted" ]; then break; fi
done
if [ -n "$missing" ]; then
    # Python compiles what is imported when it is; all of torch and transformers takes a minute
    extra=${wanted:+[${wanted#-}]}
    echo "set-up: eagle_fsd$extra into $root/.venv (minutes, once)" >&2
    "$root/.venv/bin/python" -m pip install --quiet --no-compile -c "$requirements" -e "$root$extra"
    for number in "${!stamps[@]}"; do
        echo "${stamps[number]}" >"$root/.venv/setup-stamp${steps[number]}"
    done
fi
"$root/.venv/bin/python" - <<'PY'
from eagle_fsd.models.assets import EMBEDDED_ASSET, asset_dir

asset_dir(EMBEDDED_ASSET), asset_dir("mt_bench")
PY

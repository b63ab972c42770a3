#!/usr/bin/env bash
# Set-up, once: virtual environment in .venv, pinned dependencies, the embedded target and MT-Bench
# in the cache folder ($EAGLE_FSD_CACHE, default ~/.cache/eagle_fsd). A second run takes seconds.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: Python 3.11 or later is needed; name one with PYTHON=..." >&2
    exit 1
fi
digest=$(cat "$root"/requirements.txt "$root"/requirements-test.txt "$root"/pyproject.toml | sha256sum)
stamp=$(cat "$root/.venv/setup-stamp" 2>/dev/null || true)
if [ "$stamp" != "$root $digest" ]; then
    anew=""
    if [ -n "$stamp" ] && [[ "$stamp" != "$root "* ]]; then
        # copied or moved with its checkout: it would import the old folder's library
        echo "set-up: $root/.venv was made for another folder and is made anew" >&2
        anew="--clear"
    fi
    echo "set-up: dependencies into $root/.venv (minutes, once)" >&2
    "$python" -m venv $anew "$root/.venv"
    "$root/.venv/bin/python" -m pip install --quiet -r "$root/requirements-test.txt"
    "$root/.venv/bin/python" -m pip install --quiet --no-deps -e "$root"
    echo "$root $digest" >"$root/.venv/setup-stamp"
fi
"$root/.venv/bin/python" - <<'PY'
from eagle_fsd.models.assets import EMBEDDED_ASSET, asset_dir

asset_dir(EMBEDDED_ASSET), asset_dir("mt_bench")
PY

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
wanted=$(cat "$root"/requirements.txt "$root"/requirements-test.txt "$root"/pyproject.toml | sha256sum)
if [ "$(cat "$root/.venv/setup-stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "set-up: dependencies into $root/.venv (minutes, once)" >&2
    "$python" -m venv "$root/.venv"
    "$root/.venv/bin/python" -m pip install --quiet -r "$root/requirements-test.txt"
    "$root/.venv/bin/python" -m pip install --quiet --no-deps -e "$root"
    echo "$wanted" >"$root/.venv/setup-stamp"
fi
"$root/.venv/bin/python" - <<'PY'
from eagle_fsd.models.assets import embedded_target_dir, mt_bench_dir

embedded_target_dir(), mt_bench_dir()
PY

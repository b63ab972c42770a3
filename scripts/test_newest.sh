#!/usr/bin/env bash
# The newest transformers that pyproject.toml allows, tried beside the pinned one: this library as
# pip installs it answers as .venv's does, and runs every tested family on every engine.
#     scripts/test_newest.sh                          a minute or two
#     scripts/test_newest.sh transformers==5.25.0     another version, or torch's: see docs/extend.md
# The packages of .venv, torch's gigabyte among them, are seen from .venv-newest behind its own.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh" test
pinned=$root/.venv/bin/python newest=$root/.venv-newest/bin/python
"$pinned" -m venv --clear --without-pip "$root/.venv-newest"
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
"$pinned" -c "$purelib" >"$("$newest" -c "$purelib")/beside.pth"

# 1. The library and the newest transformers; of versions that are named, pip only warns that they
#    are outside the ranges.
pip=("$newest" -m pip install --quiet --no-compile)
rm -rf "$root/build" # of an earlier build, whose files would be installed too
"${pip[@]}" --upgrade transformers "$root"
rm -rf "$root/build"
if [ $# -gt 0 ]; then "${pip[@]}" "$@"; fi

# 2. README's question, away from the checkout, by the installed library and by the pinned one.
cat >"$root/.venv-newest/answers.py" <<'PY'
import sys
from importlib.metadata import version

import eagle_fsd

model = eagle_fsd.load("smollm2")
for arm in ("plain", "exact@ngram", "exact", "fsd:0.3@hybrid"):
    answer = eagle_fsd.generate(model, "What is photosynthesis?", arm=arm, max_new_tokens=48)
    print(arm, answer.tokens, answer.tokens_per_round)
here = [f"{name} {version(name)}" for name in ("transformers", "torch")]
print(f"answers by {' and '.join(here)}, {eagle_fsd.__file__}", file=sys.stderr)
PY
cd "$root/.venv-newest"
"$pinned" -I answers.py >pinned.txt
"$newest" -I answers.py >newest.txt
diff pinned.txt newest.txt

# 3. What another transformers may change: of every family on every engine its trees, the cache that
#    they leave, single tokens and batches; and the trial at loading, of a head too. Exact answers,
#    which follow from these whatever the drafter, of a family with windows and a recurrent one.
cd "$root"
export OMP_NUM_THREADS=1
exec "$newest" -m pytest -q -n logical --maxprocesses 4 --dist worksteal -m "not slow" \
    -k "not exact or gemma3-packed or lfm2-packed" tests/test_matrix.py tests/test_trial.py

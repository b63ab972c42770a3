#!/usr/bin/env bash
# Serves a target with a draft head in vLLM, with this library's acceptance rules: a value per request.
#     scripts/serve_vllm.sh TARGET HEAD [options of vllm serve]
# HEAD is a folder that `train/convert_head.py --to vllm` wrote. Then, an arm of your own in the place
# of fsd:0.35,ends=1 (docs/serve.md has what can be sent):
#     curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "TARGET",
#         "temperature": 0, "messages": [{"role": "user", "content": "Why is the sky blue?"}],
#         "vllm_xargs": {"arm": "fsd:0.35,ends=1"}}'
# VLLM_ENV is an environment with vLLM, this library (without its dependencies) and plugins/vllm;
# scripts/test_vllm.sh makes one for CPUs. DRAFTS is the length of the chains, 4.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "error: give TARGET and HEAD: scripts/serve_vllm.sh TARGET HEAD [options of vllm serve]" >&2
    exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$1 head=$2 environment=${VLLM_ENV:-$root/runs/vllm_env}
shift 2
if [ ! -x "$environment/bin/vllm" ]; then
    echo "error: no vLLM in $environment: set VLLM_ENV to the folder of an environment that has it, which docs/serve.md tells how to make" >&2
    exit 2
fi
if [ ! -f "$head/config.json" ]; then
    echo "error: no head in $head: name a folder that train/convert_head.py --to vllm wrote" >&2
    exit 2
fi
method=eagle
if grep -q 'Eagle3' "$head/config.json"; then method=eagle3; fi
speculation=$(printf '{"method": "%s", "model": "%s", "num_speculative_tokens": %d, "draft_sample_method": "probabilistic"}' \
    "$method" "$head" "${DRAFTS:-4}")
# the runner that has the hook: without it vLLM may fall back to one that would pass arms over
export VLLM_USE_V2_MODEL_RUNNER=1
exec "$environment/bin/vllm" serve "$target" \
    --speculative-config "$speculation" \
    --logits-processors eagle_fsd_vllm.processor:FuzzyAcceptance "$@"

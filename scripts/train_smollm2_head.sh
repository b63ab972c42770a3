#!/usr/bin/env bash
# A draft head from nothing: data, training, replay. Resumes when run again.
#     scripts/train_smollm2_head.sh                      for the embedded target: two hours on a CPU
#     MINUTES=20 scripts/train_smollm2_head.sh           a smaller head; or one large GPU
#     PROCESSES=4 scripts/train_smollm2_head.sh          on as many cores, or GPUs
#     TARGET=T SOURCES="self=0.8 prompts.jsonl=0.2" OUTPUT=runs/mine scripts/train_smollm2_head.sh
#                                                        for another: a hub id, a folder, a .gguf file
#     scripts/train_smollm2_head.sh --start HEAD         options go to train_head.py
# Half of the time goes into data: answers of the target, to user turns that it writes itself unless
# SOURCES names others. The rest trains, by the clock, on the 8,192 tokens that are most frequent in
# it. To those the head is then confined (head_8k), and both are replayed; that comes on top.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/smollm2_head}
target=${TARGET:-smollm2}
minutes=${MINUTES:-120}
if ! [[ $minutes =~ ^[1-9][0-9]*$ ]] || [ "$minutes" -lt 2 ]; then
    echo "error: MINUTES=$minutes must be a whole number, 2 or more" >&2
    exit 2
fi
mkdir -p "$output"
if [ "$(cat "$output/minutes" 2>/dev/null || echo "$minutes")" != "$minutes" ]; then
    echo "error: $output was begun with MINUTES=$(cat "$output/minutes"): name another OUTPUT" >&2
    exit 2
fi
echo "$minutes" >"$output/minutes"
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
launch=("$python")
if [ "${PROCESSES:-1}" -gt 1 ]; then
    launch=("$root/.venv/bin/accelerate" launch --config_file "$root/scripts/accelerate/ddp.yaml"
        --num_processes "$PROCESSES")
    if ! command -v nvidia-smi >/dev/null; then export ACCELERATE_USE_CPU=true; fi
fi
read -ra sources <<<"${SOURCES:-self}"
"${launch[@]}" "$root/train/make_data.py" --target "$target" --output "$output/data" \
    --features "$output/features" --sources "${sources[@]}" --minutes "$((minutes / 2))"
vocabulary=(--loss_vocab 8192)
for option in "$@"; do # a head that is trained on keeps its own
    if [[ $option == --start* ]]; then vocabulary=(); fi
done
"${launch[@]}" "$root/train/train_head.py" --target "$target" --data "$output/data" \
    --features "$output/features" --output "$output/head" ${vocabulary[@]+"${vocabulary[@]}"} \
    --recipe unrolled,optimizer=muon --minutes "$((minutes - minutes / 2))" "$@"
# drafting reads a fraction of the lm_head's rows; what that costs, the replay says
[ -f "$output/head_8k/config.json" ] || "$python" "$root/train/convert_head.py" \
    --head "$output/head" --output "$output/head_8k" --draft_vocab 8192 \
    --data "$output/data"
"$python" "$root/evaluate/replay.py" --target "$target" --heads "$output/head" "$output/head_8k" \
    --questions 24 --arms exact@eagle:15x4x6 --texts "$output/texts" --output "$output/replay"

#!/usr/bin/env bash
# A draft head for the embedded target from nothing: data, training, replay. Resumes when run again.
#     scripts/train_smollm2_head.sh                          two hours on two CPU cores
#     MINUTES=20 scripts/train_smollm2_head.sh               a smaller head; or one large GPU
#     OUTPUT=runs/my_head scripts/train_smollm2_head.sh --unroll_steps 5   options go to train_head.py
# Half of the time goes into data: answers of the target to user turns that it wrote itself, their
# features kept as they are made. The rest trains, by the clock; the replay comes on top.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/smollm2_head}
minutes=${MINUTES:-120}
case $minutes in '' | *[!0-9]*) echo "error: MINUTES=$minutes must be a whole number" >&2; exit 1 ;; esac
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
cd "$root"
mkdir -p "$output"
"$python" train/make_data.py --output "$output/data.jsonl" --features "$output/features" \
    --sources self --minutes "$((minutes / 2))"
"$python" train/train_head.py --data "$output/data.jsonl" --features "$output/features" \
    --output "$output/head" --loss_vocab 16384 --minutes "$((minutes - minutes / 2))" "$@"
"$python" evaluate/replay.py --heads "$output/head" --questions 24 --output "$output/replay"

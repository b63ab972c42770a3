#!/usr/bin/env bash
# A draft head for the embedded target from nothing: data, training, replay. Resumes when run again.
#     scripts/train_smollm2_head.sh                          two hours on two CPU cores
#     MINUTES=20 scripts/train_smollm2_head.sh               a smaller head; or one large GPU
#     OUTPUT=runs/my_head scripts/train_smollm2_head.sh --start HEAD   options go to train_head.py
# Half of the time goes into data: answers of the target to user turns that it wrote itself. The rest
# trains, by the clock. The head is then confined to the 8,192 most frequent tokens (head_8k), and both
# are replayed; that comes on top.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${OUTPUT:-$root/runs/smollm2_head}
minutes=${MINUTES:-120}
if ! [[ $minutes =~ ^[1-9][0-9]*$ ]] || [ "$minutes" -lt 2 ]; then
    echo "error: MINUTES=$minutes must be a whole number, 2 or more" >&2
    exit 1
fi
mkdir -p "$output"
if [ "$(cat "$output/minutes" 2>/dev/null || echo "$minutes")" != "$minutes" ]; then
    echo "error: $output was begun with MINUTES=$(cat "$output/minutes"): name another OUTPUT" >&2
    exit 1
fi
echo "$minutes" >"$output/minutes"
bash "$root/scripts/setup.sh"
python=$root/.venv/bin/python
"$python" "$root/train/make_data.py" --output "$output/data" --sources self \
    --minutes "$((minutes / 2))"
"$python" "$root/train/train_head.py" --data "$output/data" --output "$output/head" \
    --loss_vocab 16384 --minutes "$((minutes - minutes / 2))" "$@"
# drafting reads a sixth of the lm_head's rows; what that costs, the replay says
[ -f "$output/head_8k/config.json" ] || "$python" "$root/train/convert_head.py" \
    --head "$output/head" --output "$output/head_8k" --draft_vocab 8192 --data "$output/data"
"$python" "$root/evaluate/replay.py" --heads "$output/head" "$output/head_8k" --questions 24 \
    --arms exact --texts "$output/texts" --output "$output/replay"

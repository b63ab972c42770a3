"""Train a draft head, EAGLE-1/2 or EAGLE-3, on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl --output runs/head

Data comes from make_data.py. The target's states are computed where they are trained on, and kept
for the next epoch (--features online: not kept). The result is a folder that eagle_fsd and
upstream's EAGLE load. A run that was killed or interrupted goes on where it last saved: run the
same command again. Several processes: `accelerate launch --config_file scripts/accelerate/ddp.yaml
train/train_head.py ...`; a configuration for FSDP lies beside it.
"""

import math

from eagle_fsd.cli import run_command
from eagle_fsd.training.training_options import TrainOptions


def train(options: TrainOptions) -> None:
    from eagle_fsd.training.head_run import train_head

    if record := train_head(options):
        print(
            f"head: {options.output}\n"
            f"answer tokens seen: {record['answer_tokens_seen']}, {record['training_seconds']:.0f} "
            f"seconds, {record['tokens_per_second']:.0f} tokens/s\n"
            f"tokens a round on held-out answers as drawn, trees of {record['tree']}: "
            f"{record['tokens_per_round'] or math.nan:.2f}"
        )


if __name__ == "__main__":
    run_command(train, [TrainOptions])

"""Train a draft head, EAGLE-1/2 or EAGLE-3, on answers of a target.

    python train/train_head.py --target smollm2 --data answers.jsonl --output runs/head

Data comes from make_data.py. The target's states are computed where they are trained on, and kept
for the next epoch (--features online: not kept). The result is a folder that eagle_fsd and
upstream's EAGLE load. A run that was killed or interrupted goes on where it last saved: run the
same command again. Several processes: `accelerate launch --config_file scripts/accelerate/ddp.yaml
train/train_head.py ...`; configurations for FSDP and DeepSpeed lie beside it.
"""

import math

from eagle_fsd.runs.command import run_command
from eagle_fsd.training.train_options import TrainOptions


def train(options: TrainOptions) -> None:
    from eagle_fsd.training.head_run import train_head

    record = train_head(options)
    if record is not None:
        print_summary(options.output, record)


def print_summary(output: str, record: dict) -> None:
    held_out = record["held_out"]
    print(f"head: {output}")
    print(
        f"answer tokens seen: {record['answer_tokens_seen']}, seconds: "
        f"{record['training_seconds']:.0f}, {record['tokens_per_second']:.0f} tokens/s"
    )
    levels = zip(held_out["top1"], held_out["top8"], strict=True)
    for level, (top1, top8) in enumerate(levels, start=1):
        print(f"level {level}: top-1 {top1:.3f}  top-8 {top8:.3f}")
    for name, tokens in held_out["tokens_per_round"].items():
        print(f"tokens a round on held-out answers as drawn, {name}: {tokens or math.nan:.2f}")


def main(arguments: list[str] | None = None) -> None:
    run_command(train, [TrainOptions], arguments)


if __name__ == "__main__":
    main()

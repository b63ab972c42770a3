"""Make training dialogues: prompts from the target itself or from data, answers by the target.

    python train/make_data.py --output data --sources self=0.6 prompts.jsonl=0.4 \\
        --answer_tokens 1000000

The folder holds one dialogue a line, as token ids and a mask of the assistant's tokens, and how it
was made. A killed run continues: run the same command again; a larger budget goes on where a
smaller one ended. Several processes: `torchrun --nproc_per_node N train/make_data.py ...`.
"""

import json

from eagle_fsd.cli import run_command
from eagle_fsd.training.training_options import DataOptions


def make_data(options: DataOptions) -> None:
    from eagle_fsd.training.dialogue_run import make_dialogues

    summary = make_dialogues(options)
    if summary is not None:
        print(f"data: {options.output}\n{json.dumps(summary, indent=2, ensure_ascii=False)}")


if __name__ == "__main__":
    run_command(make_data, [DataOptions])

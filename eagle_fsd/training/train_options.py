"""Options of train/train_head.py, checked before anything loads."""

import math
from dataclasses import dataclass, field

from eagle_fsd.config import BadInput
from eagle_fsd.runs.command import option
from eagle_fsd.training.recipe import parse_recipe

LEAST = dict.fromkeys(("held_out", "max_length", "tokens_per_batch"), 1) | {"save_minutes": 1e-9}
LEAST |= dict.fromkeys(("answer_tokens", "loss_vocab", "batches_per_step"), 0)
LEAST |= dict.fromkeys(("epochs", "steps", "minutes", "seed"), 0)


@dataclass
class TrainOptions:
    data: list[str] = field(metadata={"help": "folders of make_data.py, or its JSONL(.gz) files"})
    output: str = field(metadata={"help": "folder of the head, its state and its log"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    target_device: str = option("", "where the target is; auto spreads it; empty: the process's")
    target_dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    features: str = option(
        "", "folder that keeps the target's states; online: compute them each time; empty: OUTPUT's"
    )
    max_length: int = option(2048, "longest dialogue in tokens; the rest is cut")
    answer_tokens: int = option(0, "train on a random part of about so many; 0: all")
    held_out: int = option(16, "dialogues kept to find the head's tokens per round by replay")

    head_type: str = option("eagle", "eagle (EAGLE-1/2) or eagle3")
    loss_vocab: int = option(
        0, "losses over this many tokens, the most frequent; EAGLE-3 drafts these alone; 0: all"
    )
    start: str = option("", "head whose weights it starts with; empty: random ones")

    recipe: str = option(
        "",
        "eagle, unrolled (default) or eagle3 (default for such heads), and changes of it: "
        "unrolled,noise=0,js=0.5; fields and losses are listed by a wrong one",
    )
    epochs: float = option(0.0, "passes over the data; 3 if no budget is given")
    steps: int = option(0, "largest number of steps")
    minutes: float = option(0.0, "longest training; the learning rate then follows the clock")
    tokens_per_batch: int = option(0, "padded tokens of one forward; default 2048, 16384 on CUDA")
    batches_per_step: int = option(0, "batches of a step, over all processes; default one each")
    precision: str = option("bf16", "bf16 (mixed) or no (float32)")
    save_minutes: float = option(5.0, "minutes between resumable saves")
    seed: int = option(0, "of initialisation, order and noise")

    def __post_init__(self):
        import torch

        self.recipe = self.recipe or ("eagle3" if self.head_type == "eagle3" else "unrolled")
        self.tokens_per_batch = self.tokens_per_batch or (
            16384 if torch.cuda.is_available() else 2048
        )
        for name, least in LEAST.items():
            if not least <= getattr(self, name) < math.inf:
                raise BadInput(f"--{name} must be {least} or more, got {getattr(self, name)}")
        if 0 < self.loss_vocab < 8:  # the trees of the replay branch by 6
            raise BadInput(f"--loss_vocab must be at least 8, got {self.loss_vocab}")
        if self.precision not in ("bf16", "no"):
            raise BadInput(f"--precision must be bf16 or no, got {self.precision!r}")
        if self.head_type == "eagle3" and "feature" in parse_recipe(self.recipe).losses:
            raise BadInput("an EAGLE-3 head's output is no feature of the target: give feature=0")
        if not (self.epochs or self.steps or self.minutes):
            self.epochs = 3.0

    def most_steps(self, steps_per_epoch: float) -> int | None:
        """Steps after which it ends whatever the clock says; None: only the clock ends it."""
        limits = [self.steps] if self.steps else []
        limits += [math.ceil(self.epochs * steps_per_epoch)] if self.epochs else []
        return min(limits, default=None)

    def used(self, step: int, seconds: float, most_steps: int | None) -> float:
        """Share of the budget that is used, 1 or more at the end: at the first of its limits."""
        by_steps = step / most_steps if most_steps else 0.0
        return max(by_steps, seconds / (60 * self.minutes) if self.minutes else 0.0)

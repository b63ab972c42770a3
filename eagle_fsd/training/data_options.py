"""Options of train/make_data.py, checked before anything loads.

Nothing heavy is imported before they are parsed.
"""

import math
from dataclasses import dataclass, field

from eagle_fsd.config import BadInput
from eagle_fsd.runs.command import option
from eagle_fsd.training.prompts import SELF, parse_weights

LEAST = dict.fromkeys(("batch_size", "max_new_tokens", "max_prompt_tokens"), 1)
LEAST |= dict.fromkeys(("dialogues", "answer_tokens", "minutes"), 0)


@dataclass
class DataOptions:
    output: str = field(metadata={"help": "the folder to write to; train_head.py's --data"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    sources: list[str] = field(
        default_factory=lambda: [SELF],
        metadata={
            "help": "SOURCE=WEIGHT ...: self (user turns sampled from the target), sharegpt, "
            "hub:owner/name[:split], or a .jsonl/.json(.gz) file of conversations or prompts"
        },
    )
    answers: str = option(
        "rewritten", "rewritten by the target, turn by turn; or given, the data's own"
    )
    temperatures: list[float] = field(
        default_factory=lambda: [0.0, 0.0, 0.7, 1.0],
        metadata={"help": "each dialogue draws one of these; 0 is greedy"},
    )
    dialogues: int = option(0, "stop after this many; 0: no limit")
    answer_tokens: int = option(0, "begin no dialogue that would exceed this many; 0: no limit")
    minutes: float = option(
        0.0, "end after this time, runs before included; answers under way are cut there; 0: none"
    )
    max_new_tokens: int = option(400, "budget of an answer; a longer one is cut and ends there")
    max_prompt_tokens: int = option(1024, "longest prompt, earlier turns included")
    exclude: list[str] = field(
        default_factory=list, metadata={"help": "more question files whose prompts are dropped"}
    )
    batch_size: int = option(
        0,
        "dialogues at a time; default 512 on CUDA, 128 on CPU, 32 there for less than 15 minutes; "
        "lower it if memory ends",
    )
    seed: int = option(0, "of prompts, mixture and sampling")
    device: str = option("", "torch device; empty: cuda if there is one")
    dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")

    def __post_init__(self):
        import torch

        from eagle_fsd.models.load import DTYPES

        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        # on one thread of a CPU 128 rows take 4.3 ms a token, 32 take 4.9; but nothing is finished
        # before all rows have said their first turn
        on_cpu = 32 if 0 < self.minutes < 15 else 128
        self.batch_size = self.batch_size or (512 if self.device.startswith("cuda") else on_cpu)
        for name, least in LEAST.items():
            if not least <= getattr(self, name) < math.inf:
                raise BadInput(f"--{name} must be {least} or more, got {getattr(self, name)}")
        if self.answers not in ("rewritten", "given"):
            raise BadInput(f"--answers must be rewritten or given, got {self.answers!r}")
        if not all(0 <= t < math.inf for t in self.temperatures):
            raise BadInput(f"--temperatures must be 0 or more, got {self.temperatures}")
        if self.dtype and self.dtype not in DTYPES:
            raise BadInput(f"unknown --dtype {self.dtype!r}; known: {', '.join(DTYPES)}")
        endless = not (self.dialogues or self.answer_tokens or self.minutes)
        if SELF in parse_weights(self.sources) and endless:
            raise BadInput("source self has no end: give --dialogues, --answer_tokens or --minutes")

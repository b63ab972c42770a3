"""Options of train/make_data.py and train/train_head.py, checked before anything loads."""

from dataclasses import dataclass, field
from typing import Literal

from eagle_fsd.cli import RunOptions, option
from eagle_fsd.config import BadInput, SamplingConfig, check_least, check_seed
from eagle_fsd.training.prompts import SELF, parse_weights
from eagle_fsd.training.recipe import parse_recipe


@dataclass
class DataOptions(RunOptions):
    output: str = field(metadata={"help": "the folder to write to; train_head.py's --data"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    sources: list[str] = option(
        [SELF],
        "SOURCE=WEIGHT ...: self (user turns sampled from the target), or a .jsonl/.json(.gz) file "
        "of conversations or prompts",
    )
    temperatures: list[float] = option(
        [0.0, 0.0, 0.7, 1.0], "each dialogue draws one of these; 0 is greedy"
    )
    dialogues: int = option(0, "stop after this many; 0: no limit")
    answer_tokens: int = option(0, "begin no dialogue that would exceed this many; 0: no limit")
    minutes: float = option(
        0.0, "end after this time, runs before included; answers under way are cut there; 0: none"
    )
    features: str = option(
        "", "folder that keeps the target's states, for train_head.py's --features; empty: none"
    )
    max_new_tokens: int = option(400, "budget of an answer; a longer one is cut and ends there")
    max_prompt_tokens: int = option(1024, "longest prompt, earlier turns included")
    exclude: list[str] = option([], "more question files whose prompts are dropped")
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

        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        # on one thread of a CPU 128 rows take 4.3 ms a token, 32 take 4.9; but nothing is finished
        # before all rows have said their first turn
        on_cpu = 32 if 0 < self.minutes < 15 else 128
        self.batch_size = self.batch_size or (512 if self.device.startswith("cuda") else on_cpu)
        check_least(self, "--", batch_size=1, max_new_tokens=1, max_prompt_tokens=1)
        check_least(self, "--", dialogues=0, answer_tokens=0, minutes=0)
        for temperature in self.temperatures:
            SamplingConfig(temperature)  # its own check
        endless = not (self.dialogues or self.answer_tokens or self.minutes)
        if SELF in parse_weights(self.sources) and endless:
            raise BadInput("source self has no end: give --dialogues, --answer_tokens or --minutes")


@dataclass
class TrainOptions(RunOptions):
    data: list[str] = field(metadata={"help": "folders of make_data.py, or its JSONL(.gz) files"})
    output: str = field(metadata={"help": "folder of the head, its state and its log"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    target_device: str = option("", "where the target is; auto spreads it; empty: the process's")
    target_dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    features: str = option(
        "",
        "folder that keeps the target's states, make_data.py's or another; online: compute them "
        "each time; empty: OUTPUT's",
    )
    max_length: int = option(2048, "longest dialogue in tokens; the rest is cut")
    answer_tokens: int = option(0, "train on a random part of about so many; 0: all")
    held_out: int = option(16, "dialogues kept to find the head's tokens per round by replay")

    head_type: str = option("eagle", "eagle (EAGLE-1/2) or eagle3")
    loss_vocab: int = option(
        0, "losses over this many tokens, the most frequent; EAGLE-3 drafts these alone; 0: all"
    )
    start: str = option("", "a head of that type to train on, as it is; empty: a new one")

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
    precision: Literal["auto", "bf16", "no"] = option(
        "auto", "bf16 (mixed) or no (float32); auto: bf16 where the hardware multiplies it"
    )
    save_minutes: float = option(5.0, "minutes between resumable saves")
    seed: int = option(0, "of initialisation, order and noise")

    def __post_init__(self):
        import torch

        from eagle_fsd.models.load import default_dtype

        self.recipe = self.recipe or ("eagle3" if self.head_type == "eagle3" else "unrolled")
        on_cuda = torch.cuda.is_available()
        self.tokens_per_batch = self.tokens_per_batch or (16384 if on_cuda else 2048)
        if self.precision == "auto":  # a processor that has to emulate it takes 20 times as long
            fast = default_dtype("cuda" if on_cuda else "cpu") == "bfloat16"
            self.precision = "bf16" if fast else "no"
        check_least(self, "--", held_out=1, max_length=1, tokens_per_batch=1, save_minutes=1e-9)
        check_least(self, "--", answer_tokens=0, loss_vocab=0, batches_per_step=0, seed=0)
        check_least(self, "--", epochs=0, steps=0, minutes=0)
        check_seed(self.seed)
        if 0 < self.loss_vocab < 8:  # the trees of the replay branch by 6
            raise BadInput(f"--loss_vocab must be at least 8, got {self.loss_vocab}")
        recipe = parse_recipe(self.recipe)
        if self.head_type == "eagle3" and recipe.feature:
            raise BadInput("an EAGLE-3 head's output is no feature of the target: give feature=0")
        if not (self.epochs or self.steps or self.minutes):
            self.epochs = 3.0

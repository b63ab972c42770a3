"""Options of train/train_head.py, checked before anything loads."""

from dataclasses import dataclass, field

from eagle_fsd.config import BadInput
from eagle_fsd.models.model_options import option
from eagle_fsd.training.recipe import Recipe, choose_recipe, parse_losses


@dataclass
class TrainOptions:
    data: list[str] = field(metadata={"help": "JSONL(.gz) files of dialogues, from make_data.py"})
    output: str = field(metadata={"help": "folder of the head, its state and its log"})
    target: str = option("smollm2", "smollm2, a folder, a .gguf file or a hub id")
    target_device: str = option("", "where the target is; auto spreads it; empty: the process's")
    target_dtype: str = option("", "bfloat16, float16 or float32; empty: bfloat16 where it is fast")
    features: str = option(
        "", "folder that keeps the target's states; online: compute them each time; empty: OUTPUT's"
    )
    max_length: int = option(2048, "longest dialogue in tokens; the rest is cut")
    answer_tokens: int = option(0, "train on a random part of about so many; 0: all")
    held_out: int = option(64, "dialogues kept for validation")
    validate_depth: int = option(5, "levels of the validation")
    replayed: int = option(8, "held-out dialogues whose tokens per round are found by replay")

    head_type: str = option("eagle", "eagle (EAGLE-1/2) or eagle3")
    draft_vocab: int = option(0, "tokens that the head can draft, the most frequent; 0: all")
    loss_vocab: int = option(0, "losses over this many frequent tokens, though all are drafted")
    start: str = option("random", "weights begin at random, at the target's (target), or at a head")

    recipe: str = option("", "eagle, unrolled or eagle3; empty: unrolled, or eagle3 for its heads")
    losses: str = option("", "mix such as 'feature=1 ce=0.1'; also kl, rkl, js, tv")
    unroll_steps: int | None = option(None, "steps on the head's own output; 1: true features only")
    step_decay: float | None = option(None, "weight of a step relative to the one before")
    noise: float | None = option(None, "features get uniform noise in +-NOISE * 512 / length")
    learning_rate: float | None = option(None, "peak")
    warmup: float | None = option(None, "share of the budget that warms up")
    schedule: str = option("", "cosine, linear or constant")
    weight_decay: float | None = option(None, "AdamW's")
    clip_norm: float | None = option(None, "largest gradient norm; 0: off")
    clip_value: float | None = option(None, "largest gradient entry; 0: off")
    shift_mask: bool | None = option(None, "False supervises by upstream's unshifted mask")

    epochs: float = option(0.0, "passes over the data; 3 if no budget is given")
    steps: int = option(0, "largest number of steps")
    minutes: float = option(0.0, "longest training; the learning rate then follows the clock")
    tokens_per_batch: int = option(0, "padded tokens of one forward; default 2048, 16384 on CUDA")
    batches_per_step: int = option(0, "batches of a step, over all processes; default one each")
    precision: str = option("bf16", "bf16 (mixed) or no (float32)")
    gradient_checkpointing: bool = option(False, "recompute activations: less memory, slower")
    save_minutes: float = option(5.0, "minutes between resumable saves")
    track: str = option("", "tensorboard, wandb, ...: what accelerate logs to, below OUTPUT")
    seed: int = option(0, "of initialisation, order and noise")

    def __post_init__(self):
        import torch

        self.recipe = self.recipe or ("eagle3" if self.head_type == "eagle3" else "unrolled")
        self.tokens_per_batch = self.tokens_per_batch or (
            16384 if torch.cuda.is_available() else 2048
        )
        names = ("held_out", "validate_depth", "tokens_per_batch", "max_length")
        for name in names:
            if getattr(self, name) <= 0:
                raise BadInput(f"--{name} must be positive, got {getattr(self, name)}")
        for name in ("draft_vocab", "loss_vocab", "replayed", "answer_tokens", "batches_per_step"):
            if getattr(self, name) < 0:
                raise BadInput(f"--{name} must not be negative, got {getattr(self, name)}")
        if 0 < self.draft_vocab < 8:  # validation looks at the best 8
            raise BadInput(f"--draft_vocab must be at least 8, got {self.draft_vocab}")
        if self.draft_vocab and self.loss_vocab:
            raise BadInput("--draft_vocab and --loss_vocab exclude each other")
        if self.loss_vocab and self.head_type == "eagle3":
            raise BadInput("an EAGLE-3 head has its own lm_head: --draft_vocab, not --loss_vocab")
        if not self.save_minutes > 0:
            raise BadInput(f"--save_minutes must be positive, got {self.save_minutes}")
        if not 0 <= self.seed < 2**32:
            raise BadInput(f"--seed must be 0 to {2**32 - 1}, got {self.seed}")
        if self.precision not in ("bf16", "no"):
            raise BadInput(f"--precision must be bf16 or no, got {self.precision!r}")
        if not (self.epochs or self.steps or self.minutes):
            self.epochs = 3.0

    def chosen_recipe(self) -> Recipe:
        names = ("unroll_steps", "step_decay", "noise", "learning_rate", "warmup", "weight_decay")
        names += ("clip_norm", "clip_value", "shift_mask")
        changes = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.losses:
            changes["losses"] = parse_losses(self.losses)
        if self.schedule:
            changes["schedule"] = self.schedule
        recipe = choose_recipe(self.recipe, changes)
        if self.head_type == "eagle3" and "feature" in recipe.losses:
            raise BadInput(
                "an EAGLE-3 head's output is no feature of the target: leave the loss `feature` out"
            )
        return recipe

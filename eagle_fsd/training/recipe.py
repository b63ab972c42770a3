"""Recipes: how a head is trained, as one record, with the field's own as presets.

eagle      EAGLE-1/2 (SafeAILab/EAGLE branch v1, eagle/train/main.py): one step on true
           features, feature smooth-L1 + 0.1 soft cross-entropy, uniform noise, gradients
           clipped by value, AdamW (0.9, 0.95). Upstream's learning rate of 3e-5 after 2,000
           warm-up steps is for days of GPUs; here both are shares of the budget.
unrolled   the same losses with cross-entropy at full weight, unrolled for three steps on the
           head's own features (HASS, arXiv 2408.15766; EAGLE-3's training-time test). Default.
eagle3     EAGLE-3 (eagle/traineagle3): seven steps, each worth 0.8 of the one before, soft
           cross-entropy alone, no noise, no weight decay.
"""

import math
from dataclasses import dataclass, field, replace

from eagle_fsd.config import BadInput

SCHEDULES = ("cosine", "linear", "constant")
LOSSES = ("feature", "ce", "kl", "rkl", "js", "tv")


@dataclass(frozen=True)
class Recipe:
    """Everything that changes what the head becomes, besides data, shape and budget.

    Attributes:
        losses: name -> weight; see losses.py.
        unroll_steps: steps on the head's own output; 1 trains on true features only.
        step_decay: weight of a step relative to the one before it.
        noise: features get uniform noise in +-noise * 512 / length (upstream's).
        learning_rate: peak, after `warmup`, a share of the budget; then `schedule` down to
            `final_rate` of it.
        clip_norm, clip_value: largest gradient norm, largest entry; 0 is off.
        shift_mask: supervise the tokens that the assistant wrote; False is upstream's unshifted
            mask.
    """

    losses: dict[str, float] = field(default_factory=lambda: {"feature": 1.0, "ce": 1.0})
    unroll_steps: int = 3
    step_decay: float = 1.0
    noise: float = 0.1
    learning_rate: float = 1.5e-3
    warmup: float = 0.03
    schedule: str = "cosine"
    final_rate: float = 0.05
    weight_decay: float = 0.01
    clip_norm: float = 0.5
    clip_value: float = 0.0
    shift_mask: bool = True

    def __post_init__(self):
        if self.unroll_steps < 1:
            raise BadInput(f"unroll_steps must be at least 1, got {self.unroll_steps}")
        if not 0 < self.learning_rate <= 1000:
            raise BadInput(
                f"learning_rate must be above 0 and at most 1000, got {self.learning_rate}"
            )
        if not 0 < self.step_decay <= 1:
            raise BadInput(f"step_decay must be above 0 and at most 1, got {self.step_decay}")
        for name in ("warmup", "final_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"{name} is a share, 0 to 1, got {getattr(self, name)}")
        for name in ("noise", "weight_decay", "clip_norm", "clip_value"):
            if not getattr(self, name) >= 0:
                raise BadInput(f"{name} must not be negative, got {getattr(self, name)}")
        if self.schedule not in SCHEDULES:
            raise BadInput(f"unknown schedule {self.schedule!r}; known: {', '.join(SCHEDULES)}")

    def rate(self, done: float) -> float:
        """Learning rate when the share `done` of the budget is used."""
        if done < self.warmup:
            return self.learning_rate * done / self.warmup
        rest = (done - self.warmup) / max(1 - self.warmup, 1e-9)
        shape = {
            "cosine": 0.5 * (1 + math.cos(math.pi * min(rest, 1))),
            "linear": max(0.0, 1 - rest),
            "constant": 1.0,
        }[self.schedule]
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * shape)

    def step_weights(self) -> list[float]:
        """Weight of every unrolled step; they sum to 1."""
        weights = [self.step_decay**step for step in range(self.unroll_steps)]
        return [weight / sum(weights) for weight in weights]


RECIPES: dict[str, Recipe] = {
    "eagle": Recipe(
        losses={"feature": 1.0, "ce": 0.1},
        unroll_steps=1,
        learning_rate=1e-3,
        clip_norm=0.0,
        clip_value=0.5,
        schedule="linear",
    ),
    "unrolled": Recipe(),
    "eagle3": Recipe(
        losses={"ce": 1.0}, unroll_steps=7, step_decay=0.8, noise=0.0, weight_decay=0.0
    ),
}


def parse_losses(text: str) -> dict[str, float]:
    """ "feature=1 ce=0.1" as {"feature": 1.0, "ce": 0.1}.

    Raises:
        BadInput: an unknown loss, one given twice, a weight that is no positive number, or no
            loss at all.
    """
    weights = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name in weights:
            raise BadInput(f"loss {name!r} is given twice")
        try:
            weights[name] = float(value or 1)
        except ValueError:
            raise BadInput(f"loss {part!r}: write NAME=WEIGHT, for instance ce=0.1") from None
        if name not in LOSSES:
            raise BadInput(f"unknown loss {name!r}; known: {', '.join(LOSSES)}")
        if not 0 < weights[name] < math.inf:
            raise BadInput(f"loss {part!r}: the weight must be positive")
    if not weights:
        raise BadInput(f"no loss given; known: {', '.join(LOSSES)}")
    return weights


def choose_recipe(name: str, changes: dict) -> Recipe:
    """A preset with some of its values replaced.

    Raises:
        BadInput: unknown name, or a value out of range.
    """
    if name not in RECIPES:
        raise BadInput(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return replace(RECIPES[name], **changes)

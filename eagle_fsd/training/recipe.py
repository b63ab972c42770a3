"""Recipes: how a head is trained, as one record, with the field's own as presets.

eagle      EAGLE-1/2 (SafeAILab/EAGLE branch v1, eagle/train/main.py), but for its learning rate
           of 3e-5 after 2,000 warm-up steps, which is for days of GPUs
unrolled   the same losses, cross-entropy at full weight, unrolled on the head's own features (HASS,
           arXiv 2408.15766; EAGLE-3's training-time test); default
eagle3     EAGLE-3 (eagle/traineagle3)
mtp        to go on from an MTP layer: FastMTP (arXiv 2509.18362), whose cross-entropies weigh less
           from step to step

On a command line a recipe is a text: a preset, then what is changed of it, losses by their names:

    unrolled,unroll_steps=5,noise=0        eagle,feature=0,optimizer=muon
"""

import math
from dataclasses import dataclass, replace

from eagle_fsd.config import BadInput, check_known

LOSSES = ("feature", "ce")  # see losses.py
# from the peak at 0 down to 1 at the end: the share of the way to the final rate that is left
SCHEDULES = {
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
}
OPTIMIZERS = ("adamw", "muon")
WARMUP = 0.03  # share of the budget in which the learning rate rises to its peak
FINAL_RATE = 0.05  # where it ends, as a share of the peak
# least and largest value of every number
RANGES = {
    "unroll_steps": (1, 100),
    "step_decay": (0.01, 1),
    "learning_rate": (1e-9, 1000),
    **dict.fromkeys((*LOSSES, "noise", "weight_decay", "clip_norm", "clip_value"), (0, 1e9)),
}


@dataclass(frozen=True)
class Recipe:
    """Everything that changes what the head becomes, besides data, shape and budget.

    Attributes:
        feature, ce: weights of the losses.
        unroll_steps: steps on the head's own output; 1 trains on true features only.
        step_decay: weight of a step relative to the one before it.
        noise: features get uniform noise in +-noise * 512 / length (upstream's).
        learning_rate: peak, after WARMUP; then `schedule` down to FINAL_RATE.
        optimizer: adamw, or muon (Keller Jordan, kellerjordan.github.io/posts/muon), which takes
            the layers' matrices with AdamW's rate (arXiv 2502.16982) and leaves AdamW the rest.
        clip_norm, clip_value: largest gradient norm, largest entry; 0 is off.
    """

    feature: float = 1.0
    ce: float = 1.0
    unroll_steps: int = 3
    step_decay: float = 1.0
    noise: float = 0.1
    optimizer: str = "adamw"
    learning_rate: float = 1.5e-3
    schedule: str = "cosine"
    weight_decay: float = 0.01
    clip_norm: float = 0.5
    clip_value: float = 0.0

    def __post_init__(self):
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"{name} must be {low} to {high}, got {getattr(self, name)}")
        check_known("schedule", self.schedule, SCHEDULES)
        check_known("optimizer", self.optimizer, OPTIMIZERS)
        if not (self.feature or self.ce):
            raise BadInput(f"no loss has a weight; known losses: {', '.join(LOSSES)}")

    def rate(self, done: float) -> float:
        """Learning rate when the share `done` of the budget is used."""
        if done < WARMUP:
            return self.learning_rate * done / WARMUP
        left = SCHEDULES[self.schedule](min((done - WARMUP) / (1 - WARMUP), 1))
        return self.learning_rate * (FINAL_RATE + (1 - FINAL_RATE) * left)

    def step_weights(self) -> list[float]:
        """Weight of every unrolled step; they sum to 1."""
        weights = [self.step_decay**step for step in range(self.unroll_steps)]
        return [weight / sum(weights) for weight in weights]


RECIPES: dict[str, Recipe] = {
    "eagle": Recipe(
        ce=0.1, unroll_steps=1, learning_rate=1e-3, clip_norm=0.0, clip_value=0.5, schedule="linear"
    ),
    "unrolled": Recipe(),
    "eagle3": Recipe(feature=0.0, unroll_steps=7, step_decay=0.8, noise=0.0, weight_decay=0.0),
    "mtp": Recipe(feature=0.0, unroll_steps=4, step_decay=0.8, noise=0.0, learning_rate=3e-4),
}


def parse_recipe(text: str) -> Recipe:
    """A preset with some of its values replaced.

    Raises:
        BadInput: an unknown preset or field, or a value out of range.
    """
    name, *changes = text.split(",")
    check_known("recipe", name, RECIPES)
    preset, values = vars(RECIPES[name]), {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in preset:
            raise BadInput(f"recipe {text!r}: unknown field {key!r}; known: {', '.join(preset)}")
        try:
            values[key] = type(preset[key])(value)
        except ValueError as error:
            raise BadInput(f"recipe {text!r}: {key} is a number ({error})") from error
    return replace(RECIPES[name], **values)

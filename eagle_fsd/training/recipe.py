"""Recipes: how a head is trained, as one record, with the field's own as presets.

eagle      EAGLE-1/2 (SafeAILab/EAGLE branch v1, eagle/train/main.py), but for its learning rate,
           which is there 3e-5 after 2,000 warm-up steps, for days of GPUs
unrolled   the same losses, cross-entropy at full weight, unrolled on the head's own features (HASS,
           arXiv 2408.15766; EAGLE-3's training-time test)
eagle3     EAGLE-3 (eagle/traineagle3)
mtp        to go on from an MTP layer: FastMTP (arXiv 2509.18362), whose cross-entropies weigh less
           from step to step

On a command line a recipe is a text: a preset, then what is changed of it, losses by their names:

    unrolled,unroll_steps=5,noise=0        eagle,feature=0,optimizer=muon

A learning rate that is not given follows the width of the head, see `rate_at`.
"""

import math
from dataclasses import dataclass, replace

from eagle_fsd.config import BadInput, check_known, check_least

WARMUP = 0.03  # share of the budget in which the learning rate rises to its peak
FINAL_RATE = 0.05  # where it ends, as a share of the peak
# The widths between which a preset's learning rate falls, and to which part of itself
NARROW, WIDE, FALL = 576, 4096, 15


@dataclass(frozen=True)
class Recipe:
    """Everything that changes what the head becomes, besides data, shape and budget.

    Attributes:
        feature, ce: weights of the losses (losses.py).
        unroll_steps: steps on the head's own output; 1 trains on true features only.
        step_decay: weight of a step relative to the one before it.
        noise: features get uniform noise in +-noise * 512 / length (upstream's).
        optimizer: adamw, or muon (Keller Jordan, kellerjordan.github.io/posts/muon), which takes
            the layers' matrices with AdamW's rate (arXiv 2502.16982) and leaves AdamW the rest.
        learning_rate: peak, after WARMUP; then by `schedule`, cosine or linear, to FINAL_RATE. A
            preset's is that of a head of NARROW channels.
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
        check_least(self, feature=0, ce=0, unroll_steps=1, step_decay=0.01, learning_rate=1e-9)
        check_least(self, noise=0, weight_decay=0, clip_norm=0, clip_value=0)
        check_known("schedule", self.schedule, ("cosine", "linear"))
        check_known("optimizer", self.optimizer, ("adamw", "muon"))
        if not (self.feature or self.ce):
            raise BadInput("the recipe gives no loss a weight: feature and ce are both 0")

    def rate(self, done: float) -> float:
        """Learning rate when the share `done` of the budget is used."""
        if done < WARMUP:
            return self.learning_rate * done / WARMUP
        behind = min((done - WARMUP) / (1 - WARMUP), 1)  # from the peak at 0 to the end at 1
        left = 1 - behind if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * behind))
        return self.learning_rate * (FINAL_RATE + (1 - FINAL_RATE) * left)


RECIPES: dict[str, Recipe] = {
    "eagle": Recipe(
        ce=0.1, unroll_steps=1, learning_rate=1e-3, clip_norm=0.0, clip_value=0.5, schedule="linear"
    ),
    "unrolled": Recipe(),
    "eagle3": Recipe(feature=0.0, unroll_steps=7, step_decay=0.8, noise=0.0, weight_decay=0.0),
    "mtp": Recipe(feature=0.0, unroll_steps=4, step_decay=0.8, noise=0.0, learning_rate=3e-4),
}
# what a head of each type is trained by where no recipe is named
RECIPE_OF = {"eagle": "unrolled", "eagle3": "eagle3", "mtp": "mtp"}


FROM_NOTHING = ("eagle", "unrolled", "eagle3")  # whose learning rates were chosen at NARROW


def rate_at(width: int, rate: float) -> float:
    """What a learning rate that was chosen at NARROW becomes for a head of another width: 1.5e-3 at
    576 channels, 1e-4 at 4,096.

    Ours was chosen at the one end, others train EAGLE-3 with 1e-4 at the other (docs/heads.md).
    Between them it is a power of the width, of exponent log(15) / log(4096 / 576) = 1.38, which
    joins the two and was measured nowhere. Beyond them it stays: SpecForge has 1e-4 at 8,192 too.
    """
    share = math.log(min(max(width, NARROW), WIDE) / NARROW) / math.log(WIDE / NARROW)
    return rate * FALL**-share


def parse_recipe(text: str, width: int = NARROW) -> Recipe:
    """A preset with some of its values replaced, for a head of so many channels."""
    name, *changes = text.split(",")
    check_known("recipe", name, RECIPES)
    preset, values = vars(RECIPES[name]), {}
    if name in FROM_NOTHING:
        values["learning_rate"] = rate_at(width, preset["learning_rate"])
    for change in changes:
        key, _, value = change.partition("=")
        check_known(f"field of recipe {name}", key, preset)
        try:
            values[key] = type(preset[key])(value)
        except ValueError as error:
            raise BadInput(f"recipe {text!r}: {key} is a number ({error})") from error
    return replace(RECIPES[name], **values)

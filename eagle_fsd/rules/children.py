"""Which drafted child is taken, once a rule lets one be taken; and the controls.

    random      as exact, but where the exact token was not drafted a drafted child is taken with
                probability `rate`, whatever the divergence
    accept-all  as exact, but where the exact token was not drafted a drafted child is always taken

A rule has to beat the controls at the same speed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import Guard, Rule, VerifiedTree

Weights = dict[int, float]  # child -> probability


@dataclass(frozen=True)
class ChildRule(Rule):
    """Goes to the exact token's child; where there is none, maybe to one of the options.

    Emitted distribution, with C the drafted tokens: P(c) + take P(not in C) choice(c), and
    (1 - take) P of other tokens; so TV = take P(not in C). Its field `child` is a name in
    CHILD_CHOICES.
    """

    columns: ClassVar[tuple[str, ...]] = ("prob", "regret", "draft_logit")

    def __post_init__(self):
        super().__post_init__()
        check_known("child", self.child, CHILD_CHOICES)

    def check(self, sampling: SamplingConfig, guards: Sequence[Guard], drafter: Drafter) -> None:
        super().check(sampling, guards, drafter)
        if self.child == "sample" and sampling.temperature == 0:
            raise BadInput("child 'sample' needs temperature > 0; use draft or target")

    def take(self, tree: VerifiedTree, v: int) -> float:
        """Probability that an option is taken at v where the exact token is no child."""
        raise NotImplementedError

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        hit = tree.hit(v)
        if hit is not None:
            return hit
        options = tree.options(v)
        taken = options and tree.uniform(v, 2) < self.take(tree, v)
        return self.taken(tree, v, options) if taken else None

    def tv(self, tree: VerifiedTree, v: int) -> float:
        outside = tree.undrafted_prob(v) if tree.options(v) else 0.0
        return outside and outside * self.take(tree, v)

    def choice(self, tree: VerifiedTree, options: list[int]) -> Weights:
        return CHILD_CHOICES[self.child](tree, options)

    def taken(self, tree: VerifiedTree, v: int, options: list[int]) -> int:
        weights = self.choice(tree, options)
        return list(weights)[pick(list(weights.values()), tree.uniform(v, 1))]


@dataclass(frozen=True)
class Random(ChildRule):
    """Takes a child by chance alone: with probability `rate`; 0 is exact, 1 accepts all."""

    takes_chances: ClassVar[bool] = True
    rate: float = 0.05
    child: str = "target"

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.rate <= 1:
            raise BadInput(f"the rate is a probability, 0 to 1; got {self.rate}")

    def take(self, tree: VerifiedTree, v: int) -> float:
        return self.rate


@dataclass(frozen=True)
class AcceptAll(ChildRule):
    """Every round goes down to a leaf: the loose end of all rules."""

    lossless_at: ClassVar[float] = math.nan  # its first field is no dial
    child: str = "target"

    def take(self, tree: VerifiedTree, v: int) -> float:
        return 1.0


# --- the choices --------------------------------------------------------------------------------


def most_probable_under_draft(tree: VerifiedTree, options: list[int]) -> Weights:
    """The first, where the drafter has no distribution."""
    return {max(options, key=lambda c: tree.value("draft_logit", c)): 1.0}


def most_probable_under_target(tree: VerifiedTree, options: list[int]) -> Weights:
    """By the raw logit where P does not tell them apart, as mostly at temperature 0."""
    liking = {c: (tree.value("prob", c), -tree.value("regret", c)) for c in options}
    return {max(options, key=liking.__getitem__): 1.0}


def sampled(tree: VerifiedTree, options: list[int]) -> Weights:
    """A draw from the draft's raw distribution Q, renormalised over the options."""
    logits = [tree.value("draft_logit", c) for c in options]
    top = max(logits)
    if not top > -math.inf:  # no probability anywhere, or no distribution: all alike
        logits, top = [0.0] * len(options), 0.0
    weights = [math.exp(logit - top) for logit in logits]
    return {c: weight / sum(weights) for c, weight in zip(options, weights, strict=True)}


CHILD_CHOICES: dict[str, Callable[[VerifiedTree, list[int]], Weights]] = {
    "draft": most_probable_under_draft,
    "target": most_probable_under_target,
    "sample": sampled,
}


def pick(weights: Sequence[float], uniform: float) -> int:
    """The index drawn in proportion to the weights; one of weight zero never is."""
    point, last = uniform * math.fsum(weights), 0
    for index, weight in enumerate(weights):
        point -= weight
        if weight > 0:
            last = index
            if point < 0:
                break
    return last

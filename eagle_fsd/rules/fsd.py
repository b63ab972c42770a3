"""Judging the place: a draft may be taken where the divergence of target and draft is small.

    exact      x ~ P_v; if x is a child go there, else emit x and stop           (lossless)
    fsd        as exact, but if x is no child and D(v) passes, take a drafted child
               (M. Holsman, TensorRT-LLM #10481, 2026)
    fsd-paper  if D(v) passes take a drafted child, else emit x and stop
               (Holsman et al., Findings of ACL 2025, arXiv 2502.20704)
    random     as fsd, but by chance, whatever D is: the control, which a rule has to beat at the
               same speed

D(v) passes iff T > 0 and D(v) <= T; NaN never passes. Which child is taken: CHILD_CHOICES.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.decoding.divergence import DIVERGENCES, INFINITE_OUTSIDE
from eagle_fsd.decoding.verified import Rule, VerifiedTree

# --- which of the options is taken: child -> probability ----------------------------------------


def most_probable_under_draft(tree: VerifiedTree, options: list[int]) -> dict[int, float]:
    """The first, where the drafter has no distribution."""
    return {max(options, key=lambda c: tree.value("draft_logit", c)): 1.0}


def most_probable_under_target(tree: VerifiedTree, options: list[int]) -> dict[int, float]:
    """By the raw logit where P does not tell them apart, as mostly at temperature 0."""
    liking = {c: (tree.value("prob", c), -tree.value("regret", c)) for c in options}
    return {max(options, key=liking.__getitem__): 1.0}


def sampled(tree: VerifiedTree, options: list[int]) -> dict[int, float]:
    """A draw from the draft's raw distribution Q, renormalised over the options."""
    logits = [tree.value("draft_logit", c) for c in options]
    top = max(logits)
    if not top > -math.inf:  # no probability anywhere, or no distribution: all alike
        logits, top = [0.0] * len(options), 0.0
    weights = [math.exp(logit - top) for logit in logits]
    return {c: weight / sum(weights) for c, weight in zip(options, weights, strict=True)}


CHILD_CHOICES: dict[str, Callable[[VerifiedTree, list[int]], dict[int, float]]] = {
    "draft": most_probable_under_draft,
    "target": most_probable_under_target,
    "sample": sampled,
}

# --- the rules ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact(Rule):
    """The exact token if it is a child. Lossless for any drafts, since every token is exact."""

    step = Rule.step  # stated, as every rule in the table states what it does

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return 0.0


@dataclass(frozen=True)
class ChildRule(Rule):
    """Goes to the exact token's child; where there is none, maybe to one of the options.

    Emitted distribution, with C the drafted tokens and the stop tokens that a guard keeps:
    P(c) + take P(not in C) choice(c), and (1 - take) P of other tokens; so TV = take P(not in C).
    Its field `child` is a name in CHILD_CHOICES.
    """

    columns: ClassVar[tuple[str, ...]] = ("prob", "regret", "draft_logit")

    def __post_init__(self):
        super().__post_init__()
        check_known("child", self.child, CHILD_CHOICES)

    def check(self, sampling, drafter, guards=()) -> None:
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
        if not options or tree.uniform(v, 2) >= self.take(tree, v):
            return None
        return tree.pick(v, CHILD_CHOICES[self.child](tree, options))

    def tv(self, tree: VerifiedTree, v: int) -> float:
        outside = tree.replaceable_prob(v) if tree.allowed(v) else 0.0
        return outside and outside * self.take(tree, v)


@dataclass(frozen=True)
class Random(ChildRule):
    """The exact token if it was drafted; else, with probability `rate`, a draft by chance: the
    control that every test must beat. 0 is exact, 1 accepts all."""

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    rate: float = 0.05
    child: str = "target"

    def take(self, tree: VerifiedTree, v: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Fsd(ChildRule):
    """The exact token if it was drafted; else a draft, if the divergence D of target and drafter in
    its place is at most the threshold. FSD in its author's form of 2026.

    Attributes:
        threshold: T; 0 passes nowhere, `inf` wherever D is a number.
        divergence: a name in DIVERGENCES.
    """

    threshold: float = 0.3
    child: str = "target"
    divergence: str = "js"

    def __post_init__(self):
        super().__post_init__()
        check_known("divergence", self.divergence, DIVERGENCES)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*ChildRule.columns, self.divergence)

    def check(self, sampling, drafter, guards=()) -> None:
        super().check(sampling, drafter, guards)
        infinite = drafter.vocab_size is not None and self.divergence in INFINITE_OUTSIDE
        if infinite and 0 < self.threshold < math.inf:
            raise BadInput(
                f"divergence {self.divergence} is infinite wherever the target has mass outside "
                f"this drafter's part of its vocabulary, so threshold {self.threshold:g} would "
                "never pass: use js, tv or kl_draft_target, or a head over the whole vocabulary"
            )

    def take(self, tree: VerifiedTree, v: int) -> float:
        passes = self.threshold > 0 and tree.value(self.divergence, v) <= self.threshold
        return float(passes)


@dataclass(frozen=True)
class FsdPaper(Fsd):
    """A draft wherever the divergence D is at most the threshold, else the exact token, which ends
    the round even if it was drafted. FSD as it was published.

    Emitted distribution where D passes: choice(c), so TV = 1 - P(c) for a fixed choice.
    """

    lossless_at: ClassVar[float] = math.nan  # 0 turns down what exact takes
    child: str = "draft"  # as published; fsd's own default costs less (docs/rules.md)

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        # the options, and the exact token's child, which needs nobody's leave
        options, hit = tree.options(v), tree.hit(v)
        steps = [c for c in tree.children[v] if c in options or c == hit]
        if not steps or not self.take(tree, v):
            return None
        return tree.pick(v, CHILD_CHOICES[self.child](tree, steps))

    def tv(self, tree: VerifiedTree, v: int) -> float:
        options = tree.allowed(v)
        if not options or not self.take(tree, v):
            return 0.0
        # of the tokens that need not be kept; the others are emitted as drawn
        drafts = [c for c in tree.children[v] if not tree.keeps(tree.tokens[c])]
        prob = {c: tree.value("prob", c) for c in drafts}
        exact = {c: p for c, p in prob.items() if p and c not in options}
        # what is drawn makes no other difference
        exact[None] = math.exp(tree.log_goes_on(v)) - math.fsum(exact.values())
        emitted = dict.fromkeys(prob, 0.0)
        for hit, p in exact.items():
            choice = CHILD_CHOICES[self.child](
                tree, [c for c in drafts if c in options or c == hit]
            )
            for c, share in choice.items():
                emitted[c] += p * share
        gaps = (abs(emitted[c] - prob[c]) for c in prob)
        return 0.5 * (math.fsum(gaps) + tree.replaceable_prob(v))

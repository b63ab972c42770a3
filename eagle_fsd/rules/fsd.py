"""Judging the place: a draft may be taken where the divergence of target and draft is small.

    exact      x ~ P_v; if x is a child go there, else emit x and stop           (lossless)
    fsd        as exact, but if x is no child and D(v) passes, take a drafted child
               (M. Holsman, TensorRT-LLM #10481, 2026)
    fsd-paper  if D(v) passes take a drafted child, else emit x and stop
               (Holsman et al., Findings of ACL 2025, arXiv 2502.20704)

D(v) passes iff T > 0 and D(v) <= T; NaN never passes. Which child is taken: children.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.divergence import DIVERGENCES, INFINITE_OUTSIDE, canonical_name
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import Guard, Rule, VerifiedTree
from eagle_fsd.rules.children import ChildRule


@dataclass(frozen=True)
class Exact(Rule):
    """The exact token if it is a child. Lossless for any drafts, since every token is exact."""

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Fsd(ChildRule):
    """The exact token if it is a child, else a drafted child where D passes.

    Attributes:
        threshold: T; 0 passes nowhere, `inf` wherever D is a number.
        divergence: a name in DIVERGENCES, or one of their aliases.
    """

    threshold: float = 0.3
    child: str = "target"
    divergence: str = "js"

    def __post_init__(self):
        super().__post_init__()
        # a divergence's alias becomes its own name
        object.__setattr__(self, "divergence", canonical_name(self.divergence))
        if not self.threshold >= 0:  # NaN too
            raise BadInput(f"threshold must be 0 or above, got {self.threshold}")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*ChildRule.columns, self.divergence)

    def check(self, sampling: SamplingConfig, guards: Sequence[Guard], drafter: Drafter) -> None:
        super().check(sampling, guards, drafter)
        infinite = drafter.vocab_size is not None and self.divergence in INFINITE_OUTSIDE
        if infinite and 0 < self.threshold < math.inf:
            size = f"{drafter.vocab_size} tokens only" if drafter.vocab_size else "what it offers"
            usable = ", ".join(name for name in DIVERGENCES if name not in INFINITE_OUTSIDE)
            raise BadInput(
                f"divergence {self.divergence} is infinite wherever the target has mass outside "
                f"the draft vocabulary, and this drafter's is {size}: threshold "
                f"{self.threshold:g} would never pass. Use {usable}, or a head over the whole "
                "vocabulary"
            )

    def take(self, tree: VerifiedTree, v: int) -> float:
        passes = self.threshold > 0 and tree.value(self.divergence, v) <= self.threshold
        return float(passes)


@dataclass(frozen=True)
class FsdPaper(Fsd):
    """A drafted child where D passes, else the exact token ends the round, child or not.

    Emitted distribution where D passes: choice(c), so TV = 1 - P(c) for a fixed choice.
    """

    lossless_at: ClassVar[float] = math.nan  # 0 turns down what exact takes
    child: str = "draft"  # as published; fsd's own default costs less (docs/rules.md)

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        steps = self.steps(tree, v, tree.hit(v))
        return self.taken(tree, v, steps) if steps and self.take(tree, v) else None

    def steps(self, tree: VerifiedTree, v: int, hit: int | None) -> list[int]:
        """The options, and the exact token's child, which needs nobody's leave."""
        options = tree.options(v)
        return [c for c in tree.children[v] if c in options or c == hit]

    def tv(self, tree: VerifiedTree, v: int) -> float:
        options = tree.options(v)
        if not options or not self.take(tree, v):
            return 0.0
        prob = {c: tree.value("prob", c) for c in tree.children[v]}
        exact = {c: p for c, p in prob.items() if p and c not in options}
        exact[None] = 1 - math.fsum(exact.values())  # what is drawn makes no other difference
        emitted = dict.fromkeys(prob, 0.0)
        for hit, p in exact.items():
            for c, share in self.choice(tree, self.steps(tree, v, hit)).items():
                emitted[c] += p * share
        gaps = (abs(emitted[c] - prob[c]) for c in prob)
        return 0.5 * (math.fsum(gaps) + tree.undrafted_prob(v))

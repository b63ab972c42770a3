"""Judging the place: a draft may be taken where the divergence of target and draft is small.

    exact      x ~ P_v; if x is a child go there, else emit x and stop           (lossless)
    fsd        as exact, but if x is no child and D(v) passes, take a drafted child
               (M. Holsman, TensorRT-LLM #10481, 2026)
    fsd-paper  if D(v) passes take a drafted child, else emit x and stop
               (Holsman et al., Findings of ACL 2025, arXiv 2502.20704)

D(v) passes iff T > 0 and D(v) <= T; NaN never passes. Which child is taken: children.py.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.columns import divergence_column
from eagle_fsd.decoding.divergence import DIVERGENCES, INFINITE_OUTSIDE, canonical_name
from eagle_fsd.decoding.rule import Rule
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.children import ChildRule

LOGITS = ("raw", "processed")  # before the sampling filters, or after them


@dataclass(frozen=True)
class Exact(Rule):
    """The drawn token if it is a child. Lossless for any drafts: every emitted token is x."""

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return 0.0


class Judging(Rule):
    """A rule that asks D(v), by its fields `divergence` and `logits`; `limit` names the field that
    D must not exceed."""

    limit: ClassVar[str]

    def __post_init__(self):
        super().__post_init__()
        # a divergence's alias becomes its own name
        object.__setattr__(self, "divergence", canonical_name(self.divergence))
        check_known("logits", self.logits, LOGITS)
        if not getattr(self, self.limit) >= 0:  # NaN too
            raise BadInput(f"{self.limit} must be 0 or above, got {getattr(self, self.limit)}")

    @property
    def divergence_column(self) -> str | None:
        return divergence_column(self.divergence, self.logits)

    def passes(self, tree: VerifiedTree, v: int) -> bool:
        limit = getattr(self, self.limit)
        return limit > 0 and tree.at(self.divergence_column, v) <= limit

    def check(self, sampling: SamplingConfig, draft_vocab_size: int | None) -> None:
        super().check(sampling, draft_vocab_size)
        if self.divergence_column is None:
            return
        if self.logits == "processed" and sampling.temperature == 0:
            raise BadInput(
                "logits 'processed' needs temperature > 0: at 0 both distributions are one-hot. "
                "Use 'raw'"
            )
        limit = getattr(self, self.limit)
        infinite = draft_vocab_size is not None and self.divergence in INFINITE_OUTSIDE
        if infinite and 0 < limit < math.inf:
            size = f"{draft_vocab_size} tokens only" if draft_vocab_size else "what it offers"
            usable = ", ".join(name for name in DIVERGENCES if name not in INFINITE_OUTSIDE)
            raise BadInput(
                f"divergence {self.divergence} is infinite wherever the target has mass outside "
                f"the draft vocabulary, and this drafter's is {size}: {self.limit} {limit:g} "
                f"would never pass. Use {usable}, or a head over the whole vocabulary"
            )


@dataclass(frozen=True)
class Fsd(Judging, ChildRule):
    """The drawn token if it is a child, else a drafted child where D passes.

    Attributes:
        threshold: T; 0 passes nowhere, `inf` wherever D is a number.
        logits: `raw` compares the two rows as they come, `processed` after temperature, top-k and
            top-p (refused at temperature 0, where both are one-hot).
    """

    limit: ClassVar[str] = "threshold"
    threshold: float = 0.35
    child: str = "target"
    divergence: str = "js"
    logits: str = "raw"

    @property
    def columns(self) -> tuple[str, ...]:
        return (*ChildRule.columns, self.divergence_column)

    def take(self, tree: VerifiedTree, v: int) -> float:
        return float(self.passes(tree, v))


@dataclass(frozen=True)
class FsdPaper(Fsd):
    """A drafted child where D passes, else the drawn token ends the round, child or not.

    Emitted distribution where D passes: choice(c), so TV = 1 - P(c) for a fixed choice.
    """

    exact: ClassVar[float] = math.nan  # 0 turns down what exact takes
    child: str = "draft"  # as published; fsd's own default costs half the regret

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        steps = self.steps(tree, v, tree.hit(v))
        return self.taken(tree, v, steps) if steps and self.take(tree, v) else None

    def steps(self, tree: VerifiedTree, v: int, hit: int | None) -> list[int]:
        """The options, and the drawn token's child, which needs nobody's leave."""
        options = tree.options(v)
        return [c for c in tree.children[v] if c in options or c == hit]

    def tv(self, tree: VerifiedTree, v: int) -> float:
        options = tree.options(v)
        if not options or not self.take(tree, v):
            return 0.0
        prob = {c: tree.of("prob", c) for c in tree.children[v]}
        drawn = {c: p for c, p in prob.items() if p and c not in options}
        drawn[None] = 1 - math.fsum(drawn.values())  # what is drawn makes no other difference
        emitted = dict.fromkeys(prob, 0.0)
        for hit, p in drawn.items():
            for c, share in self.choice(tree, self.steps(tree, v, hit)).items():
                emitted[c] += p * share
        gaps = (abs(emitted[c] - prob[c]) for c in prob)
        return 0.5 * (math.fsum(gaps) + tree.outside(v))

    def expected_lengths(self, tree: VerifiedTree) -> list[float]:
        """L(v) = [D(v) passes] (1 + max_c L(c)), 0 at a leaf."""
        length_N = [0.0] * len(tree.tokens)
        for v in reversed(range(len(length_N))):
            options = tree.options(v)
            if options and self.take(tree, v):
                length_N[v] = 1 + max(length_N[c] for c in options)
        return length_N

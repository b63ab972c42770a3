"""Judging the token: another draft is taken where its probability under the target is large enough.

    ratio    the child of least regret, log P(argmax) - log P(c), if that is at most c
             (AdaptiveSpec, arXiv 2609.02897; MARS, arXiv 2601.15498, in other words)
    typical  P(c) > min(epsilon, sqrt(epsilon) exp(-H(P)))      (Medusa, arXiv 2401.10774)
    relaxed  c among the target's 10 best and P(c) >= P(best) - delta
             (TensorRT-LLM's relaxed acceptance of thinking tokens)

P is the raw distribution. The sources of the last two ask every draft so, and typical's takes P
after the temperature. Here they are asked where the exact token is no child, as `fsd` is, and
compared at what they add to exact.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.decoding.verified import Rule, VerifiedTree

RELAXED_TOP = 10  # TensorRT-LLM's relaxed_topk


class TokenRule(Rule):
    """The exact token's child if there is one, else the option of least regret, if it is admitted.

    Emitted distribution: P(c), and all of P(not in C) on that option, C the drafted tokens and the
    stop tokens that a guard keeps.
    """

    columns: ClassVar[tuple[str, ...]] = ("regret", "prob")

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        """A draft may be taken although the exact token is another. Of two the one of less regret
        is admitted if the other is."""
        raise NotImplementedError

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        hit = tree.hit(v)
        return self.admitted(tree, tree.options(v)) if hit is None else hit

    def admitted(self, tree: VerifiedTree, options: list[int]) -> int | None:
        best = min(options, key=lambda c: tree.value("regret", c), default=None)
        return best if best is not None and self.admits(tree, best) else None

    def tv(self, tree: VerifiedTree, v: int) -> float:
        if self.admitted(tree, tree.allowed(v)) is None:
            return 0.0
        return tree.replaceable_prob(v)


@dataclass(frozen=True)
class Ratio(TokenRule):
    """The exact token if it was drafted; else the draft of least regret, if that is at most the
    `limit`, in nats. 0 is exact, `inf` accepts all.

    It is a floor on the ratio P(token) / P(argmax), e^-limit."""

    limit: float = 1.0

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        return self.limit > 0 and tree.value("regret", child) <= self.limit


@dataclass(frozen=True)
class Typical(TokenRule):
    """The exact token if it was drafted; else the draft of least regret, if its probability is
    above `epsilon`, or above less where the target is unsure. Smaller is looser, `inf` is exact.

    exp(-H) is the probability of a uniform choice of P's entropy."""

    columns: ClassVar[tuple[str, ...]] = (*TokenRule.columns, "raw_prob", "entropy")
    lossless_at: ClassVar[float] = math.inf
    epsilon: float = 0.09

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        flat = math.exp(-tree.value("entropy", tree.parents[child]))
        limit = min(self.epsilon, math.sqrt(self.epsilon) * flat)
        return tree.value("raw_prob", child) > limit


@dataclass(frozen=True)
class Relaxed(TokenRule):
    """The exact token if it was drafted; else the draft of least regret, if its probability is at
    most `delta` below the best one's. Larger is looser, 0 is exact."""

    columns: ClassVar[tuple[str, ...]] = (*TokenRule.columns, "top1", "rank")
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    delta: float = 0.6

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        if self.delta == 0 or tree.value("rank", child) >= RELAXED_TOP:
            return False
        best = tree.value("top1", tree.parents[child])
        return -math.expm1(-tree.value("regret", child)) * best <= self.delta

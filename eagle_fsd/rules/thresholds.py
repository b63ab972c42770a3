"""Thresholds on the target's probability of a draft, of its raw distribution.

    typical  P(c) > min(epsilon, delta exp(-H(P)))      (Medusa, arXiv 2401.10774)
    relaxed  c among the target's `top` best and P(c) >= P(best) - delta
             (TensorRT-LLM's relaxed acceptance of thinking tokens)

Both sources ask every draft so, and the first also takes P after the temperature. Here they are
asked where the exact token is no child, as `fsd` is, and compared at what they add to exact.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, check_least
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.price import TokenRule


@dataclass(frozen=True)
class Typical(TokenRule):
    """Typical acceptance; smaller is looser.

    Attributes:
        epsilon: the probability that is enough wherever P is not flat; `inf` is exact.
        delta: how far below exp(-H), the probability of a uniform choice of that entropy, a token
            may be; 0: the source's sqrt(epsilon).
    """

    columns: ClassVar[tuple[str, ...]] = (*TokenRule.columns, "raw_prob", "entropy")
    lossless_at: ClassVar[float] = math.inf
    epsilon: float = 0.09
    delta: float = 0.0

    def __post_init__(self):
        if not (self.epsilon >= 0 and self.delta >= 0):
            raise BadInput(
                f"epsilon and delta must be 0 or above, got {self.epsilon} and {self.delta}"
            )

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        flat = math.exp(-tree.value("entropy", tree.parents[child]))
        limit = min(self.epsilon, (self.delta or math.sqrt(self.epsilon)) * flat)
        return tree.value("raw_prob", child) > limit


@dataclass(frozen=True)
class Relaxed(TokenRule):
    """Top-N and delta; larger is looser.

    Attributes:
        delta: how far a draft's probability may be below the best one's; 0 is exact.
        top: N.
    """

    columns: ClassVar[tuple[str, ...]] = (*TokenRule.columns, "top1", "rank")
    delta: float = 0.6
    top: int = 10

    def __post_init__(self):
        check_least(self, top=1)
        if not 0 <= self.delta <= 1:
            raise BadInput(f"the delta is a probability, got {self.delta}")

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        if self.delta == 0 or tree.value("rank", child) >= self.top:
            return False
        best = tree.value("top1", tree.parents[child])
        return -math.expm1(-tree.value("regret", child)) * best <= self.delta

"""Rules that say how probable each draft becomes; what is drawn then stays as close to x as can be.

In a deterministic tree the drafter's distribution plays no part: such a rule tilts P on the drafts,
and the token is drawn from the tilted distribution, coupled maximally with the exact token.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import Guard, Rule, VerifiedTree
from eagle_fsd.rules.children import pick


class Coupled(Rule):
    """Draws from a distribution that differs from P on the drafts, coupled maximally with the exact
    token x.

    x is kept with probability min(1, new / P); else one is drawn from what exceeds P, which lies
    on children only. TV is the sum of that.
    """

    columns: ClassVar[tuple[str, ...]] = ("log_prob",)

    def check(self, sampling: SamplingConfig, guards: Sequence[Guard], drafter: Drafter) -> None:
        super().check(sampling, guards, drafter)
        if guards and sampling.temperature > 0:
            raise BadInput(
                "guards go with this rule at temperature 0 only: above it the rule weighs the "
                "exact token against all drafts, and a guard would leave some out"
            )

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        """log of the new probability over P, of a child's token, or of one that was not drafted."""
        raise NotImplementedError

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        if not tree.children[v]:
            return None
        hit = tree.hit(v)
        if tree.uniform(v, 2) < math.exp(min(0.0, self.tilt(tree, v, hit))):
            return hit
        excess = self.excess(tree, v)
        if not any(excess.values()):  # x exceeds its share by rounding alone
            return hit
        return list(excess)[pick(list(excess.values()), tree.uniform(v, 1))]

    def excess(self, tree: VerifiedTree, v: int) -> dict[int, float]:
        """How far each child's new probability exceeds P."""
        logps = {c: tree.value("log_prob", c) for c in tree.children[v]}
        news = {c: math.exp(p + self.tilt(tree, v, c)) for c, p in logps.items()}
        return {c: max(0.0, news[c] - math.exp(p)) for c, p in logps.items()}

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return math.fsum(self.excess(tree, v).values())

"""Rules that say how probable each draft becomes; what is drawn then stays as close to x as can be.

    cactus    advance with probability min(1, pi + sqrt(2 delta pi (1 - pi))), pi = P(C)
              (Cactus, arXiv 2604.04987: a bound of delta on the KL to second order)
    mentored  advance as often as KL(emitted || P) <= kl allows (mentored decoding,
              V. Tran-Thien 2023; arXiv 2609.30474)
    sglang    drafts in their order, c_i with P(c_1) + .. + P(c_i) >= acc u, or P(c_i) >= single
              (SGLang's speculative_accept_threshold_acc and _single; 1 and 1: exact)

The first two are given for one sampled draft. In a deterministic tree Q plays no part: raising the
probability that the round goes on costs least if the draft is drawn from P restricted to C, so both
raise P(C) as a whole. At temperature 0 P(C) is 0 or 1 and all of them are exact: refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.rule import Guard, Rule
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.children import pick


class Coupled(Rule):
    """Draws from a distribution that differs from P on the drafts, coupled maximally with the exact
    token x.

    x is kept with probability min(1, new / P); else one is drawn from what exceeds P, which lies
    on children only. TV is the sum of that.
    """

    columns: ClassVar[tuple[str, ...]] = ("log_prob",)

    def check(
        self, sampling: SamplingConfig, guards: Sequence[Guard], draft_vocab_size: int | None
    ) -> None:
        super().check(sampling, guards, draft_vocab_size)
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


class Sampled(Coupled):
    """One of the rules of this file; above temperature 0 only."""

    def check(
        self, sampling: SamplingConfig, guards: Sequence[Guard], draft_vocab_size: int | None
    ) -> None:
        super().check(sampling, guards, draft_vocab_size)
        if sampling.temperature == 0:
            raise BadInput(
                "at temperature 0 this rule is exact: raise --temperature, or take the rule exact"
            )


class Raised(Sampled):
    """Raises the probability pi of all drafts together to `raised(pi)`."""

    def raised(self, pi: float) -> float:
        """The new probability, pi to 1, of 0 < pi < 1."""
        raise NotImplementedError

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        pi = math.fsum(math.exp(tree.value("log_prob", c)) for c in tree.children[v])
        if not 0 < pi < 1:
            return 0.0
        new = self.raised(pi)
        if child is None:
            return math.log((1 - new) / (1 - pi)) if new < 1 else -math.inf
        return math.log(new / pi)


@dataclass(frozen=True)
class Cactus(Raised):
    """Its `delta`, nats: 0 is exact, `inf` always takes a draft."""

    delta: float = 0.1

    def __post_init__(self):
        if not self.delta >= 0:
            raise BadInput(f"the delta must be 0 or above, got {self.delta}")

    def raised(self, pi: float) -> float:
        return min(1.0, pi + math.sqrt(2 * self.delta * pi * (1 - pi)))


@dataclass(frozen=True)
class Mentored(Raised):
    """Its `kl`, nats of KL(emitted || P) at every place: 0 is exact, `inf` always takes a
    draft."""

    kl: float = 0.1

    def __post_init__(self):
        if not self.kl >= 0:
            raise BadInput(f"the kl must be 0 or above, got {self.kl}")

    def raised(self, pi: float) -> float:
        """By halving: the cost grows from 0 at pi to -log pi at 1."""
        if self.kl >= -math.log(pi):
            return 1.0
        low, high = pi, 1.0
        for _ in range(60 if self.kl else 0):
            new = (low + high) / 2
            cost = new * math.log(new / pi)
            cost += (1 - new) * math.log((1 - new) / (1 - pi)) if new < 1 else 0.0
            low, high = (new, high) if cost <= self.kl else (low, new)
        return low


@dataclass(frozen=True)
class Sglang(Sampled):
    """SGLang's two thresholds.

    Attributes:
        acc: the sum of probabilities that is enough to take a draft; 1 is exact.
        single: a draft of this probability is taken as soon as it is asked; at 1 none is.
    """

    exact: ClassVar[float] = 1.0
    acc: float = 1.0
    single: float = 1.0

    def __post_init__(self):
        if not 0 < self.acc <= 1 or not 0 <= self.single <= 1:
            raise BadInput(
                f"the thresholds are probabilities, acc above 0; got acc "
                f"{self.acc}, single {self.single}"
            )

    def taken(self, tree: VerifiedTree, v: int) -> dict[int, float]:
        """The new probability of every child."""
        taken, below, reached = {}, 0.0, 0.0
        for c in tree.children[v]:
            prob = math.exp(tree.value("log_prob", c))
            below += prob
            sure = 0 < prob >= self.single < 1
            now = max(reached, 1.0 if sure else min(1.0, below / self.acc))
            taken[c], reached = now - reached, now
        return taken

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        if self.acc == self.single == 1:
            return 0.0
        taken = self.taken(tree, v)
        if child is None:
            old = math.fsum(math.exp(tree.value("log_prob", c)) for c in taken)
            old, new = 1 - old, 1 - math.fsum(taken.values())
        else:
            old, new = math.exp(tree.value("log_prob", child)), taken[child]
        return math.log(new / old) if new > 0 < old else -math.inf if old > 0 else 0.0

"""Judging the token: a draft costs its regret, log P(argmax) - log P(c), raw, in nats.

    ratio  x's child if there is one, else the child of least regret if that is at most c
           (AdaptiveSpec, arXiv 2609.02897; MARS, arXiv 2601.15498, in other words)
    path   the path through the whole tree whose tokens are worth their regret at b nats a token;
           ours, no source does it in trees (nearest: ASD, arXiv 2608.03447, on chains)

The price b of `path` means the same at every temperature. C(v) are the options at v, V(leaf) = 0:

    0        V(v) = max(0, max over C(v) and x's child of 1 + V(c) - cost(c) / b),
             cost(x's child) = 0, else regret(c); the path follows the maximum while it is positive
    tau > 0  of all distributions of paths the one that maximises E[tokens] - (tau / b) KL(it ||
             exact's) is exact's, tilted: z(leaf) = 1,
             z(v) = 1 - P_v(C) + e^(b / tau) sum over C of P_v(c) z(c);
             child c with probability P_v(c) e^(b / tau) z(c) / z(v), another token t with
             P_v(t) / z(v). Its value is (tau / b) log z(root), and tau log z / b tends to V.

b = 0 is exact, draw by draw. Where D(v) > gate only the exact step is allowed.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.rule import Rule
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.coupled import Coupled
from eagle_fsd.rules.fsd import Judging


class TokenRule(Rule):
    """x's child if there is one, else the option of least regret, if it is admitted.

    Emitted distribution: P(c), and all of P(not in C) on that option.
    """

    columns: ClassVar[tuple[str, ...]] = ("regret", "prob")

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        """A draft may be taken although x is another token. Of two the one of less regret is
        admitted if the other is."""
        raise NotImplementedError

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        hit = tree.hit(v)
        return self.admitted(tree, v) if hit is None else hit

    def admitted(self, tree: VerifiedTree, v: int) -> int | None:
        best = min(tree.options(v), key=lambda c: tree.of("regret", c), default=None)
        return best if best is not None and self.admits(tree, best) else None

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return 0.0 if self.admitted(tree, v) is None else tree.outside(v)


@dataclass(frozen=True)
class Ratio(TokenRule):
    """Its `limit` c, nats, is a floor on the ratio P(token) / P(argmax), e^-c: 0 is exact, `inf`
    accepts all."""

    limit: float = 1.0

    def __post_init__(self):
        if not self.limit >= 0:
            raise BadInput(f"the limit of rule 'ratio' must be 0 or above, got {self.limit}")

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        return self.limit > 0 and tree.of("regret", child) <= self.limit


@dataclass(frozen=True)
class PathRule(Coupled, Judging):
    """The best path of the whole tree at a price; see the top of this file.

    Attributes:
        price: b, nats paid for a further token; larger is looser.
        gate: largest D at which a fuzzy step is allowed; 0: none is; `inf`: D is not asked.
    """

    ahead: ClassVar[tuple[str, ...]] = ("regret", "log_prob")
    whole_tree: ClassVar[bool] = True
    limit: ClassVar[str] = "gate"
    price: float = 0.5
    gate: float = math.inf
    divergence: str = "js"
    logits: str = "raw"

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.price < math.inf:
            raise BadInput(f"the price of rule 'path' must be 0 or above, got {self.price}")
        if self.gate == math.inf and (self.divergence, self.logits) != ("js", "raw"):
            raise BadInput("rule 'path' has no use for a divergence without a gate: add gate=")

    @property
    def divergence_column(self) -> str | None:
        return None if self.gate == math.inf else super().divergence_column

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.ahead, *filter(None, [self.divergence_column]))

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        if self.price == 0:
            return tree.hit(v)
        return tree.once(self.values)[1][v] if tree.greedy else super().step(tree, v)

    def is_open(self, tree: VerifiedTree, v: int) -> bool:
        return self.gate == math.inf or self.passes(tree, v)

    # --- temperature 0 --------------------------------------------------------------------------

    def values(self, tree: VerifiedTree) -> tuple[list[float], list[int | None]]:
        """V of every node, and the child that has it; None: the round ends there.

        Equal values prefer the drawn token's child, then the draft's order.
        """
        value_N, best_N = [0.0] * len(tree.tokens), [None] * len(tree.tokens)
        for v in reversed(range(len(value_N))):
            if not tree.children[v]:
                continue
            hit = tree.hit(v)
            if hit is not None:
                value_N[v], best_N[v] = 1 + value_N[hit], hit
            for c in tree.options(v):
                value = 1 + value_N[c] - tree.of("regret", c) / self.price
                if c != hit and value > value_N[v] and self.is_open(tree, v):
                    value_N[v], best_N[v] = value, c
        return value_N, best_N

    # --- temperature tau > 0 --------------------------------------------------------------------

    def log_z(self, tree: VerifiedTree) -> list[float]:
        """log z of every node, float64; tau / b times it is the value of what lies below.

        Where only the exact step is allowed it is sum over C of P_v(c) (b / tau + log z(c)).
        """
        gain = self.price / tree.sampling.temperature
        log_z_N = [0.0] * len(tree.tokens)
        for v in reversed(range(len(log_z_N))):
            logps = {c: tree.of("log_prob", c) for c in tree.children[v]}
            if not logps:
                continue
            if not self.is_open(tree, v):
                log_z_N[v] = math.fsum(math.exp(p) * (gain + log_z_N[c]) for c, p in logps.items())
                continue
            outside = 1 - math.fsum(math.exp(p) for p in logps.values())
            terms = [p + gain + log_z_N[c] for c, p in logps.items()]
            if outside > 0:
                terms.append(math.log(outside))
            top = max(terms)
            log_z_N[v] = top + math.log(math.fsum(math.exp(term - top) for term in terms))
        return log_z_N

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        if not self.is_open(tree, v):
            return 0.0
        log_z_N = tree.once(self.log_z)
        if child is None:
            return -log_z_N[v]
        return self.price / tree.sampling.temperature - log_z_N[v] + log_z_N[child]

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return super().tv(tree, v) if self.price else 0.0

"""A price on the token: the path through the whole tree whose tokens are worth their regret at b
nats a token. Ours, no source does it in trees (nearest: ASD, arXiv 2608.03447, on chains).

Regret is log P(argmax) - log P(c), raw, in nats. The price b means the same at every temperature.
C(v) are the options at v (above temperature 0 the allowed drafts, whatever x is; what top-k and
top-p remove has P = 0), V(leaf) = 0:

    0        V(v) = max(0, max over C(v) and x's child of 1 + V(c) - cost(c) / b),
             cost(x's child) = 0, else regret(c);
             the path follows the maximum while it is positive
    tau > 0  of all distributions of paths the one that maximises E[tokens] - (tau / b) KL(it ||
             exact's) is exact's, tilted: z(leaf) = 1,
             z(v) = 1 - P_v(C) + e^(b / tau) sum over C of P_v(c) z(c);
             child c with probability P_v(c) e^(b / tau) z(c) / z(v), another token t with
             P_v(t) / z(v). Its value is (tau / b) log z(root), and tau log z / b tends to V.

A draft that a guard forbids is among the other tokens t. If it is drawn, the path goes on behind it
by the z there, which nothing above it counts on (at temperature 0 the way to it counts on it where
it is x's child, and there alone V is no limit). Under a guard that keeps stop tokens these have
their P. With s the sum of it, the rest are distributed as above with P / (1 - s) in the place of P,
which gives z', and log z(v) = (1 - s) log z'. An end is no gain then: V(v) = 0 where x is one.

b = 0 is exact, draw by draw.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.verified import Rule, VerifiedTree

# Far beyond the regret of any token; differences of sums of such prices, over the lowest
# temperature, still have a dozen digits.
MOST_PRICE = 1000.0


class Coupled(Rule):
    """Says how probable each draft becomes; the token drawn stays as close to x as can be.

    In a deterministic tree the drafter's distribution plays no part: such a rule tilts P on the
    drafts and draws from the tilted distribution, coupled maximally with the exact token x. So x
    is kept with probability min(1, new / P); else one is drawn from what exceeds P, which lies on
    children only. TV is the sum of that.
    """

    columns: ClassVar[tuple[str, ...]] = ("log_prob",)

    def check(self, sampling, drafter, guards=()) -> None:
        if sampling.temperature > 0 and any(guard.reads_exact_token for guard in guards):
            raise BadInput(
                "a guard that reads the exact token goes with this rule at temperature 0 only: "
                "above it the rule says how probable each draft becomes before one is drawn"
            )

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        """log of the new probability over P, of an allowed child's token, or of any other that
        need not be kept."""
        raise NotImplementedError

    def log_probs(self, tree: VerifiedTree, v: int) -> dict[int, float]:
        """Of the allowed children, among the tokens that need not be kept."""
        rest = tree.log_goes_on(v) if tree.children[v] else 0.0
        if rest == -math.inf:
            return {}
        return {c: tree.value("log_prob", c) - rest for c in tree.allowed(v)}

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        if not tree.children[v]:
            return None
        hit = tree.hit(v)
        if tree.keeps_exact(v):
            return hit
        tilt = self.tilt(tree, v, hit if hit in tree.allowed(v) else None)
        if tree.uniform(v, 2) < math.exp(min(0.0, tilt)):
            return hit
        excess = self.excess(tree, v)
        if not any(excess.values()):  # x exceeds its share by rounding alone
            return hit
        return tree.pick(v, excess)

    def excess(self, tree: VerifiedTree, v: int) -> dict[int, float]:
        """How far each allowed child's new probability exceeds P."""
        logps = {c: tree.value("log_prob", c) for c in tree.allowed(v)}
        news = {c: math.exp(p + self.tilt(tree, v, c)) for c, p in logps.items()}
        return {c: max(0.0, news[c] - math.exp(p)) for c, p in logps.items()}

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return math.fsum(self.excess(tree, v).values())


@dataclass(frozen=True)
class PathRule(Coupled):
    """The way through the whole tree on which tokens less regret / price is largest: it pays at
    most `price` nats of regret for a further token.

    See the top of this file.

    Attributes:
        price: b, nats paid for a further token; larger is looser.
    """

    columns: ClassVar[tuple[str, ...]] = ("regret", "log_prob")
    bounds: ClassVar[tuple[float, float]] = (0.0, MOST_PRICE)
    price: float = 0.9  # results/defaults

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        if self.price == 0:
            return tree.hit(v)
        if not tree.greedy:
            return super().step(tree, v)
        _, best_N = tree.once_a_round(self.best_values)
        return best_N[v]

    # --- temperature 0 --------------------------------------------------------------------------

    def best_values(self, tree: VerifiedTree) -> tuple[list[float], list[int | None]]:
        """V of every node, and the child that has it; None: the round ends there.

        Equal values prefer the exact token's child, then the draft's order.
        """
        value_N, best_N = [0.0] * len(tree.tokens), [None] * len(tree.tokens)
        for v in reversed(range(len(value_N))):
            hit = tree.hit(v)
            if hit is not None:
                # one that ends the answer would be emitted as well if it were no draft
                value_N[v] = 0.0 if tree.keeps(tree.tokens[hit]) else 1 + value_N[hit]
                best_N[v] = hit
            for c in tree.options(v):
                value = 1 + value_N[c] - tree.value("regret", c) / self.price
                if c != hit and value > value_N[v]:
                    value_N[v], best_N[v] = value, c
        return value_N, best_N

    # --- temperature tau > 0 --------------------------------------------------------------------

    def log_z(self, tree: VerifiedTree) -> tuple[list[float], list[float]]:
        """log z' and log z of every node, float64; tau / b times z's is the value of what lies
        below."""
        gain = self.price / tree.sampling.temperature
        log_rest_N, log_z_N = [0.0] * len(tree.tokens), [0.0] * len(tree.tokens)
        for v in reversed(range(len(log_z_N))):
            logps = self.log_probs(tree, v)
            if not logps:
                continue
            outside = 1 - math.fsum(math.exp(p) for p in logps.values())
            terms = [p + gain + log_z_N[c] for c, p in logps.items()]
            if outside > 0:
                terms.append(math.log(outside))
            top = max(terms)
            log_rest_N[v] = top + math.log(math.fsum(math.exp(term - top) for term in terms))
            log_z_N[v] = math.exp(tree.log_goes_on(v)) * log_rest_N[v]
        return log_rest_N, log_z_N

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        log_rest_N, log_z_N = tree.once_a_round(self.log_z)
        if child is None:
            return -log_rest_N[v]
        return self.price / tree.sampling.temperature - log_rest_N[v] + log_z_N[child]

    def tv(self, tree: VerifiedTree, v: int) -> float:
        if tree.greedy:
            return math.nan
        return super().tv(tree, v) if self.price else 0.0

"""The dial that is quality: the rule path at a price that follows what its tokens have cost so far;
a plug-in, and an example of a rule that remembers an answer's rounds.

    evaluate/mt_bench.py --plugin extras/hold.py --arms plain exact hold:0.03

    hold:0.03     a regret of .03 nats a token (above temperature 0: a TV of .03), by whatever price
                  that takes

The cost grows about as a power of the price, so what the controller moves is the cost that it asks
for: target exp(owed / (target MEMORY)), where `owed` is what an answer's tokens so far may have
cost less what they have. An answer knows nothing of other answers, so their order does not matter.
How close it comes: results/hold.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from eagle_fsd.decoding.verified import Path, Rule, VerifiedTree
from eagle_fsd.rules import RULES
from eagle_fsd.rules.price import PathRule

MEMORY = 32  # tokens after which a constant error has changed what is asked for by a factor e
MOST_CREDIT = 1.0  # largest exponent: an answer that offers no choices saves up no more
MOST_TARGET = 100.0  # nats; far beyond what taking every draft costs
# path's price at a cost of .06 a token, and the power of it by which the cost grows. Measured
# greedily with the shipped head and the guard no_repeat=3 on hybrid trees 5x3x4, by vicuna_bench
# (results/hold).
PRICE_OF_SIX_HUNDREDTHS, POWER = 1.12, 1.5


@dataclass(frozen=True)
class Hold(Rule):
    """Its `target` is the cost to hold, a token; 0 is exact."""

    columns: ClassVar[tuple[str, ...]] = PathRule.columns
    bounds: ClassVar[tuple[float, float]] = (0.0, MOST_TARGET)
    target: float = 0.03

    check = PathRule.check

    def begin(self) -> "HeldAnswer":
        return HeldAnswer(self.target)

    def choose(self, tree: VerifiedTree) -> Path:
        raise AssertionError("what an answer has cost is its own: Policy.begin() makes one")


class HeldAnswer(Rule):
    """An answer under way: what its tokens have cost, and the price of its last round."""

    columns = PathRule.columns

    def __init__(self, target: float):
        self._target, self._cost, self._tokens = target, 0.0, 0

    def choose(self, tree: VerifiedTree) -> Path:
        # 1. What this round is asked to cost a token, and the price that costs so much.
        self.price = 0.0
        if self._target > 0:
            owed = (self._target * self._tokens - self._cost) / (self._target * MEMORY)
            asked = self._target * math.exp(min(MOST_CREDIT, owed))
            self.price = PRICE_OF_SIX_HUNDREDTHS * (asked / 0.06) ** (1 / POWER)
        self._rule = PathRule(self.price)
        # 2. What its path has cost: the regret of its fuzzy tokens, or the TV.
        path = self._rule.choose(tree)
        self._tokens += len(path)  # its drafts, and the next token
        if tree.greedy:
            fuzzy = (child for v, child in pairwise(path) if child != tree.hit(v))
            self._cost += sum(tree.value("regret", child) for child in fuzzy)
        else:
            self._cost += sum(self._rule.tv(tree, v) for v in path if tree.children[v])
        return path

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return self._rule.tv(tree, v)


RULES["hold"] = Hold

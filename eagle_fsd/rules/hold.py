"""The dial that is quality: a rule whose parameter follows what its fuzzy tokens have cost so far.

    hold:0.03,by=path     a regret of .03 nats a token (above temperature 0: a TV of .03), by
                          whatever price that takes

Costs of a rule grow about as a power of its parameter, so what the controller moves is the cost
that it asks for: target exp(owed / (target MEMORY)), where `owed` is what an answer's tokens so far
may have cost less what they have. An answer begins with what the table below says of the target;
it knows nothing of other answers, so their order does not matter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import Guard, Path, Rule, VerifiedTree
from eagle_fsd.rules.fsd import Fsd
from eagle_fsd.rules.price import PathRule, Ratio

MEMORY = 32  # tokens after which a constant error has changed what is asked for by a factor e
MOST_CREDIT = 1.0  # largest exponent: an answer that offers no choices saves up no more
MOST_TARGET = 100.0  # nats; far beyond what taking every draft costs
# How an adapted rule is made from its parameter, the parameter at a cost of .06 a token, and the
# power of it by which the cost grows. Measured greedily with the shipped head and
# the guard no_repeat=3 on hybrid trees 5x3x4, by vicuna_bench (results/hold).
ADAPTED_RULES = {
    "path": (PathRule, 1.12, 1.5),
    "ratio": (Ratio, 1.73, 1.8),
    "fsd": (Fsd, 0.33, 3.6),
}


@dataclass(frozen=True)
class Hold(Rule):
    """The dial of every answer.

    Attributes:
        target: the cost to hold, a token; 0 is exact.
        by: the rule that is adapted, a name in ADAPTED_RULES, its other fields at their defaults.
    """

    target: float = 0.03
    by: str = "path"

    def __post_init__(self):
        if not 0 <= self.target <= MOST_TARGET:
            raise BadInput(f"the target is a cost a token, 0 to {MOST_TARGET:g}; got {self.target}")
        check_known("by", self.by, ADAPTED_RULES)

    def check(self, sampling: SamplingConfig, guards: Sequence[Guard], drafter: Drafter) -> None:
        self.begin().rule.check(sampling, guards, drafter)
        if sampling.temperature > 0 and any(guard.reads_exact_token for guard in guards):
            raise BadInput(
                "the guard ends leaves the TV unknown that hold is to keep: with it at temperature "
                "0 only"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return self.begin().columns

    def begin(self) -> "HeldAnswer":
        return HeldAnswer(self)

    def choose(self, tree: VerifiedTree) -> Path:
        raise AssertionError("what an answer has cost is its own: Policy.begin() makes one")


class HeldAnswer(Rule):
    """An answer under way: what its tokens have cost, and the rule of the coming round."""

    def __init__(self, hold: Hold):
        self._hold, self._cost, self._tokens = hold, 0.0, 0
        self._adapt()
        self.columns = self.rule.columns

    def _adapt(self) -> None:
        rule_of, at_six_hundredths, power = ADAPTED_RULES[self._hold.by]
        self.dial, target = 0.0, self._hold.target
        if target > 0:
            owed = (target * self._tokens - self._cost) / (target * MEMORY)
            asked = target * math.exp(min(MOST_CREDIT, owed))
            self.dial = at_six_hundredths * (asked / 0.06) ** (1 / power)
        self.rule = rule_of(self.dial)

    def choose(self, tree: VerifiedTree) -> Path:
        self._adapt()
        path = self.rule.choose(tree)
        self._tokens += len(path)  # its drafts, and the next token
        if tree.greedy:
            fuzzy = (child for v, child in pairwise(path) if child != tree.hit(v))
            self._cost += sum(tree.value("regret", child) for child in fuzzy)
        else:
            self._cost += sum(self.rule.tv(tree, v) for v in path if tree.children[v])
        return path

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return self.rule.tv(tree, v)

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

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.acceptance import Acceptance
from eagle_fsd.decoding.rule import Guard, Rule
from eagle_fsd.decoding.verified import VerifiedTree
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
    """Its state: what the answer's tokens have cost, and how many they are.

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

    def check(
        self, sampling: SamplingConfig, guards: Sequence[Guard], draft_vocab_size: int | None
    ) -> None:
        rule, _ = self.this_round(self.start())
        rule.check(sampling, guards, draft_vocab_size)
        if sampling.temperature > 0 and any(guard.reads_exact_token for guard in guards):
            raise BadInput(
                "the guard ends leaves the TV unknown that hold is to keep: with it at temperature "
                "0 only"
            )

    def start(self) -> tuple[float, int]:
        return 0.0, 0

    def this_round(self, state: tuple[float, int]) -> tuple[Rule, float]:
        rule_of, at_six_hundredths, power = ADAPTED_RULES[self.by]
        if self.target == 0:
            return rule_of(0.0), 0.0
        cost, tokens = state
        owed = (self.target * tokens - cost) / (self.target * MEMORY)
        asked = self.target * math.exp(min(MOST_CREDIT, owed))
        dial = at_six_hundredths * (asked / 0.06) ** (1 / power)
        return rule_of(dial), dial

    def after(
        self, tree: VerifiedTree, accepted: Acceptance, state: tuple[float, int]
    ) -> tuple[float, int]:
        cost, tokens = state
        cost += accepted.fuzzy_regret if tree.greedy else sum(accepted.tv)
        return cost, tokens + len(accepted.tokens)

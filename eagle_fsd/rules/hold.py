"""The dial that is quality: a rule whose parameter follows what its fuzzy tokens have cost so far.

    hold:0.03,by=path     regret of .03 nats a token (above temperature 0: TV of .03 a token), by
                          whatever price that takes

Costs of a rule grow about as a power of its parameter, so what the controller moves is the cost
that it asks for: target exp(owed / (target MEMORY)), where `owed` is what an answer's tokens so far
may have cost less what they have. An answer begins with what the table below says of the target;
it knows nothing of other answers, so their order does not matter.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.rule import Path, Rule
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.fsd import Fsd
from eagle_fsd.rules.price import PathRule, Ratio

MEMORY = 32  # tokens after which a constant error has changed what is asked for by a factor e
MOST = 1.0  # of that exponent: an answer without choices saves up no more
# rule, its parameter at a cost of .06 a token, the power of the cost: greedy, the shipped head,
# no_repeat=3@hybrid (results/rule_front/hybrid_guards.csv; path's raised by what answers of 128
# tokens to 40 questions of vicuna_bench stayed behind: one that is behind ends so)
HELD = {"path": (PathRule, 0.95, 1.42), "ratio": (Ratio, 1.7, 1.65), "fsd": (Fsd, 0.35, 6.0)}


@dataclass(frozen=True)
class Hold(Rule):
    """Its state: what the answer's tokens have cost, and how many they are.

    Attributes:
        target: the cost to hold, a token; 0 is exact.
        by: the rule that is adapted, a name in HELD, its other fields at their defaults.
    """

    reads_tv: ClassVar[bool] = True
    target: float = 0.03
    by: str = "path"

    def __post_init__(self):
        if not 0 <= self.target < math.inf:
            raise BadInput(f"the target of rule 'hold' must be 0 or above, got {self.target}")
        check_known("by", self.by, HELD)

    @property
    def whole_tree(self) -> bool:
        return HELD[self.by][0].whole_tree

    def check(self, sampling: SamplingConfig, draft_vocab_size: int | None) -> None:
        self.now(self.start()).check(sampling, draft_vocab_size)

    def start(self) -> tuple[float, int]:
        return 0.0, 0

    def now(self, state: tuple[float, int]) -> Rule:
        kind, value, power = HELD[self.by]
        if self.target == 0:
            return kind(0.0)
        cost, tokens = state
        owed = (self.target * tokens - cost) / (self.target * MEMORY)
        asked = self.target * math.exp(min(MOST, owed))
        return kind(value * (asked / 0.06) ** (1 / power))

    def choose(self, tree: VerifiedTree, state: tuple[float, int]) -> Path:
        return self.now(state).choose(tree, None)

    def after(self, tree: VerifiedTree, path: Path, state: tuple[float, int]) -> tuple[float, int]:
        rule, (cost, tokens) = self.now(state), state
        if tree.greedy:
            cost += sum(tree.of("regret", c) for c in tree.fuzzy_steps(path))
        else:
            cost += sum(rule.tv(tree, v) for v in path if tree.children[v])
        return cost, tokens + len(path)

"""Judging what a draft does to the answer, by a model of harm (heads/harm_model.py).

    harm   x's child if there is one, else the option of least foreseen harm, if its chance of
           changing what the answer comes to is at most p (AutoJudge, arXiv 2504.20039, in trees)

`path:b,cost=harm` (price.py) is the other rule that reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.rule import Guard
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.price import TokenRule, check_greedy_harm


@dataclass(frozen=True)
class Harm(TokenRule):
    """At temperature 0 only, for which the model of harm is made.

    Attributes:
        chance: p, the largest chance of harm that is admitted; 0 is exact, 1 accepts all.
    """

    columns: ClassVar[tuple[str, ...]] = ("harm",)
    cost: ClassVar[str] = "harm"
    chance: float = 0.1

    def __post_init__(self):
        if not 0 <= self.chance <= 1:
            raise BadInput(f"the chance of harm is 0 to 1, got {self.chance}")

    def check(
        self, sampling: SamplingConfig, guards: Sequence[Guard], draft_vocab_size: int | None
    ) -> None:
        super().check(sampling, guards, draft_vocab_size)
        check_greedy_harm(sampling)

    def admits(self, tree: VerifiedTree, child: int) -> bool:
        return self.chance > 0 and tree.value("harm", child) <= self.chance

"""Guards: predicates on a draft that narrow what any rule may take (`fsd:0.4,no_repeat=3`).

A draft that a guard does not allow is taken only where it is the exact token.

known      a draft to which the drafter's own distribution gives less is not allowed, nor is any
           where it has none (below looked-up drafts)
js         none is allowed where JS of target and draft is above this, nor where there is none
first      the first tokens of an answer, up to this number, are exact: lossy rules do most harm
           there (arXiv 2610.08678)
loop       the round is exact while the last tokens of the answer, this number of them, have stood
           in it before
no_repeat  a draft that would complete an n-gram of this length which the answer has had already is
           not allowed (transformers' no_repeat_ngram_size, for fuzzy tokens alone); 0 is off
ends       1: where the target ends the answer, it ends: no draft takes the place of a stop token;
           0 is off
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, check_flag, check_least
from eagle_fsd.decoding.rule import Guard
from eagle_fsd.decoding.verified import VerifiedTree


@dataclass(frozen=True)
class Known(Guard):
    columns: ClassVar[tuple[str, ...]] = ("draft_prob",)
    prob: float

    def __post_init__(self):
        if not 0 <= self.prob <= 1:
            raise BadInput(f"known is a probability, 0 to 1; got {self.prob}")

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.value("draft_prob", child) >= self.prob  # NaN is not


@dataclass(frozen=True)
class Js(Guard):
    columns: ClassVar[tuple[str, ...]] = ("js",)
    nats: float

    def __post_init__(self):
        if not 0 <= self.nats <= math.log(2) + 1e-6:
            raise BadInput(f"js must be 0 to 0.693 nats, got {self.nats}")

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.value("js", tree.parents[child]) <= self.nats  # NaN is not


@dataclass(frozen=True)
class First(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "first: ", tokens=0)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return len(tree.answer) + tree.depths[child] - 1 >= self.tokens


@dataclass(frozen=True)
class Loop(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "loop: ", tokens=1)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return not tree.once_a_round(self.repeats)

    def repeats(self, tree: VerifiedTree) -> bool:
        """The answer so far; what this round drafts is not looked at."""
        text, n = list(tree.answer), self.tokens
        return any(text[i : i + n] == text[-n:] for i in range(len(text) - n))


@dataclass(frozen=True)
class NoRepeat(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "no_repeat: ", tokens=0)

    @property
    def off(self) -> bool:
        return self.tokens == 0

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        if self.off:
            return True
        n, text = self.tokens, [*tree.answer, *(tree.tokens[v] for v in tree.ancestors(child))]
        gram = text[-n:]
        ends = (i for i in range(n, len(text)) if text[i - 1] == gram[-1])
        return len(text) < n or all(text[end - n : end] != gram for end in ends)


@dataclass(frozen=True)
class Ends(Guard):
    reads_exact_token: ClassVar[bool] = True
    on: int

    def __post_init__(self):
        check_flag("ends", self.on)

    @property
    def off(self) -> bool:
        return not self.on

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return self.off or not tree.ends(tree.parents[child])


GUARDS: dict[str, type[Guard]] = {
    "known": Known,
    "js": Js,
    "first": First,
    "loop": Loop,
    "no_repeat": NoRepeat,
    "ends": Ends,
}

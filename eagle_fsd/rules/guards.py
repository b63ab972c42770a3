"""Guards: predicates on a draft that narrow what any rule may take (`fsd:0.4,no_repeat=3`).

no_repeat  a draft that would complete an n-gram of this length which the answer has had already is
           not allowed (transformers' no_repeat_ngram_size, for fuzzy tokens alone); 0 is off
ends       1: the target alone ends the answer: a stop token keeps its probability, so that no draft
           takes its place and it takes no other token's; 0 is off

What they are at temperature 0 and above it: decoding/verified.py, Guard.
"""

from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import check_between, check_least
from eagle_fsd.decoding.verified import Guard, VerifiedTree


@dataclass(frozen=True)
class NoRepeat(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "no_repeat: ", tokens=0)

    @property
    def off(self) -> bool:
        return self.tokens == 0

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        n, text = self.tokens, [*tree.answer, *(tree.tokens[v] for v in tree.ancestors(child))]
        gram = text[-n:]
        ends = (i for i in range(n, len(text)) if text[i - 1] == gram[-1])
        return len(text) < n or all(text[end - n : end] != gram for end in ends)


@dataclass(frozen=True)
class Ends(Guard):
    keeps_ends: ClassVar[bool] = True
    on: int

    def __post_init__(self):
        check_between(0, 1, ends=self.on)

    @property
    def off(self) -> bool:
        return not self.on

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.tokens[child] not in tree.stop_token_ids


GUARDS: dict[str, type[Guard]] = {
    "no_repeat": NoRepeat,
    "ends": Ends,
}

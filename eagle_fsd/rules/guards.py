"""Guards: limits on what any rule may do, as further fields of its text (`fsd:0.4,cap=2`).

cap        a draft whose regret is above this is no option, nats
floor      a draft whose raw target probability is below this is no option
known      a draft to which the drafter's own distribution gives less is no option, nor is any where
           it has none (below looked-up drafts)
top1       there is no option where the target gives its likeliest token more than this (the mask of
           JuDi, arXiv 2601.04766: fsd:T,divergence=kl_target_draft,child=draft,top1=0.9)
js         there is no option where JS of target and draft is above this, nor where there is none
first      the answer's first tokens, so many, are exact: lossy rules do most harm there
           (arXiv 2610.08678)
since      exact before the answer has this token, by its id: fuzzy behind a thought alone
until      exact behind this token: fuzzy within a thought alone
loop       exact while the answer's last tokens, so many, have stood in it before
no_repeat  a draft that would complete an n-gram which the answer has had, of so many tokens, is no
           option (transformers' no_repeat_ngram_size, for fuzzy tokens alone)
ends       1: where the target ends the answer, it ends: no draft is taken in place of a stop token
per_token  nats of regret that fuzzy tokens may cost for each token of the answer so far
budget     nats of regret that an answer's fuzzy tokens may cost in all; from the fuzzy step that
           would exceed it on, the round is exact
fuzzy      how many an answer may have
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, check_flag, check_least
from eagle_fsd.decoding.rule import Guard, Path
from eagle_fsd.decoding.verified import VerifiedTree


def name_of(guard: Guard) -> str:
    return next(name for name, kind in GUARDS.items() if kind is type(guard))


@dataclass(frozen=True)
class RegretGuard(Guard):
    columns: ClassVar[tuple[str, ...]] = ("regret",)
    nats: float

    def __post_init__(self):
        if not self.nats >= 0:
            raise BadInput(f"{name_of(self)} must be 0 nats or above, got {self.nats}")


class Cap(RegretGuard):
    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.of("regret", child) <= self.nats


@dataclass(frozen=True)
class ProbGuard(Guard):
    prob: float

    def __post_init__(self):
        if not 0 <= self.prob <= 1:
            raise BadInput(f"{name_of(self)} is a probability, 0 to 1; got {self.prob}")


class Floor(ProbGuard):
    columns: ClassVar[tuple[str, ...]] = ("raw_prob",)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.of("raw_prob", child) >= self.prob


class Known(ProbGuard):
    columns: ClassVar[tuple[str, ...]] = ("draft_prob",)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.of("draft_prob", child) >= self.prob  # NaN is not


class TopOne(ProbGuard):
    columns: ClassVar[tuple[str, ...]] = ("top1",)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.at("top1", tree.parents[child]) <= self.prob


@dataclass(frozen=True)
class Js(Guard):
    columns: ClassVar[tuple[str, ...]] = ("js",)
    nats: float

    def __post_init__(self):
        if not 0 <= self.nats <= math.log(2) + 1e-6:
            raise BadInput(f"js must be 0 to 0.693 nats, got {self.nats}")

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.at("js", tree.parents[child]) <= self.nats  # NaN is not


@dataclass(frozen=True)
class First(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "first: ", tokens=0)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return len(tree.answer) + tree.depths[child] - 1 >= self.tokens


@dataclass(frozen=True)
class Since(Guard):
    token: int

    def __post_init__(self):
        check_least(self, f"{name_of(self)}: ", token=0)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return self.said(tree, child)

    def said(self, tree: VerifiedTree, child: int) -> bool:
        """Whether the token stands before this draft, in the answer or among the drafts."""
        above = tree.ancestors(tree.parents[child])
        return self.token in tree.answer or self.token in (tree.tokens[v] for v in above)


class Until(Since):
    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return not self.said(tree, child)


@dataclass(frozen=True)
class Loop(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "loop: ", tokens=1)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return not tree.once(self.repeats)

    def repeats(self, tree: VerifiedTree) -> bool:
        """The answer so far; what this round drafts is not looked at."""
        text, n = list(tree.answer), self.tokens
        return any(text[i : i + n] == text[-n:] for i in range(len(text) - n))


@dataclass(frozen=True)
class NoRepeat(Guard):
    tokens: int

    def __post_init__(self):
        check_least(self, "no_repeat: ", tokens=1)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        n, text = self.tokens, [*tree.answer, *(tree.tokens[v] for v in tree.ancestors(child))]
        gram = text[-n:]
        ends = (i for i in range(n, len(text)) if text[i - 1] == gram[-1])
        return len(text) < n or all(text[end - n : end] != gram for end in ends)


@dataclass(frozen=True)
class Ends(Guard):
    hides_tv: ClassVar[bool] = True
    reads_x: ClassVar[bool] = True
    on: int

    def __post_init__(self):
        check_flag("ends", self.on)

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return not (self.on and tree.ends(tree.parents[child]))


class Allowance(Guard):
    """No fuzzy step from the one on that would exceed it. Its state: what is spent so far."""

    hides_tv: ClassVar[bool] = True

    def start(self) -> float:
        return 0.0

    def allowance(self, tokens: int) -> float:
        """What may be spent on the answer's first tokens, so many."""
        raise NotImplementedError

    def price(self, tree: VerifiedTree, child: int) -> float:
        """Of taking this draft."""
        raise NotImplementedError

    def cut(self, tree: VerifiedTree, path: Path, state: float) -> Path:
        for child in tree.fuzzy_steps(path):
            state += self.price(tree, child)
            depth = tree.depths[child]
            if state > self.allowance(len(tree.answer) + depth):
                path = path[:depth]
                while (hit := tree.hit(path[-1])) is not None:
                    path.append(hit)
                return path
        return path

    def after(self, tree: VerifiedTree, path: Path, state: float) -> float:
        return state + sum(self.price(tree, child) for child in tree.fuzzy_steps(path))


class Budget(Allowance, RegretGuard):
    def allowance(self, tokens: int) -> float:
        return self.nats

    def price(self, tree: VerifiedTree, child: int) -> float:
        return tree.of("regret", child)


class PerToken(Budget):
    def allowance(self, tokens: int) -> float:
        return self.nats * tokens


@dataclass(frozen=True)
class Fuzzy(Allowance):
    most: int

    def __post_init__(self):
        check_least(self, "fuzzy: ", most=0)

    def allowance(self, tokens: int) -> float:
        return self.most

    def price(self, tree: VerifiedTree, child: int) -> float:
        return 1


GUARDS: dict[str, type[Guard]] = {
    "cap": Cap,
    "floor": Floor,
    "known": Known,
    "top1": TopOne,
    "js": Js,
    "first": First,
    "since": Since,
    "until": Until,
    "loop": Loop,
    "no_repeat": NoRepeat,
    "ends": Ends,
    "per_token": PerToken,
    "budget": Budget,
    "fuzzy": Fuzzy,
}

"""Acceptance rules of other papers, and guards that were measured beside them: a plug-in.

    evaluate/mt_bench.py --plugin extras/rivals.py --arms plain exact asd:0.5 fsd:0.3,js=0.2

They gained nothing over the library's own rules (results/rule_front, results/rules_temperature_1,
results/tasks, results/harm_signals) and show what a file of your own may hold: rules, guards, and a
column.

Mismatches that the tokens behind them must buy, at temperature 0: of all options that pass, the one
with the longest run of the target's own tokens behind it is taken, of equals that of least regret.

    fly  a mismatch where the target's entropy is above `entropy` is let through if `window` drafts
         follow that the target would have said          (FLy, arXiv 2511.22972)
    asd  one of regret <= `regret` is let through if at least `suffix` such drafts follow, at most
         `block` a round, until an answer has spent `ledger` nats       (ASD, arXiv 2608.03447)

How probable each draft becomes, above temperature 0; at 0 both of these are exact and refused. They
are given for one sampled draft. In a deterministic tree raising the probability that the round goes
on costs least if the draft is drawn from P restricted to the drafts C, so both raise P(C) as a
whole. A draft that a guard forbids is none of C then, and stop tokens that one keeps stay aside, as
for path (rules/price.py).

    cactus    advance with probability min(1, pi + sqrt(2 delta pi (1 - pi))), pi = P(C)
              (Cactus, arXiv 2604.04987: a bound of delta on the KL to second order)
    mentored  advance as often as KL(emitted || P) <= kl allows (mentored decoding,
              V. Tran-Thien 2023; arXiv 2609.30474)

Guards:

    known  a draft to which the drafter's own distribution gives less is not allowed, nor is any
           where it has none (below looked-up drafts)
    js     none is allowed where JS of target and draft is above this, nor where there is none
    first  the first tokens of an answer, up to this number, are exact: lossy rules do most harm
           there (arXiv 2610.08678)
    loop   the round is exact while the last tokens of the answer, this number of them, have stood
           in it before
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput, check_least
from eagle_fsd.decoding.columns import PLACES, Rows, entropy
from eagle_fsd.decoding.verified import Guard, Path, Rule, VerifiedTree
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import GUARDS
from eagle_fsd.rules.price import Coupled

# --- mismatches that the tokens behind them must buy --------------------------------------------


def flatness(rows: Rows) -> torch.Tensor:
    """The entropy over that of a uniform distribution, 0 to 1."""
    return entropy(rows) / math.log(rows.target_MV.shape[1])


def runs(tree: VerifiedTree) -> list[int]:
    """Of every node, how many drafts in a row below it are the target's own tokens."""
    run_N = [0] * len(tree.tokens)
    for v in reversed(range(len(run_N))):
        hit = tree.hit(v)
        run_N[v] = 0 if hit is None else 1 + run_N[hit]
    return run_N


class SuffixRule(Rule):
    """Takes mismatches that it admits."""

    columns: ClassVar[tuple[str, ...]] = ("regret",)

    def check(self, sampling, drafter, guards=()) -> None:
        if sampling.temperature > 0:
            raise BadInput(
                "this rule reads the target's own tokens behind a draft, which above temperature 0 "
                "would bias the text: use temperature 0"
            )

    def begin(self) -> "SuffixAnswer":
        return SuffixAnswer(self)

    def choose(self, tree: VerifiedTree) -> Path:
        raise AssertionError("what an answer has spent is its own: Policy.begin() makes one")

    def admits(self, tree: VerifiedTree, child: int, bought: int, spent: float) -> bool:
        """A draft may be taken, the round's mismatch number `bought`, after `spent` nats."""
        raise NotImplementedError


class SuffixAnswer(Rule):
    """An answer under way: the nats of regret that it has spent."""

    def __init__(self, rule: SuffixRule):
        self._rule, self._spent, self.columns = rule, 0.0, rule.columns

    def choose(self, tree: VerifiedTree) -> Path:
        path, bought, run_N = [0], 0, tree.once_a_round(runs)
        while True:
            v = path[-1]
            child = tree.hit(v)
            if child is None:
                able = [
                    c for c in tree.options(v) if self._rule.admits(tree, c, bought, self._spent)
                ]
                if not able:
                    return path
                child = max(able, key=lambda c: (run_N[c], -tree.value("regret", c)))
                bought += 1
                self._spent += tree.value("regret", child)
            path.append(child)


@dataclass(frozen=True)
class Fly(SuffixRule):
    """Its `window`, drafts: smaller is looser, 0 asks for none.

    Attributes:
        entropy: of the target's distribution over that of a uniform one; a mismatch where it is
            not above this is a mistake.
    """

    columns: ClassVar[tuple[str, ...]] = ("regret", "flatness")
    lossless_at: ClassVar[float] = math.inf
    window: int = 2
    entropy: float = 0.3

    def __post_init__(self):
        check_least(self, window=0, entropy=0)

    def admits(self, tree: VerifiedTree, child: int, bought: int, spent: float) -> bool:
        open_here = tree.value("flatness", tree.parents[child]) > self.entropy
        return open_here and tree.once_a_round(runs)[child] >= self.window


@dataclass(frozen=True)
class Asd(SuffixRule):
    """Its `regret`, nats, is what one mismatch may cost; 0 is exact.

    Attributes:
        suffix: the target's own tokens that must follow.
        block: most mismatches of a round.
        ledger: nats that an answer may spend in all.
    """

    regret: float = 0.25
    suffix: int = 1
    block: int = 2
    ledger: float = 8.0

    def __post_init__(self):
        check_least(self, suffix=0, block=0)
        if not (self.regret >= 0 and self.ledger >= 0):
            raise BadInput(
                f"regret and ledger must be 0 nats or above, got {self.regret} and {self.ledger}"
            )

    def admits(self, tree: VerifiedTree, child: int, bought: int, spent: float) -> bool:
        cost = tree.value("regret", child)
        affordable = 0 < self.regret >= cost and spent + cost <= self.ledger
        return affordable and bought < self.block and tree.once_a_round(runs)[child] >= self.suffix


# --- how probable each draft becomes ------------------------------------------------------------


class Raised(Coupled):
    """Raises the probability pi of all drafts together to `raised(pi)`."""

    def check(self, sampling, drafter, guards=()) -> None:
        super().check(sampling, drafter, guards)
        if sampling.temperature == 0:
            raise BadInput(
                "at temperature 0 this rule is exact: raise --temperature, or take the rule exact"
            )

    def raised(self, pi: float) -> float:
        """The new probability, pi to 1, of 0 < pi < 1."""
        raise NotImplementedError

    def tilt(self, tree: VerifiedTree, v: int, child: int | None) -> float:
        pi = math.fsum(math.exp(p) for p in self.log_probs(tree, v).values())
        if not 0 < pi < 1:
            return 0.0
        new = self.raised(pi)
        if child is None:
            return math.log((1 - new) / (1 - pi)) if new < 1 else -math.inf
        return math.log(new / pi)


@dataclass(frozen=True)
class Cactus(Raised):
    """Its `delta`, nats: 0 is exact, `inf` always takes a draft."""

    delta: float = 0.1

    def __post_init__(self):
        if not self.delta >= 0:
            raise BadInput(f"the delta must be 0 or above, got {self.delta}")

    def raised(self, pi: float) -> float:
        return min(1.0, pi + math.sqrt(2 * self.delta * pi * (1 - pi)))


@dataclass(frozen=True)
class Mentored(Raised):
    """Its `kl`, nats of KL(emitted || P) at every place: 0 is exact, `inf` always takes a
    draft."""

    kl: float = 0.1

    def __post_init__(self):
        if not self.kl >= 0:
            raise BadInput(f"the kl must be 0 or above, got {self.kl}")

    def raised(self, pi: float) -> float:
        """By halving: the cost grows from 0 at pi to -log pi at 1."""
        if self.kl >= -math.log(pi):
            return 1.0
        low, high = pi, 1.0
        for _ in range(60 if self.kl else 0):
            new = (low + high) / 2
            cost = new * math.log(new / pi)
            cost += (1 - new) * math.log((1 - new) / (1 - pi)) if new < 1 else 0.0
            low, high = (new, high) if cost <= self.kl else (low, new)
        return low


# --- guards -------------------------------------------------------------------------------------


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


PLACES["flatness"] = flatness
RULES |= {"asd": Asd, "fly": Fly, "cactus": Cactus, "mentored": Mentored}
GUARDS |= {"known": Known, "js": Js, "first": First, "loop": Loop}

"""Mismatches that the tokens behind them must buy: the drafts below that are the target's own.

    fly  a mismatch where the target's entropy is above `entropy` is let through if `window` drafts
         follow that the target would have said          (FLy, arXiv 2511.22972)
    asd  one of regret <= `regret` is let through if at least `suffix` such drafts follow, at most
         `block` a round, until an answer has spent `ledger` nats       (ASD, arXiv 2608.03447)

Both sources are about chains at temperature 0 and refused above it. In a tree, of all options that
pass, the one with the longest run behind it is taken, of equals that of the least regret.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, SamplingConfig, check_least
from eagle_fsd.decoding.acceptance import Acceptance
from eagle_fsd.decoding.rule import Guard, Path, Rule
from eagle_fsd.decoding.verified import VerifiedTree


def runs(tree: VerifiedTree) -> list[int]:
    """Of every node, how many drafts in a row below it are the target's own tokens."""
    run_N = [0] * len(tree.tokens)
    for v in reversed(range(len(run_N))):
        hit = tree.hit(v)
        run_N[v] = 0 if hit is None else 1 + run_N[hit]
    return run_N


class SuffixRule(Rule):
    """Its state is the nats of regret that the answer has spent."""

    columns: ClassVar[tuple[str, ...]] = ("regret",)

    def check(
        self, sampling: SamplingConfig, guards: Sequence[Guard], draft_vocab_size: int | None
    ) -> None:
        super().check(sampling, guards, draft_vocab_size)
        if sampling.temperature > 0:
            raise BadInput(
                "this rule reads the target's own tokens behind a draft, which above temperature 0 "
                "would bias the text: use temperature 0"
            )

    def start(self) -> float:
        return 0.0

    def admits(self, tree: VerifiedTree, child: int, bought: int, spent: float) -> bool:
        """A draft may be taken, the round's mismatch number `bought`, after `spent` nats."""
        raise NotImplementedError

    def choose(self, tree: VerifiedTree, state: float) -> Path:
        path, bought, run_N = [0], 0, tree.once_a_round(runs)
        while True:
            child = tree.hit(path[-1])
            if child is None:
                able = [c for c in tree.options(path[-1]) if self.admits(tree, c, bought, state)]
                if not able:
                    return path
                child = max(able, key=lambda c: (run_N[c], -tree.value("regret", c)))
                bought += 1
                state += tree.value("regret", child)
            path.append(child)

    def after(self, tree: VerifiedTree, accepted: Acceptance, state: float) -> float:
        return state + accepted.fuzzy_regret


@dataclass(frozen=True)
class Fly(SuffixRule):
    """Its `window`, drafts: smaller is looser, 0 asks for none.

    Attributes:
        entropy: of the target's distribution over that of a uniform one; a mismatch where it is
            not above this is a mistake.
    """

    columns: ClassVar[tuple[str, ...]] = ("regret", "flatness")
    exact: ClassVar[float] = math.inf
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

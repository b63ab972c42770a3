"""What the loop answers: a round at a time, and a whole answer of them."""

from dataclasses import dataclass, field

import torch

from eagle_fsd.decoding.acceptance import Acceptance
from eagle_fsd.decoding.tree import DraftTree


@dataclass(frozen=True)
class Round:
    """What the loop yields: prefill, which has tokens only, and then every round. The tokens are
    trimmed, the acceptance is not; tree and logits are what the rule saw, the logits good until the
    target's next forward, for whichever answer."""

    tokens: list[int]
    finish: str | None
    acceptance: Acceptance | None = None
    tree: DraftTree | None = None
    logits_NV: torch.Tensor | None = None


@dataclass
class Generation:
    """An answer, whole or after any of its rounds.

    Attributes:
        tokens: the one of prefill, then those of the rounds, up to the budget or to a stop token,
            which is the last one.
        rounds: prefill is no round. They are not trimmed, so that the last one may hold tokens that
            `tokens` lacks.
        finish: why the answer ended: "stop" or "length"; None while it goes on.
    """

    tokens: list[int] = field(default_factory=list)
    rounds: list[Acceptance] = field(default_factory=list)
    finish: str | None = None

    def add(self, one_round: Round) -> None:
        self.tokens += one_round.tokens
        self.finish = one_round.finish
        if one_round.acceptance is not None:
            self.rounds.append(one_round.acceptance)

    @property
    def tokens_per_round(self) -> float:
        """Mean of the tokens that a round emitted, its next token included and before trimming (the
        literature's tau); NaN without rounds."""
        emitted = sum(len(r.tokens) for r in self.rounds)
        return emitted / len(self.rounds) if self.rounds else float("nan")

    @property
    def fuzzy_share(self) -> float:
        """Share, from 0 to 1, of the rounds' tokens in whose place the exact test would have
        emitted another one; NaN without rounds."""
        fuzzy = [flag for r in self.rounds for flag in r.fuzzy]
        return sum(fuzzy) / len(fuzzy) if fuzzy else float("nan")

    @property
    def fuzzy(self) -> list[bool]:
        """Of each of the tokens, whether the exact test would have emitted another one; that of
        prefill is never fuzzy."""
        flags = [False, *(flag for r in self.rounds for flag in r.fuzzy)]
        return (flags + [False] * len(self.tokens))[: len(self.tokens)]

    @property
    def round_numbers(self) -> list[int]:
        """Of each of the tokens the round that emitted it; prefill's is 0. Example: prefill, then
        rounds of 3 and 2 tokens: 0 1 1 1 2 2."""
        numbers = [0, *(n for n, r in enumerate(self.rounds, start=1) for _ in r.tokens)]
        return (numbers + [0] * len(self.tokens))[: len(self.tokens)]

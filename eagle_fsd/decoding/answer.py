"""What the loop yields of an answer, and the answer that these make."""

from dataclasses import dataclass, field

import torch

from eagle_fsd.decoding.acceptance import Acceptance
from eagle_fsd.decoding.tree import DraftTree


@dataclass(frozen=True)
class Round:
    """What the loop yields: prefill, which has tokens only, and then every round.

    Attributes:
        tokens: that joined the answer, after trimming.
        finish: why the answer ended in this round, else None.
        acceptance: before trimming.
        tree, logits_NV: what the rule saw; the logits are good until the next round.
    """

    tokens: list[int]
    finish: str | None
    acceptance: Acceptance | None = None
    tree: DraftTree | None = None
    logits_NV: torch.Tensor | None = None


@dataclass
class Generation:
    """An answer, whole or after any of its rounds.

    Attributes:
        tokens: the answer's token ids, in order: the one of prefill, then those of the rounds, up
            to the budget or to a stop token, which is the last one.
        rounds: an Acceptance for each round, in order; prefill is no round. Its lists have an entry
            for each token that the round emitted. They are not trimmed, so that the last round may
            hold tokens that `tokens` lacks.
        finish: why the answer ended: "stop" or "length"; None while it goes on.
    """

    tokens: list[int] = field(default_factory=list)
    rounds: list[Acceptance] = field(default_factory=list)
    finish: str | None = None

    def add(self, one_round: Round) -> None:
        """Take in the answer's next round."""
        self.tokens += one_round.tokens
        self.finish = one_round.finish
        if one_round.acceptance is not None:
            self.rounds.append(one_round.acceptance)

    @property
    def tokens_per_round(self) -> float:
        """Mean number of tokens that a round emitted, its next token included and before trimming
        (the literature's tau); NaN without rounds."""
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
        """A flag for each of the tokens: whether the exact test would have emitted another one.

        The token of prefill is never fuzzy, nor is any where there are no rounds (transformers'
        generate).
        """
        flags = [False, *(flag for r in self.rounds for flag in r.fuzzy)]
        return (flags + [False] * len(self.tokens))[: len(self.tokens)]

    @property
    def round_numbers(self) -> list[int]:
        """The number of the round that emitted it for each of the tokens, from 1; prefill is 0, and
        so is all that transformers' generate emitted.

        Example: prefill, then rounds of 3 and 2 tokens: 0 1 1 1 2 2.
        """
        numbers = [0, *(n for n, r in enumerate(self.rounds, start=1) for _ in r.tokens)]
        return (numbers + [0] * len(self.tokens))[: len(self.tokens)]

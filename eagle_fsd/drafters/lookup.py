"""The drafter that looks its drafts up in the text so far: no head, no draft distribution.

Prompt look-up decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens`): the longest of the last n-grams that occurred before is taken to go on
as it did then.

    A B C D E A B C     the last 3-gram A B C occurred at the start, so D E A B C ... are drafted

Beyond the source: a match near the end of the text is read on into its own drafts, so that
A A A drafts as many A as wanted; and several continuations of one n-gram can be drafted side by
side.

Axes: T newly committed tokens, F features.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.models.loaded import Model

Gram = tuple[int, ...]


@dataclass(frozen=True)
class LookupSettings:
    """How drafts are looked up, as arms say it (`exact@lookup:10,max_ngram=2`).

    Attributes:
        num_draft_tokens: most drafts of a round.
        max_ngram: longest n-gram looked up; shorter ones down to 1 follow.
        num_continuations: how many different next tokens of the matching n-gram are drafted, the
            most recent first; each heads a chain, and the drafts are shared out evenly.

    Raises:
        BadInput: a value is below 1, or there are more continuations than drafts.
    """

    needs_head: ClassVar[bool] = False
    num_draft_tokens: int = 10
    max_ngram: int = 3
    num_continuations: int = 1

    def __post_init__(self):
        for name in ("num_draft_tokens", "max_ngram", "num_continuations"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_continuations > self.num_draft_tokens:
            raise BadInput(
                f"num_continuations {self.num_continuations} is more than num_draft_tokens "
                f"{self.num_draft_tokens}: a continuation needs a draft"
            )

    def build(self, model: Model) -> "LookupDrafter":
        if self.num_draft_tokens >= model.target.max_positions:
            raise BadInput(
                f"num_draft_tokens {self.num_draft_tokens} is beyond the target's "
                f"{model.target.max_positions} positions: lower it"
            )
        return LookupDrafter(self)


class LookupDrafter:
    """Drafts what followed the longest matching n-gram: a chain, or chains side by side.

    There is no divergence without a draft distribution: D is NaN and never passes, so that `fsd`
    emits what `exact` emits. When no n-gram matches, the tree is the root alone and the round is a
    plain step. The first token of a prompt is never told to a drafter and is not looked up.

    The text lives on the host: on an accelerator a round copies its committed tokens there, and
    waits for it.
    """

    def __init__(self, settings: LookupSettings = LookupSettings()):  # noqa: B008  (frozen)
        self.settings = settings
        self.max_nodes = settings.num_draft_tokens + 1
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self._text: list[int] = []
        self._device = torch.device("cpu")
        # n-gram -> where its last different continuations begin, the most recent first
        self._starts: dict[Gram, list[int]] = {}

    def observe(self, features_TF: torch.Tensor, next_token_T: torch.Tensor) -> None:
        self._device = next_token_T.device
        for token in next_token_T.tolist():
            self._note(token)

    def propose(self) -> DraftTree:
        tokens, parents = [self._text[-1]], [0]
        starts = self._longest_match()
        for number, start in enumerate(starts):
            # the most recent chains take what does not divide evenly
            count = (self.settings.num_draft_tokens + len(starts) - 1 - number) // len(starts)
            parent = 0
            for token in self._continuation(start, count):
                parents.append(parent)
                parent = len(tokens)
                tokens.append(token)
        return DraftTree.from_parents(tokens, parents, device=self._device)

    def _note(self, token: int) -> None:
        """Append a token: it is the continuation of every n-gram that ended before it.

        The n-grams that it ends are noted with the token after it, so the last ones never match
        themselves.
        """
        start = len(self._text)
        for n in range(1, min(self.settings.max_ngram, start) + 1):
            starts = self._starts.setdefault(tuple(self._text[-n:]), [])
            others = [old for old in starts if self._text[old] != token]
            starts[:] = [start, *others][: self.settings.num_continuations]
        self._text.append(token)

    def _longest_match(self) -> list[int]:
        """Where the continuations of the longest known n-gram at the end begin; [] if none."""
        for n in range(min(self.settings.max_ngram, len(self._text)), 0, -1):
            starts = self._starts.get(tuple(self._text[-n:]))
            if starts:
                return starts
        return []

    def _continuation(self, start: int, count: int) -> list[int]:
        """`count` tokens from `start` on; past the end of the text its own drafts are read."""
        drafts: list[int] = []
        for at in range(start, start + count):
            beyond = at - len(self._text)
            drafts.append(self._text[at] if beyond < 0 else drafts[beyond])
        return drafts

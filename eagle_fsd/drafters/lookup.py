"""The drafter that looks its drafts up in the text so far: no head, no draft distribution.

Prompt look-up decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens`): the longest of the last n-grams that occurred before is taken to go on
as it did then.

    A B C D E A B C     the last 3-gram A B C occurred at the start, so D E A B C ... are drafted

Beyond the source: each draft is looked up behind those before it, so that A A A drafts as many A
as wanted (continuations.py).

Axes: T newly committed tokens, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput, check_least
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.continuations import Continuations
from eagle_fsd.models.loaded import Model


@dataclass(frozen=True)
class LookupSettings:
    """How drafts are looked up, as arms say it (`exact@lookup:10,max_ngram=2`).

    Attributes:
        num_draft_tokens: most drafts of a round.
        max_ngram: longest n-gram looked up; shorter ones down to 1 follow.

    Raises:
        BadInput: a value is below 1.
    """

    needs_head: ClassVar[bool] = False
    num_draft_tokens: int = 10
    max_ngram: int = 3

    def __post_init__(self):
        check_least(self, num_draft_tokens=1, max_ngram=1)

    def build(self, model: Model) -> "LookupDrafter":
        if self.num_draft_tokens >= model.target.max_positions:
            raise BadInput(
                f"num_draft_tokens {self.num_draft_tokens} is beyond the target's "
                f"{model.target.max_positions} positions: lower it"
            )
        return LookupDrafter(self)


class LookupDrafter:
    """Drafts what followed the longest matching n-gram, as a chain.

    There is no divergence without a draft distribution: D is NaN and never passes, so that `fsd`
    emits what `exact` emits. When no n-gram matches, the tree is the root alone and the round is a
    plain step. The first token of a prompt is never told to a drafter and is not looked up.
    """

    def __init__(self, settings: LookupSettings = LookupSettings()):  # noqa: B008  (frozen)
        self.settings = settings
        self.max_nodes = settings.num_draft_tokens + 1
        self.reset(0)

    def reset(self, capacity: int) -> None:
        self._text = Continuations(self.settings.max_ngram)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        self._device = features_TF.device
        self._text.extend(next_tokens)

    def propose(self) -> DraftTree:
        """The chain below the root, every draft looked up behind those before it."""
        context = self._text.last
        tokens = list(context[-1:])
        while len(tokens) < self.max_nodes and (known := self._text.after(context)):
            tokens.append(known[0])
            context = self._text.follow(context, known[0])
        parents = [0, *range(len(tokens) - 1)]
        return DraftTree.from_parents(tokens, parents, device=self._device)

"""The drafter that looks its drafts up in the text so far: no head, no draft distribution.

Prompt look-up decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens`): the longest of the last n-grams that occurred before is taken to go on
as it did then.

    A B C D E A B C     the last 3-gram A B C occurred at the start, so D E A B C ... are drafted

Beyond the source: each draft is looked up behind those before it, so that A A A drafts as many A
as wanted. It is the hybrid without a head (hybrid.py): a chain. There is no divergence without a
draft distribution: D is NaN and never passes, so that `fsd` emits what `exact` emits. When no
n-gram matches, the tree is the root alone and the round is a plain step. The first token of a
prompt is never told to a drafter and is not looked up.
"""

from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput, check_least
from eagle_fsd.drafters.hybrid import HybridDrafter
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

    def build(self, model: Model) -> HybridDrafter:
        if self.num_draft_tokens >= model.target.max_positions:
            raise BadInput(
                f"num_draft_tokens {self.num_draft_tokens} is beyond the target's "
                f"{model.target.max_positions} positions: lower it"
            )
        return HybridDrafter(None, self.max_ngram, self.num_draft_tokens)

"""The drafter that grows its trees with a second language model of the target's tokenizer.

The setting in which speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) and FSD were
published: a model pair and a chain of 5. Axes: see growing.py.
"""

from collections.abc import Sequence
from typing import Self

import torch

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import GREEDY
from eagle_fsd.drafters.growing import GrowingDrafter
from eagle_fsd.recurrent.kinds import check_no_states


class LanguageModelDrafter(GrowingDrafter):
    """Grows one tree a round with a language model, which reads no features of the target.

    With n committed tokens its rows are t_0 .. t_{n-1}, the root the last. Drafted are the tokens
    of which both tables have a row, but for `foreign_ids`, which the target's tokenizer lacks.
    """

    named = "the draft model"

    def __init__(
        self,
        model: Target,
        target: Target,
        tree: TreeConfig,
        *,
        samples: bool = False,
        foreign_ids: Sequence[int] = (),
    ):
        check_no_states(model.config)
        self.model = model
        self._rows = min(model.vocab_size, target.vocab_size)
        token_R = torch.tensor(sorted({*range(self._rows)} - {*foreign_ids}), device=target.device)
        self.draft_token_R = None if len(token_R) == target.vocab_size else token_R
        super().__init__(target, tree, samples=samples)

    def new_cache(self, capacity: int) -> TreeCache:
        return self.model.begin(capacity)

    def begin(self, capacity, first_token, sampling=GREEDY, seed=0) -> Self:
        if capacity > self.model.max_positions:
            raise BadInput(
                f"prompt and budget of {capacity} tokens are beyond the draft model's "
                f"{self.model.max_positions} positions: shorten the prompt or lower the budget"
            )
        own = super().begin(capacity, first_token, sampling, seed)
        own.observe(torch.empty(1, 0, device=self.target.device), [first_token])
        return own

    def observe(self, features_TF, next_tokens, logits_NV=None) -> None:
        super().observe(features_TF[:, :0], next_tokens)

    def step(self, cache, hidden_TD, token_T, place_T, row_T, visible_TS, position_S, read_M):
        # a token of which the model has no row is read as its last
        token_T = token_T.clamp_max(self.model.vocab_size - 1)
        given = token_T, row_T, place_T, visible_TS, position_S
        logits_TV, _ = self.model.run(cache, *given, read_M=read_M)
        logits_TV = logits_TV[:, : self._rows]
        if (self.vocab_size or self._rows) < self._rows:
            logits_TV = logits_TV.index_select(1, self.draft_token_R)
        return hidden_TD[: len(logits_TV)], logits_TV

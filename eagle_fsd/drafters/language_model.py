"""The drafter that grows its trees with a second language model of the target's tokenizer.

The setting in which speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) and FSD were
published: a model pair and a chain of 5. The model is the run's (`--draft_model`), no part of an
arm.

Axes: T new positions, S cache rows, R draft vocabulary.
"""

from collections.abc import Sequence

import torch

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.drafter import GREEDY
from eagle_fsd.decoding.engine import CachedSequence
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.growing import GrowingDrafter
from eagle_fsd.recurrent.kinds import no_draft_states


class LanguageModelDrafter(GrowingDrafter):
    """Grows one tree a round with a language model, which reads no features of the target.

    With n committed tokens its rows are t_0 .. t_{n-1}, the root the last. Where the two
    vocabularies are padded to different sizes, the tokens of the smaller are drafted.
    """

    def __init__(self, model: Target, target: Target, tree: TreeConfig, *, samples: bool = False):
        if model.has_states:
            raise no_draft_states(model.config.model_type)
        self.model = model
        R = min(model.vocab_size, target.vocab_size)
        whole = R == target.vocab_size
        self.draft_token_R = None if whole else torch.arange(R, device=target.device)
        super().__init__(target, tree, samples=samples)

    def new_sequence(self) -> CachedSequence:
        return self.model.new_sequence()

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        if capacity > self.model.max_positions:
            raise BadInput(
                f"prompt and budget of {capacity} tokens are beyond the draft model's "
                f"{self.model.max_positions} positions: shorten the prompt or lower the budget"
            )
        super().reset(capacity, first_token, sampling, seed)
        self.observe(torch.empty(1, 0, device=self.target.device), [first_token])

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        super().observe(features_TF[:, :0], next_tokens)

    def forward(self, hidden_TD, token_T, place_T, visible_TS, base, width) -> torch.Tensor:
        stands_S = None
        if visible_TS is not None:
            row_S = torch.arange(visible_TS.shape[1], device=token_T.device)
            stands_S = torch.where(row_S < base, row_S, base + (row_S - base) // width)
        nodes = token_T, place_T.expand_as(token_T), visible_TS, stands_S
        return self.model.run(self._sequence.cache, *nodes)[0]

    def readout(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden_TD)[:, : self.draft_vocab_size]

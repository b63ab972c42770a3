"""The drafter whose trees are grown by a model of its own (tree_grower.py): the model's cache, and
its steps.

The model is a draft head (eagle.py) or a whole language model (language_model.py).

Axes: K branch_top_k (the frontier), E expanded nodes, P positions of a round, T new positions, D
hidden size, F features, S cache rows, R draft vocabulary.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.drafter import GREEDY, Drafter
from eagle_fsd.decoding.engine import CachedSequence
from eagle_fsd.decoding.sampling import draw_distinct
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.tree_grower import TreeGrower, TreeShape

BLOCK_ROWS = 256  # of a prompt are run at once
# Sets the numbers by which an answer's drafts are drawn apart from those by which it is itself
DRAFTS_SEED = 0x5EED0FD4


class GrowingDrafter(Drafter):
    """Grows one EAGLE-2 tree a round, of the model's most probable tokens.

    If it `samples` they are drawn instead, from its distribution after the answer's temperature,
    top-k and top-p, siblings without replacement; the numbers for that go by seed and round.

    Rows of committed tokens stay in the model's cache ("stable"), row i at position i; rows of the
    tree are dropped after each round. The last stable row's output is the root's, and with n of
    them a frontier of level d stands at position n - 1 + d.

    Attributes:
        draft_token_R: see DraftTree.
    """

    draft_token_R: torch.Tensor | None

    def __init__(self, target: Target, tree: TreeConfig, *, samples: bool = False):
        self.target, self.samples = target, samples
        self.vocab_size = None if self.draft_token_R is None else len(self.draft_token_R)
        self._set_tree(tree)

    @property
    def draft_vocab_size(self) -> int:
        """Number of tokens that can be drafted, R."""
        return self.vocab_size or self.target.vocab_size

    # --- what a model is ------------------------------------------------------------------------

    def new_sequence(self) -> CachedSequence:
        """For the model's cache."""
        raise NotImplementedError

    def hidden(self, features_TF: torch.Tensor) -> torch.Tensor:
        """What the model reads, beside tokens, of the target's features, [T, D]."""
        return features_TF

    def places(self, position_P: torch.Tensor) -> torch.Tensor:
        """What the model reads of positions, [P, ...]: of all of a round's at once."""
        return position_P

    def forward(
        self,
        hidden_TD: torch.Tensor,
        token_T: torch.Tensor,
        place_T: torch.Tensor,
        visible_TS: torch.Tensor | None,
        base: int | torch.Tensor,
        width: int,
    ) -> torch.Tensor:
        """One step of the model, [T, D]; its rows are appended to the cache.

        Args:
            hidden_TD: `hidden` of the features, or what an earlier step returned for the parents.
            place_T: rows of `places`, one for every token or one for all.
            visible_TS: which cache rows each position sees; None: all before it.
            base, width: from row `base` on, `width` rows at a time stand at one position.
        """
        raise NotImplementedError

    def readout(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Raw logits [T, R] of what `forward` returned."""
        raise NotImplementedError

    # --- a drafter ------------------------------------------------------------------------------

    def _set_tree(self, tree: TreeConfig) -> None:
        if tree.branch_top_k > self.draft_vocab_size:
            raise BadInput(
                f"branch_top_k {tree.branch_top_k} is more than the draft vocabulary "
                f"{self.draft_vocab_size}"
            )
        if tree.num_draft_tokens >= self.target.max_positions:
            raise BadInput(
                f"num_draft_tokens {tree.num_draft_tokens} is beyond the target's "
                f"{self.target.max_positions} positions: lower it"
            )
        self.tree_config = tree
        self.max_nodes = tree.num_draft_tokens + 1
        self._shape = TreeShape(tree, self.target.device)
        self._sequence = self.new_sequence()
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def with_tree(self, tree: TreeConfig, *, samples: bool = False) -> Self:
        """The same model growing trees of another shape; nothing is loaded or packed again."""
        other = copy.copy(self)
        other.samples = samples
        other._set_tree(tree)
        return other

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        self._pending, self._sampling = [], sampling
        self._generator = torch.Generator().manual_seed(seed ^ DRAFTS_SEED)
        slots = self.tree_config.tree_depth + 1  # see CachedSequence.draft
        self._sequence.start(capacity + self.max_nodes + self.tree_config.num_expanded + slots)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        token_T = torch.tensor(next_tokens).to(features_TF.device, non_blocking=True)
        self._pending.append((features_TF, token_T))

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        features_TF, token_T = self._take_pending()
        inputs, config = [features_TF, token_T], self.tree_config
        if self.samples:
            shape = config.num_expanded, config.branch_top_k
            uniform_EK = torch.rand(shape, generator=self._generator)
            inputs.append(uniform_EK.to(token_T.device, non_blocking=True))
        tree = self._sequence.draft(
            self._grow,
            *inputs,
            slots=config.tree_depth + 1,
            rows=config.num_expanded,
            kind=self._sampling if self.samples else None,
        )
        self._sequence.advance(token_T.shape[0])
        self._sequence.cache.length = self._sequence.length
        return tree

    def _take_pending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What was committed since the last round; of much, all but the end has been run.

        A prompt runs in blocks: at once, it would need as much memory as the target's own prefill.
        """
        parts = tuple(zip(*self._pending, strict=True))
        self._pending = []
        features_TF, token_T = (part[0] if len(part) == 1 else torch.cat(part) for part in parts)
        while token_T.shape[0] > BLOCK_ROWS:
            stable = self._sequence.length
            step_T = torch.arange(BLOCK_ROWS, device=token_T.device)
            block = features_TF[:BLOCK_ROWS], token_T[:BLOCK_ROWS], self.places(stable + step_T)
            self._step(*block, stable, step_T)
            self._sequence.advance(BLOCK_ROWS)
            features_TF, token_T = features_TF[BLOCK_ROWS:], token_T[BLOCK_ROWS:]
        return features_TF, token_T

    def _step(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        place_T: torch.Tensor,
        stable: int | torch.Tensor,
        step_T: torch.Tensor,
    ) -> torch.Tensor:
        """Run what is committed, behind `stable` rows, [T, D]; step_T are 0, 1, .."""
        fresh = isinstance(stable, int) and stable == 0  # then the model's own causal mask does
        nodes = self.hidden(features_TF), token_T, place_T
        step = partial(self.forward, *nodes, base=stable, width=1)
        return self._sequence.step(step, None if fresh else step_T[:, None] >= step_T, stable)

    def _grow(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        count: int | torch.Tensor,
        stable: int | torch.Tensor,
        uniform_EK: torch.Tensor | None = None,
    ) -> DraftTree:
        """Run what was committed since the last round, then grow the tree below the end of it.

        Args:
            features_TF, token_T: what is new, padded where `count` is a tensor.
            count: how many they are; a tensor, where nothing may depend on values on the host.
            stable: rows in the cache before them.
            uniform_EK: by which the children of every expanded node are drawn; None: the best.
        """
        T, K, levels = token_T.shape[0], self.tree_config.branch_top_k, self.tree_config.tree_depth
        step_T, base = torch.arange(T, device=token_T.device), stable + count
        place_P = self.places(torch.cat([stable + step_T, base + self._shape.row_E[: levels - 1]]))
        hidden_TD = self._step(features_TF, token_T, place_P[:T], stable, step_T)
        if isinstance(count, int):
            hidden_KD, root_1 = hidden_TD[-1:], token_T[-1:]
        else:
            last_1 = (count - 1).reshape(1)
            hidden_KD, root_1 = hidden_TD.index_select(0, last_1), token_T.index_select(0, last_1)
        grower = TreeGrower(self._shape, self.draft_token_R)
        seen_KE = own_KK = self._shape.own_KK  # tree rows that a frontier node sees
        for level in range(levels):
            if level:
                token_K, slot_K = grower.frontier()
                if level > 1:  # what its parent saw, and itself
                    seen_KE = torch.cat([seen_KE.index_select(0, slot_K), own_KK], dim=1)
                place_1 = place_P[T + level - 1 : T + level]
                nodes = hidden_KD.index_select(0, slot_K), token_K, place_1
                step = partial(self.forward, *nodes, base=base, width=K)
                hidden_KD = self._sequence.step(step, seen_KE, base)
            logits_KR, drawn_KK = self.readout(hidden_KD), None
            if uniform_EK is not None:
                uniform_KK, uniform_EK = uniform_EK.tensor_split([logits_KR.shape[0]])
                drawn_KK = draw_distinct(logits_KR, uniform_KK, self._sampling)
            grower.add_level(logits_KR, drawn_KK)
        return grower.finish(root_1)

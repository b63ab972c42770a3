"""What drafters share that grow a tree a round with a model of their own: its cache, and the steps.

The model is a draft head (eagle.py) or a whole language model (language_model.py).

Axes: T new positions, K frontier nodes (branch_top_k), E expanded nodes, of which a node sees some,
D hidden size, F features, R draft vocabulary, S cache rows.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import nn

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.drafter import GREEDY
from eagle_fsd.decoding.engine import CachedSequence
from eagle_fsd.decoding.sampling import draw_distinct
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.grower import TreeGrower
from eagle_fsd.engine.graphs import fixed_rows, visible_rows

BLOCK_ROWS = 256  # of a prompt are run at once
# Sets the numbers by which an answer's drafts are drawn apart from those by which it is itself
DRAFTS_SEED = 0x5EED0FD4


class GrowingDrafter:
    """Grows one EAGLE-2 tree a round, of the model's most probable tokens.

    With `sample` they are drawn instead, from its distribution after the answer's temperature,
    top-k and top-p, siblings without replacement; the numbers for that go by seed and round.

    Rows of committed tokens stay in the model's cache ("stable"), row i at position i; rows of the
    tree are dropped after each round. The last stable row's output is the root's, and with n of
    them a frontier of level d stands at position n - 1 + d.

    Attributes:
        draft_token_R: see DraftTree.
        draft_vocab_size: number of tokens that can be drafted, R.
    """

    draft_token_R: torch.Tensor | None
    draft_vocab_size: int

    def __init__(self, target: Target, tree: TreeConfig, *, sample: bool = False):
        self.target, self.sample = target, sample
        self._set_tree(tree)

    # --- what a model is ------------------------------------------------------------------------

    def new_sequence(self) -> CachedSequence:
        """For the model's cache."""
        raise NotImplementedError

    def hidden(self, features_TF: torch.Tensor) -> torch.Tensor:
        """What the model reads, beside tokens, of the target's features, [T, D]."""
        return features_TF

    def forward(
        self,
        hidden_TD: torch.Tensor,
        token_T: torch.Tensor,
        position_T: torch.Tensor,
        visible_TS: torch.Tensor | None,
        base: int | torch.Tensor,
        width: int,
    ) -> torch.Tensor:
        """One step of the model, [T, D]; its rows are appended to the cache.

        Args:
            hidden_TD: `hidden` of the features, or what an earlier step returned for the parents.
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
        self._sequence = self.new_sequence()
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def with_tree(self, tree: TreeConfig, *, sample: bool = False) -> Self:
        """The same model growing trees of another shape; nothing is loaded or packed again."""
        other = copy.copy(self)
        other.sample = sample
        other._set_tree(tree)
        return other

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        self._pending, self._sampling = [], sampling
        self._generator = torch.Generator().manual_seed(seed ^ DRAFTS_SEED)
        slots = self.tree_config.tree_depth + 1  # see _grow_fixed
        self._sequence.start(capacity + self.max_nodes + self.tree_config.num_expanded + slots)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        token_T = torch.tensor(next_tokens).to(features_TF.device, non_blocking=True)
        self._pending.append((features_TF, token_T))

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        features_TF, token_T = self._take_pending()
        stable, cache = self._sequence.length, self._sequence.cache
        T, uniform_EK = token_T.shape[0], None
        if self.sample:
            shape = self.tree_config.num_expanded, self.tree_config.branch_top_k
            uniform_EK = torch.rand(shape, generator=self._generator)
            uniform_EK = uniform_EK.to(token_T.device, non_blocking=True)
        # what a round commits fits a recorded shape; a prompt does not, and comes first
        if self._sequence.fixed_shapes and stable and T <= self.tree_config.tree_depth + 1:
            tree = self._grow_fixed(features_TF, token_T, uniform_EK)
        else:
            tree = self._grow(features_TF, token_T, T, stable, uniform_EK)
        cache.length = stable + T
        self._sequence.advance(T)
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
            self._step(features_TF[:BLOCK_ROWS], token_T[:BLOCK_ROWS], stable, None)
            self._sequence.advance(BLOCK_ROWS)
            features_TF, token_T = features_TF[BLOCK_ROWS:], token_T[BLOCK_ROWS:]
        return features_TF, token_T

    def _step(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        stable: int | torch.Tensor,
        bucket: int | None,
    ) -> torch.Tensor:
        """Run what is committed, behind `stable` rows, [T, D]."""
        step_T = torch.arange(token_T.shape[0], device=token_T.device)
        fresh = bucket is None and stable == 0  # then the model's own causal mask does
        return self._run(
            self.hidden(features_TF),
            token_T,
            stable + step_T,
            seen_TE=None if fresh else step_T[:, None] >= step_T,
            base=stable,
            width=1,
            bucket=bucket,
        )

    def _grow_fixed(
        self, features_TF: torch.Tensor, token_T: torch.Tensor, uniform_EK: torch.Tensor | None
    ) -> DraftTree:
        """`_grow` as a function of fixed shapes; see engine/graphs.py."""
        sequence = self._sequence
        T, slots = token_T.shape[0], self.tree_config.tree_depth + 1
        features_SF = nn.functional.pad(features_TF, (0, 0, 0, slots - T))
        token_S = nn.functional.pad(token_T, (0, slots - T))
        count = torch.full((), T, device=token_T.device)
        bucket = sequence.bucket(sequence.length + slots + self.tree_config.num_expanded)
        grow = partial(self._grow, bucket=bucket)
        inputs = (features_SF, token_S, count, sequence.length_on_device)
        if uniform_EK is None:
            return sequence.run(bucket, grow, *inputs)
        return sequence.run((bucket, self._sampling), grow, *inputs, uniform_EK)

    def _grow(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        count: int | torch.Tensor,
        stable: int | torch.Tensor,
        uniform_EK: torch.Tensor | None = None,
        *,
        bucket: int | None = None,
    ) -> DraftTree:
        """Run what was committed since the last round, then grow the tree below the end of it.

        Args:
            features_TF, token_T: what is new; with a bucket, padded.
            count: how many they are.
            stable: rows in the cache before them.
            uniform_EK: by which the children of every expanded node are drawn; None: the best.
            bucket: cache rows to read; then nothing here depends on values on the host.
        """
        device, K = token_T.device, self.tree_config.branch_top_k
        hidden_TD = self._step(features_TF, token_T, stable, bucket)
        if bucket is None:
            hidden_KD, root_1 = hidden_TD[-1:], token_T[-1:]
        else:
            last_1 = (count - 1).reshape(1)
            hidden_KD, root_1 = hidden_TD.index_select(0, last_1), token_T.index_select(0, last_1)
        base = stable + count
        grower = TreeGrower(self.tree_config, self.draft_token_R)
        own_KK = torch.eye(K, dtype=torch.bool, device=device)
        seen_KE = own_KK[:, :0]  # which tree rows, ancestors or itself, a frontier node sees
        for level in range(self.tree_config.tree_depth):
            logits_KR, drawn_KK = self.readout(hidden_KD), None
            if uniform_EK is not None:
                uniform_KK, uniform_EK = uniform_EK.tensor_split([logits_KR.shape[0]])
                drawn_KK = draw_distinct(logits_KR, uniform_KK, self._sampling)
            token_K, slot_K = grower.add_level(logits_KR, drawn_KK)
            if level + 1 == self.tree_config.tree_depth:
                break
            if level:
                seen_KE = seen_KE[slot_K]
            seen_KE = torch.cat([seen_KE, own_KK], dim=1)
            position_K = torch.zeros_like(token_K) + base + level
            hidden_KD = self._run(
                hidden_KD[slot_K],
                token_K,
                position_K,
                seen_TE=seen_KE,
                base=base,
                width=K,
                bucket=bucket,
            )
        return grower.finish(root_1)

    def _run(
        self,
        hidden_TD: torch.Tensor,
        token_T: torch.Tensor,
        position_T: torch.Tensor,
        *,
        seen_TE: torch.Tensor | None,
        base: int | torch.Tensor,
        width: int,
        bucket: int | None,
    ) -> torch.Tensor:
        """One step of the model, [T, D].

        Args:
            seen_TE: which rows from `base` on each position sees; the last T of them are its own.
                Rows before `base` are seen by all. None: the cache is empty, and causal.
            width: rows from `base` on that stand at one position.
        """
        step = partial(self.forward, hidden_TD, token_T, position_T, base=base, width=width)
        if bucket is None:
            if seen_TE is None or seen_TE.shape[0] == 1:  # a row alone sees all of its chain
                return step(visible_TS=None)
            return step(visible_TS=nn.functional.pad(seen_TE, (base, 0), value=True))
        T, E = seen_TE.shape
        with fixed_rows(self._sequence.cache, base + E - T, T, bucket):
            return step(visible_TS=visible_rows(seen_TE, base, bucket))

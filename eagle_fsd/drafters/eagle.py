"""The drafter that grows a dynamic tree a round with a draft head (heads/models.py; grower.py).

Axes: T new positions, K frontier nodes, E of them that a node sees, D hidden size, F features.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from eagle_fsd.config import BadInput, TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.masks import additive, fold
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.grower import TreeGrower
from eagle_fsd.engine.graphs import fixed_rows, visible_rows
from eagle_fsd.heads.models import DraftHead, draft_readout, runnable
from eagle_fsd.models.loaded import Model

BLOCK_ROWS = 256  # of a prompt are run at once


@dataclass(frozen=True)
class EagleSettings:
    """The head's trees, as arms say them (`exact@eagle:7x3x4`).

    Attributes:
        tree: a shape, DRAFTSxLEVELSxTOPK; "": the model's.
    """

    needs_head: ClassVar[bool] = True
    tree: str = ""

    def __post_init__(self):
        if self.tree:
            object.__setattr__(self, "tree", tree_name(parse_tree(self.tree)))

    def build(self, model: Model) -> "EagleDrafter":
        if not self.tree:
            return model.drafter
        if not isinstance(model.drafter, EagleDrafter):
            raise BadInput(f"tree {self.tree} needs a draft head; the model was loaded without one")
        return model.drafter.with_tree(parse_tree(self.tree))


class EagleDrafter:
    """Grows one EAGLE-2 tree a round with an EAGLE-1/2 or EAGLE-3 head.

    Rows of committed tokens stay in the head's cache ("stable"); rows of the tree are dropped after
    each round. With n committed tokens (the root is the last) the stable rows are the pairs
    (f_0, t_1) .. (f_{n-2}, t_{n-1}); the last one's output is the root's, and a frontier of level d
    stands at position n - 2 + d.

    Attributes:
        draft_vocab_size: number of tokens that the head can draft, R.
    """

    def __init__(self, head: DraftHead, target: Target, tree: TreeConfig):
        weight = head.fc.weight
        wanted = (target.hidden_size, (3 if head.config.eagle3 else 2) * target.hidden_size)
        if tuple(weight.shape) != wanted or weight.dtype != target.dtype:
            raise BadInput(
                f"the head's fc.weight is {tuple(weight.shape)} in {weight.dtype}, "
                f"the target needs {wanted} in {target.dtype}"
            )
        layers = head.config.fused_layers(target.num_layers)
        if layers != target.feature_layers:
            raise BadInput(
                f"the head reads hidden states {layers or 'after the final norm'}, the target was "
                f"loaded to give {target.feature_layers or 'those after the final norm'}"
            )
        self.head = runnable(head, target.engine)  # the head given is not kept
        self._query_groups = head.config.num_attention_heads // head.config.num_key_value_heads
        self.readout = draft_readout(self.head, target)
        self.draft_token_R = head.draft_token_R
        self.draft_vocab_size = head.config.draft_vocab_size or target.vocab_size
        self.target = target
        self._set_tree(tree)

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
        new_cache = partial(TreeCache, self.head.config.num_hidden_layers)
        self._sequence = self.target.engine.sequence(new_cache, self.target.device)
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def with_tree(self, tree: TreeConfig) -> "EagleDrafter":
        """The same head growing trees of another shape; nothing is loaded or packed again."""
        other = copy.copy(self)
        other._set_tree(tree)
        return other

    def reset(self, capacity: int) -> None:
        self._pending = []
        slots = self.tree_config.tree_depth + 1  # see _grow_fixed
        self._sequence.start(capacity + self.max_nodes + self.tree_config.num_expanded + slots)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        token_T = torch.tensor(next_tokens).to(features_TF.device, non_blocking=True)
        self._pending.append((features_TF, token_T))

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        features_TF, token_T = self._take_pending()
        stable, cache = self._sequence.length, self._sequence.cache
        T = token_T.shape[0]
        # what a round commits fits a recorded shape; a prompt does not, and comes first
        if self._sequence.fixed_shapes and stable and T <= self.tree_config.tree_depth + 1:
            tree = self._grow_fixed(features_TF, token_T)
        else:
            tree = self._grow(features_TF, token_T, T, stable)
        cache.length = stable + T
        self._sequence.advance(T)
        return tree

    def _take_pending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pairs committed since the last round; of many, all but the last have been run.

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
        """Run committed pairs, behind `stable` rows, [T, D]."""
        step_T = torch.arange(token_T.shape[0], device=token_T.device)
        fresh = bucket is None and stable == 0  # then the head's own causal mask does
        return self._run(
            self.head.fuse(features_TF),
            token_T,
            stable + step_T,
            seen_TE=None if fresh else step_T[:, None] >= step_T,
            base=stable,
            bucket=bucket,
        )

    def _grow_fixed(self, features_TF: torch.Tensor, token_T: torch.Tensor) -> DraftTree:
        """`_grow` as a function of fixed shapes; see engine/graphs.py."""
        sequence = self._sequence
        T, slots = token_T.shape[0], self.tree_config.tree_depth + 1
        features_SF = nn.functional.pad(features_TF, (0, 0, 0, slots - T))
        token_S = nn.functional.pad(token_T, (0, slots - T))
        count = torch.full((), T, device=token_T.device)
        bucket = sequence.bucket(sequence.length + slots + self.tree_config.num_expanded)
        grow = partial(self._grow, bucket=bucket)
        inputs = (features_SF, token_S, count, sequence.length_on_device)
        return sequence.run(bucket, grow, *inputs)

    def _grow(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        count: int | torch.Tensor,
        stable: int | torch.Tensor,
        *,
        bucket: int | None = None,
    ) -> DraftTree:
        """Run the pairs committed since the last round, then grow the tree below the last of them.

        Args:
            features_TF, token_T: the new pairs; with a bucket, padded.
            count: how many they are.
            stable: rows in the cache before them.
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
            token_K, slot_K = grower.add_level(self.readout(hidden_KD))
            if level + 1 == self.tree_config.tree_depth:
                break
            if level:
                seen_KE = seen_KE[slot_K]
            seen_KE = torch.cat([seen_KE, own_KK], dim=1)
            position_K = torch.zeros_like(token_K) + base + level
            hidden_KD = self._run(
                hidden_KD[slot_K], token_K, position_K, seen_TE=seen_KE, base=base, bucket=bucket
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
        bucket: int | None,
    ) -> torch.Tensor:
        """One step of the head, [T, D].

        Args:
            seen_TE: which rows from `base` on each position sees; the last T of them are its own.
                Rows before `base` are seen by all. None: the cache is empty, and causal.
        """
        inputs = (hidden_TD[None], self.target.embed(token_T)[None], position_T)
        cache = self._sequence.cache
        if bucket is None:
            mask = None
            if seen_TE is not None and seen_TE.shape != (1, 1):  # a row alone needs none
                own_TE = additive(seen_TE, self.target.dtype)
                prefix_TS = own_TE.new_zeros(own_TE.shape[0], base)
                mask = fold(torch.cat([prefix_TS, own_TE], dim=1), self._query_groups)
            return self.head(*inputs, cache=cache, mask=mask)[0]
        T, E = seen_TE.shape
        visible_TK = visible_rows(seen_TE, base, bucket)
        mask = fold(additive(visible_TK, hidden_TD.dtype), self._query_groups)
        with fixed_rows(cache, base + E - T, T, bucket):
            return self.head(*inputs, cache=cache, mask=mask)[0]

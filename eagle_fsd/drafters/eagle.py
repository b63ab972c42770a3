"""The drafter that grows a dynamic tree a round with a draft head (heads.py; trees: tree.py).

Axes: T new positions, K frontier nodes, E of them that a node sees, D hidden size, F features.
"""

import copy

import torch

from eagle_fsd.cache import TreeCache
from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.heads import DraftHead, draft_readout, runnable
from eagle_fsd.engine.attention import fold_mask
from eagle_fsd.target import Target
from eagle_fsd.tree import DraftTree, TreeGrower


class EagleDrafter:
    """Grows one EAGLE-2 tree a round with an EAGLE-1/2 or EAGLE-3 head.

    Rows of committed tokens stay in the head's cache ("stable"); rows of the tree are dropped after
    each round. With n committed tokens (the root is the last) the stable rows are the pairs
    (f_0, t_1) .. (f_{n-2}, t_{n-1}); the last one's output is the root's, and a frontier of level d
    stands at position n - 2 + d.
    """

    def __init__(self, head: DraftHead, target: Target, tree: TreeConfig):
        weight = head.fc.weight
        wanted = (target.hidden_size, (3 if head.config.eagle3 else 2) * target.hidden_size)
        if tuple(weight.shape) != wanted or weight.dtype != target.dtype:
            raise ValueError(
                f"the head's fc.weight is {tuple(weight.shape)} in {weight.dtype}, "
                f"the target needs {wanted} in {target.dtype}"
            )
        layers = head.config.fused_layers(target.num_layers)
        if layers != target.feature_layers:
            raise ValueError(
                f"the head reads hidden states {layers or 'after the final norm'}, the target was "
                f"loaded to give {target.feature_layers or 'those after the final norm'}"
            )
        self.head = head
        self._run_head = runnable(head, target.engine)
        self._query_groups = head.config.num_attention_heads // head.config.num_key_value_heads
        self.readout = draft_readout(self._run_head, target)
        self.draft_token_R = head.draft_token_R
        self.target = target
        self._set_tree(tree)

    def _set_tree(self, tree: TreeConfig) -> None:
        vocabulary = self.head.config.draft_vocab_size or self.target.vocab_size
        if tree.branch_top_k > vocabulary:
            raise ValueError(
                f"branch_top_k {tree.branch_top_k} is more than the draft vocabulary {vocabulary}"
            )
        self.tree_config = tree
        self.max_nodes = tree.num_draft_tokens + 1
        self._cache: TreeCache | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def with_tree(self, tree: TreeConfig) -> "EagleDrafter":
        """The same head growing trees of another shape; nothing is loaded or packed again."""
        other = copy.copy(self)
        other._set_tree(tree)
        return other

    def reset(self, capacity: int) -> None:
        rows = capacity + self.max_nodes + self.tree_config.num_expanded
        self._cache = TreeCache(self.head.config.num_hidden_layers, rows)
        self._pending = []

    def observe(self, features_TF: torch.Tensor, next_token_T: torch.Tensor) -> None:
        self._pending.append((features_TF, next_token_T))

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        hidden_KD, root_1 = self._extend()
        device = hidden_KD.device
        stable = self._cache.length
        grower = TreeGrower(self.tree_config, self.draft_token_R)
        K = self.tree_config.branch_top_k
        own_KK = self._additive(torch.eye(K, dtype=torch.bool, device=device))
        seen_KE = own_KK[:, :0]  # additive: which tree rows, ancestors or itself, a node sees
        for level in range(self.tree_config.tree_depth):
            token_K, slot_K = grower.add_level(self.readout(hidden_KD))
            if level + 1 == self.tree_config.tree_depth:
                break
            if level:
                seen_KE = seen_KE[slot_K]
            seen_KE = torch.cat([seen_KE, own_KK], dim=1)
            hidden_KD = self._run_head(
                hidden_KD[slot_K][None],
                self.target.embed(token_K)[None],
                torch.full((K,), stable + level, device=device),
                cache=self._cache,
                mask=self._mask(stable, seen_KE),
            )[0]
        self._cache.truncate(stable)
        return grower.finish(root_1)

    def _extend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the pairs committed since the last round; return the root's row [1, D] and token."""
        features_TF, token_T = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        self._pending = []
        stable, T = self._cache.length, token_T.shape[0]
        causal_TT = torch.ones(T, T, dtype=torch.bool, device=token_T.device).tril()
        hidden_TD = self._run_head(
            self._run_head.fuse(features_TF)[None],
            self.target.embed(token_T)[None],
            torch.arange(stable, stable + T, device=token_T.device),
            cache=self._cache,
            mask=self._mask(stable, self._additive(causal_TT)) if stable and T > 1 else None,
        )[0]
        return hidden_TD[-1:], token_T[-1:]

    def _additive(self, visible_TE: torch.Tensor) -> torch.Tensor:
        dtype = self.head.fc.weight.dtype
        mask_TE = torch.zeros(visible_TE.shape, dtype=dtype, device=visible_TE.device)
        return mask_TE.masked_fill_(~visible_TE, torch.finfo(dtype).min)

    def _mask(self, stable: int, seen_TE: torch.Tensor) -> torch.Tensor:
        """All stable rows, and of the new ones what `seen` says; folded for grouped queries."""
        prefix_TS = seen_TE.new_zeros(seen_TE.shape[0], stable)
        return fold_mask(torch.cat([prefix_TS, seen_TE], dim=1), self._query_groups)

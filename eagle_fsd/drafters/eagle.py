"""The drafter that grows a dynamic tree a round with a draft head (heads.py; trees: tree.py).

Axes: T new positions, K frontier nodes, E of them that a node sees, D hidden size, F features.
"""

import torch
from torch import nn

from eagle_fsd.cache import TreeCache
from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.heads import DraftHead, draft_readout
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
        vocabulary = head.config.draft_vocab_size or target.vocab_size
        if tree.branch_top_k > vocabulary:
            raise ValueError(
                f"branch_top_k {tree.branch_top_k} is more than the draft vocabulary {vocabulary}"
            )
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
        self.readout = draft_readout(head, target)
        self.draft_token_R = head.draft_token_R
        self.target = target
        self.tree_config = tree
        self.max_nodes = tree.num_draft_tokens + 1
        self._cache: TreeCache | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def with_tree(self, tree: TreeConfig) -> "EagleDrafter":
        """The same head growing trees of another shape."""
        return EagleDrafter(self.head, self.target, tree)

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
        seen_KE = torch.zeros(K, 0, dtype=torch.bool, device=device)  # a frontier's own ancestors
        own_KK = torch.eye(K, dtype=torch.bool, device=device)
        for level in range(self.tree_config.tree_depth):
            token_K, slot_K = grower.add_level(self.readout(hidden_KD))
            if level + 1 == self.tree_config.tree_depth:
                break
            if level:
                seen_KE = seen_KE[slot_K]
            seen_KE = torch.cat([seen_KE, own_KK], dim=1)
            hidden_KD = self.head(
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
        hidden_TD = self.head(
            self.head.fuse(features_TF)[None],
            self.target.embed(token_T)[None],
            torch.arange(stable, stable + T, device=token_T.device),
            cache=self._cache,
            mask=self._mask(stable, causal_TT) if stable and T > 1 else None,
        )[0]
        return hidden_TD[-1:], token_T[-1:]

    def _mask(self, stable: int, visible_TE: torch.Tensor) -> torch.Tensor:
        """Additive mask [1, 1, T, stable + E]: all stable rows, and of the new ones those given."""
        dtype = self.head.fc.weight.dtype
        mask = torch.zeros(visible_TE.shape, dtype=dtype, device=visible_TE.device)
        mask.masked_fill_(~visible_TE, torch.finfo(dtype).min)
        return nn.functional.pad(mask, (stable, 0))[None, None]

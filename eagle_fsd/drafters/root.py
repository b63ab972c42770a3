"""The drafter of plain autoregressive decoding: a tree of one node."""

import torch

from eagle_fsd.tree import DraftTree


class RootDrafter:
    """Proposes nothing, so that every round emits one token, drawn by the target."""

    max_nodes = 1

    def __init__(self):
        self._root: torch.Tensor | None = None

    def reset(self, capacity: int) -> None:
        self._root = None

    def observe(self, features_TF: torch.Tensor, next_token_T: torch.Tensor) -> None:
        self._root = next_token_T[-1:]

    def propose(self) -> DraftTree:
        device = self._root.device
        zero_1 = torch.zeros(1, dtype=torch.int64, device=device)
        return DraftTree(
            token_N=self._root,
            parent_N=zero_1,
            depth_N=zero_1,
            ancestor_NN=torch.ones(1, 1, dtype=torch.bool, device=device),
            draft_row_N=zero_1 - 1,
            draft_logits_ER=torch.empty(0, 0, device=device),
            max_depth=0,
        )

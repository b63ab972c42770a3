"""Trees grown below many tokens of a text at once, and where the text's own next tokens stand in
them.

Pool order, scores and ties are TreeGrower's (grower.py), which a test compares draft by draft.

Axes: B roots, K branch_top_k, J frontier nodes (1 at the root, then K), P pool of candidates, S
levels, X any indices.
"""

from dataclasses import dataclass

import torch

from eagle_fsd.config import TreeConfig

NOWHERE = 2**30  # rank of what is not in the pool


@dataclass(frozen=True)
class Growth:
    """The candidates of B trees of one branch_top_k, for every depth and size at once.

    A tree of d levels and M drafts holds the M best candidates of its first d levels.

    Example, text "A B C D" with root A, K = 2, 2 levels; candidates in order of score:

        0 "B"   1 "B C"   2 "X"   3 "X Y"   4 "B Z"   5 "X W"

    so 2 drafts in 2 levels accept B C.

    Attributes:
        score_BP: level by level, in frontier order, then the children of each node; -inf: none.
        text_BS: index of the text's token s + 1 levels below the root; -1: not there.
        child_BS: index of the best child of the text's node at level s (0 is the root).
        child_is_text_BS: that best child is the text's own token.
        slot_B: where the text's node stands in the current frontier; -1 once it is not there.
    """

    score_BP: torch.Tensor
    text_BS: torch.Tensor
    child_BS: torch.Tensor
    child_is_text_BS: torch.Tensor
    slot_B: torch.Tensor

    @classmethod
    def empty(cls, roots: int, tree: TreeConfig, device: torch.device) -> "Growth":
        """Without candidates; there is room for those of the tree's levels."""
        nowhere_BS = torch.full((roots, tree.tree_depth), -1, device=device)
        score_BP = torch.full((roots, tree.pool_size), -torch.inf, device=device)
        right_BS = torch.zeros_like(nowhere_BS, dtype=torch.bool)
        return cls(score_BP, nowhere_BS, nowhere_BS.clone(), right_BS, nowhere_BS[:, 0] + 1)

    def split(self, roots: int) -> list["Growth"]:
        """Views of so many roots each; what grows in them grows here."""
        parts = [tensor.split(roots) for tensor in vars(self).values()]
        return [Growth(*part) for part in zip(*parts, strict=True)]

    def has_child(self, tree: TreeConfig) -> torch.Tensor:
        """Whether the text's node at levels 0, 1, .. has children in a tree, bool [B, depth]."""
        return self._holds(self.child_BS, tree)

    def accepted(self, tree: TreeConfig) -> torch.Tensor:
        """Accepted drafts of the exact rule, int64 [B]: as many of the text's next tokens as the
        tree holds without a gap."""
        return self._holds(self.text_BS, tree).cumprod(1).sum(1)

    def _holds(self, index_BS: torch.Tensor, tree: TreeConfig) -> torch.Tensor:
        rank_BS = self._rank(index_BS[:, : tree.tree_depth], tree.pool_size)
        return rank_BS < tree.num_draft_tokens

    def _rank(self, index_BX: torch.Tensor, size: int) -> torch.Tensor:
        """Place of candidates in the stable descending order of the first `size` of the pool."""
        score_BP = self.score_BP[:, :size]
        score_BX1 = score_BP.gather(1, index_BX.clamp_min(0))[..., None]
        before = score_BP[:, None] > score_BX1
        place_P = torch.arange(size, device=score_BP.device)
        before |= (score_BP[:, None] == score_BX1) & (place_P < index_BX[..., None])
        return before.sum(-1).masked_fill_(index_BX < 0, NOWHERE)

    def add_level(
        self, level: int, score_BJK: torch.Tensor, token_BJK: torch.Tensor, text_B: torch.Tensor
    ) -> None:
        """Add the children of the current frontier, -inf for those of nodes that were not run.

        Args:
            level: of the children; 1 is right below the root.
            text_B: the text's token of that level.
        """
        K = score_BJK.shape[2]
        new = _candidates(level, K)
        self.score_BP[:, new] = score_BJK.flatten(1)
        slot_B11 = self.slot_B.clamp_min(0)[:, None, None]
        child_BK = token_BJK.take_along_dim(slot_B11, dim=1)[:, 0]
        ran_B = score_BJK.take_along_dim(slot_B11, dim=1)[:, 0, 0] > -torch.inf
        alive_B = (self.slot_B >= 0) & ran_B
        hit_BK = (child_BK == text_B[:, None]) & alive_B[:, None]
        base_B = new.start + slot_B11[:, 0, 0] * K
        found_B = base_B + hit_BK.int().argmax(1)
        self.child_BS[:, level - 1] = torch.where(alive_B, base_B, -1)
        self.text_BS[:, level - 1] = torch.where(hit_BK.any(1), found_B, -1)
        self.child_is_text_BS[:, level - 1] = hit_BK[:, 0]

    def frontier(self, level: int, tree: TreeConfig) -> tuple[torch.Tensor, torch.Tensor]:
        """The best candidates of the newest level, and which of them have to be run.

        A node need not be run if no tree of so many drafts can hold its children, since as many
        candidates already stand before it; or if the text's path has ended and everything below
        the node stands behind the last candidate that is asked about.

        Returns:
            best_BK: indices within the newest level; run_BK: bool.
        """
        new = _candidates(level, tree.branch_top_k)
        new_BP = self.score_BP[:, new]
        order_BP = new_BP.sort(dim=1, descending=True, stable=True).indices
        best_BK = order_BP[:, : tree.branch_top_k]
        text_B = self.text_BS[:, level - 1]
        is_text_BK = (best_BK + new.start == text_B[:, None]) & (text_B >= 0)[:, None]
        alive_B = is_text_BK.any(1)
        self.slot_B.copy_(torch.where(alive_B, is_text_BK.int().argmax(1), -1))
        asked_BX = torch.cat([self.text_BS, self.child_BS], dim=1)
        score_BX = self.score_BP.gather(1, asked_BX.clamp_min(0))
        lowest_B = score_BX.masked_fill(asked_BX < 0, torch.inf).amin(1)
        score_BK = new_BP.gather(1, best_BK)
        run_BK = alive_B[:, None] | (score_BK > lowest_B[:, None])
        run_BK &= self._rank(best_BK + new.start, new.stop) < tree.num_draft_tokens
        return best_BK, run_BK & (score_BK > -torch.inf)


def _candidates(level: int, K: int) -> slice:
    """Where a level's candidates are in the pool: K of the first, K * K of each other."""
    return slice(0, K) if level == 1 else slice(K + (level - 2) * K * K, K + (level - 1) * K * K)


def visited_roots(accepted_B: torch.Tensor) -> list[int]:
    """Places of the roots that decoding visits: from each one accepted + 1 ahead.

    Example: accepted 2 0 0 1 0 1 visits places 0, 3 and 5.
    """
    accepted, visited, place = accepted_B.tolist(), [], 0
    while place < len(accepted):
        visited.append(place)
        place += accepted[place] + 1
    return visited

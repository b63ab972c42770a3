"""A batch of growing trees, and where a text's own next tokens stand in them.

Pool order, scores and ties are TreeGrower's (grower.py), which a test compares draft by draft.

Axes: B roots, K branch_top_k, J frontier nodes (1 at the root, then K), P pool of candidates so
far, S levels, X any indices.
"""

from dataclasses import dataclass

import torch

from eagle_fsd.config import TreeConfig

NOWHERE = 2**30  # rank of what is not in the pool


@dataclass(frozen=True)
class Growth:
    """What trees grown with one branch_top_k hold of the text, for every depth and size at once.

    Ranks count from 0 in the order in which a tree picks its drafts (TreeGrower.finish): a tree of
    M drafts holds the ranks below M. Entry [b, d-1, s] is for a tree of d levels.

    Example, text "A B C D" with root A, K = 2, levels 2; pool in order of score, with ranks:

        0 "B"   1 "B C"   2 "X"   3 "X Y"   4 "B Z"   5 "X W"
        on_text   depth 1: 0 -    depth 2: 0 1      2 drafts in 2 levels accept B C
        children  depth 1: 0 -    depth 2: 0 1      best child of A, then of B

    Attributes:
        on_text_BSS: rank of the text's token s+1 levels below the root.
        child_BSS: rank of the best child of the text's node at level s (0 is the root).
        child_is_text_BS: that best child is the text's own token.
    """

    on_text_BSS: torch.Tensor
    child_BSS: torch.Tensor
    child_is_text_BS: torch.Tensor

    def held(self, tree: TreeConfig) -> torch.Tensor:
        """Whether a tree holds the text's next 1, 2, .. tokens, bool [B, tree_depth]."""
        d = tree.tree_depth
        return (self.on_text_BSS[:, d - 1, :d] < tree.num_draft_tokens).cumprod(1).bool()

    def has_child(self, tree: TreeConfig) -> torch.Tensor:
        """Whether the text's node at levels 0, 1, .. has children in a tree, bool [B, depth]."""
        d = tree.tree_depth
        return self.child_BSS[:, d - 1, :d] < tree.num_draft_tokens

    def accepted(self, tree: TreeConfig) -> torch.Tensor:
        """Accepted drafts of the exact rule, int64 [B]."""
        return self.held(tree).sum(1)


class Pool:
    """The candidates of B trees, and where the text's own tokens are among them.

    Pool order is TreeGrower's: level by level, frontier order, then the children of each node.

    Attributes:
        slot_B: where the text's node stands in the current frontier; -1 once it is not there.
    """

    def __init__(self, root_B: torch.Tensor, levels: int):
        B = root_B.shape[0]
        self.level = 0
        self.score_BP = torch.empty(B, 0, device=root_B.device)
        self.slot_B = torch.zeros_like(root_B)
        self._text_BS = root_B.new_full((B, levels), -1)  # pool indices; -1: not there
        self._child_BS = root_B.new_full((B, levels), -1)
        self.child_is_text_BS = torch.zeros(B, levels, dtype=torch.bool, device=root_B.device)
        self.on_text_BSS = root_B.new_full((B, levels, levels), NOWHERE)
        self.child_BSS = self.on_text_BSS.clone()

    def add_level(
        self, score_BJK: torch.Tensor, token_BJK: torch.Tensor, text_token_B: torch.Tensor
    ) -> None:
        """Add the children of the current frontier, -inf for those of nodes that were not run."""
        s, first, K = self.level, self.score_BP.shape[1], score_BJK.shape[2]
        self._first = first  # of the newest level
        self.score_BP = torch.cat([self.score_BP, score_BJK.flatten(1)], dim=1)
        alive_B = self.slot_B >= 0
        slot_B11 = self.slot_B.clamp_min(0)[:, None, None]
        child_BK = token_BJK.take_along_dim(slot_B11, dim=1)[:, 0]
        ran_B = score_BJK.take_along_dim(slot_B11, dim=1)[:, 0, 0] > -torch.inf
        alive_B = alive_B & ran_B
        hit_BK = (child_BK == text_token_B[:, None]) & alive_B[:, None]
        base_B = first + slot_B11[:, 0, 0] * K
        self._child_BS[:, s] = torch.where(alive_B, base_B, -1)
        found_B = hit_BK.any(1)
        self._text_BS[:, s] = torch.where(found_B, base_B + hit_BK.int().argmax(1), -1)
        self.child_is_text_BS[:, s] = hit_BK[:, 0]
        self.on_text_BSS[:, s] = self.rank(self._text_BS)
        self.child_BSS[:, s] = self.rank(self._child_BS)
        self.level += 1

    def frontier(self, count: int, drafts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The best candidates of the newest level, and which of them have to be run.

        A node need not be run if no tree of so many drafts can hold its children, since as many
        candidates already stand before it; or if the text's path has ended and everything below
        the node stands behind the last candidate that is asked about.

        Returns:
            best_BK: indices within the newest level; run_BK: bool.
        """
        new_BP = self.score_BP[:, self._first :]
        best_BK = new_BP.sort(dim=1, descending=True, stable=True).indices[:, :count]
        text_B = self._text_BS[:, self.level - 1]
        is_text_BK = (best_BK + self._first == text_B[:, None]) & (text_B >= 0)[:, None]
        alive_B = is_text_BK.any(1)
        self.slot_B = torch.where(alive_B, is_text_BK.int().argmax(1), -1)
        asked_BX = torch.cat([self._text_BS, self._child_BS], dim=1)
        score_BX = self.score_BP.gather(1, asked_BX.clamp_min(0))
        lowest_B = score_BX.masked_fill(asked_BX < 0, torch.inf).amin(1)
        score_BK = new_BP.gather(1, best_BK)
        run_BK = alive_B[:, None] | (score_BK > lowest_B[:, None])
        run_BK &= self.rank(best_BK + self._first) < drafts
        return best_BK, run_BK & (score_BK > -torch.inf)

    def rank(self, index_BX: torch.Tensor) -> torch.Tensor:
        """Place of candidates in the stable descending order of the pool; -1 is NOWHERE."""
        score_BP = self.score_BP
        score_BX1 = score_BP.gather(1, index_BX.clamp_min(0))[..., None]
        place_P = torch.arange(score_BP.shape[1], device=score_BP.device)
        before = score_BP[:, None] > score_BX1
        before |= (score_BP[:, None] == score_BX1) & (place_P < index_BX[..., None])
        return before.sum(-1).masked_fill_(index_BX < 0, NOWHERE)

    def growth(self) -> Growth:
        """What the grown trees hold of the text."""
        return Growth(self.on_text_BSS, self.child_BSS, self.child_is_text_BS)

    def close(self) -> None:
        """Nothing more will be added: deeper trees hold what this depth holds."""
        last = self.level - 1
        self.on_text_BSS[:, self.level :] = self.on_text_BSS[:, last : last + 1]
        self.child_BSS[:, self.level :] = self.child_BSS[:, last : last + 1]


def visited_roots(accepted_B: torch.Tensor) -> list[int]:
    """Places of the roots that decoding visits: from each one accepted + 1 ahead.

    Example: accepted 2 0 0 1 0 1 visits places 0, 3 and 5.
    """
    accepted, visited, place = accepted_B.tolist(), [], 0
    while place < len(accepted):
        visited.append(place)
        place += accepted[place] + 1
    return visited

"""Every smaller tree inside one large tree: which drafts it holds, and how far it is walked.

A tree of M drafts, d levels and branch_top_k k is known from the pool of a larger one: its
candidates are the k best children of every node that it expands, it expands the k best candidates
of every level, and it keeps the M best of the levels up to d (TreeGrower, tree.py). For the large
tree's own branch_top_k that is exact. With a smaller one a node may be expanded that the large tree
did not expand; its children are unknown and count as missing.

Axes: N nodes of the large tree, the root included; M nodes of it that are kept; T smaller trees;
E expanded nodes, R draft vocabulary.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree

Walk = Callable[[torch.Tensor], list[int]]
"""From kept nodes, bool [N], to the accepted path in the tree of these alone, as nodes of N."""


class NestedTrees:
    """The smaller trees of one large one.

    Example, branch_top_k 2, 2 levels; scores in brackets:

        A ─┬─ B (-.2) ─┬─ C (-.5)      drafts by score: B C D E F G
           │           └─ E (-2)       3 drafts, 2 levels, top-k 2 hold B C D
           └─ D (-1)  ─┬─ F (-3)       2 drafts, 1 level,  top-k 2 hold B D
                       └─ G (-4)       2 drafts, 2 levels, top-k 1 hold B C

    Attributes:
        score_N: sum of the draft's log-probabilities along the path, float32; the root's is 0.
        order_N: nodes by score, best first, ties by index (the order in which a tree keeps drafts).
    """

    def __init__(self, tree: DraftTree):
        logp_N = _draft_logp(tree)
        self._parent_N = tree.parent_N.cpu().numpy()
        self._depth_N = tree.depth_N.cpu().numpy()
        self.score_N = np.zeros_like(logp_N)
        for depth in range(1, self._depth_N.max() + 1):
            at = self._depth_N == depth
            self.score_N[at] = self.score_N[self._parent_N[at]] + logp_N[at]
        self.order_N = np.argsort(-self.score_N, kind="stable")
        self._sibling_N = _place_among_siblings(self._parent_N, logp_N)

    def held(self, trees: Sequence[TreeConfig]) -> np.ndarray:
        """Which nodes each smaller tree holds, bool [T, N]; the root is in all."""
        held_TN = np.zeros((len(trees), self.score_N.shape[0]), dtype=bool)
        places: dict[tuple[int, int], np.ndarray] = {}
        pools = {k: self._pool(k) for k in {tree.branch_top_k for tree in trees}}
        for row_N, tree in zip(held_TN, trees, strict=True):
            key = tree.branch_top_k, tree.tree_depth
            if key not in places:
                places[key] = self._places(pools[key[0]] & (self._depth_N <= key[1]))
            row_N[:] = places[key] < tree.num_draft_tokens
        held_TN[:, 0] = True
        return held_TN

    def _pool(self, branch_top_k: int) -> np.ndarray:
        """Candidates of a tree with this branch_top_k, bool [N]."""
        pool_N = np.zeros_like(self.score_N, dtype=bool)
        expanded_N = self._depth_N == 0
        for depth in range(1, self._depth_N.max() + 1):
            level_N = (self._depth_N == depth) & (self._sibling_N < branch_top_k)
            level_N &= expanded_N[self._parent_N]
            pool_N |= level_N
            best = self.order_N[level_N[self.order_N]][:branch_top_k]
            expanded_N = np.zeros_like(pool_N)
            expanded_N[best] = True
        return pool_N

    def _places(self, pool_N: np.ndarray) -> np.ndarray:
        """Place of each candidate by score, from 0; what is no candidate stands behind all."""
        place_N = np.empty(pool_N.shape, dtype=np.int64)
        place_N[self.order_N] = pool_N[self.order_N].cumsum() - 1
        return np.where(pool_N, place_N, pool_N.shape[0])


def accepted_drafts(held_TN: np.ndarray, walk: Walk) -> np.ndarray:
    """Accepted drafts of each smaller tree, int64 [T].

    A smaller tree is walked as a larger one until the first node that it lacks. From there on the
    trees that part at the same place are walked again, in the tree of what they hold together: a
    rule may stop there, or take another child.

    With the child `deepest` or `sample` the larger tree's choice stands for the smaller one's,
    which is an approximation; for the other rules and children this is what each tree accepts.
    """
    accepted_T = np.zeros(held_TN.shape[0], dtype=np.int64)
    groups = [np.arange(held_TN.shape[0])]
    while groups:
        group_T = groups.pop()
        path = walk(torch.from_numpy(held_TN[group_T].any(0)))
        length_T = held_TN[group_T][:, path].cumprod(1).sum(1)  # nodes held, the root included
        accepted_T[group_T] = length_T - 1
        for length in np.unique(length_T[length_T < len(path)]):
            groups.append(group_T[length_T == length])
    return accepted_T


def restrict(tree: DraftTree, keep_N: torch.Tensor) -> DraftTree:
    """The tree of some nodes: the root and, for every node, its parent must be among them."""
    keep_N = keep_N.to(tree.token_N.device)
    node_M = keep_N.nonzero()[:, 0]
    place_N = keep_N.cumsum(0) - 1
    return DraftTree.from_tensors(
        tree.token_N[node_M],
        place_N[tree.parent_N[node_M]],
        tree.draft_row_N[node_M],
        tree.draft_logits_ER,
        max_depth=tree.max_depth,
        draft_token_R=tree.draft_token_R,
    )


def _draft_logp(tree: DraftTree) -> np.ndarray:
    """Log-probability of every draft at its parent, float32 [N]; 0 at the root."""
    logp_ER = torch.log_softmax(tree.draft_logits_ER, dim=-1, dtype=torch.float32)
    column_N = tree.token_N.clone()
    column_N[0] = 0  # the root was not drafted
    if tree.draft_token_R is not None:
        draft_R = tree.draft_token_R
        column_V = column_N.new_zeros(int(draft_R.max()) + 1)
        column_V[draft_R] = torch.arange(draft_R.shape[0], device=draft_R.device)
        column_N[1:] = column_V[tree.token_N[1:]]
    logp_N = logp_ER[tree.draft_row_N[tree.parent_N], column_N]
    logp_N[0] = 0.0
    return logp_N.cpu().numpy()


def _place_among_siblings(parent_N: np.ndarray, logp_N: np.ndarray) -> np.ndarray:
    """0 for the best child of a node, 1 for the next; ties in the order of the tree."""
    index_N = np.arange(parent_N.shape[0])
    parent_N = np.where(index_N == 0, -1, parent_N)  # the root, its own parent, is no child
    order_N = np.lexsort((index_N, -logp_N, parent_N))
    sorted_parent_N = parent_N[order_N]
    first_N = np.searchsorted(sorted_parent_N, sorted_parent_N)
    place_N = np.empty_like(index_N)
    place_N[order_N] = index_N - first_N
    return place_N

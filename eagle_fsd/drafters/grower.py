"""The dynamic tree of EAGLE-2: expansion level by level, then the rerank.

Axes: N nodes with the root, P pool of candidates, K branch_top_k, E expanded nodes, M some nodes,
R draft vocabulary (the target's, or a part of it that the drafter is confined to).
Everything stays on the drafter's device; there is no loop over nodes.
"""

import math

import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree

# Share of drawn drafts that are taken for accepted, each if those drawn before it were not: so far
# a sibling of rank r is worth RANK_WORTH (1 - RANK_WORTH)^r.
RANK_WORTH = 0.7


class TreeGrower:
    """Grows one EAGLE-2 tree level by level, then keeps its best connected part.

    The drafter calls `add_level` with the logits of the nodes it has just run (first the root, then
    each frontier) and runs the returned frontier next, `tree_depth` times in all; `finish` reranks.
    EAGLE-2 (arXiv 2406.16858) section 4: a node's value is the product of draft probabilities along
    its path, here a float32 sum of log-probabilities. For draft_token_R see DraftTree.
    """

    def __init__(self, config: TreeConfig, draft_token_R: torch.Tensor | None = None):
        self.config = config
        self.draft_token_R = draft_token_R
        self.levels = 0
        self._token_P: list[torch.Tensor] = []  # candidates, level by level
        self._score_P: list[torch.Tensor] = []
        self._parent_P: list[torch.Tensor] = []  # pool index of a candidate's parent, -1 = root
        self._expanded_E: list[torch.Tensor] = []  # pool index of each expanded node, -1 = root
        self._logits_ER: list[torch.Tensor] = []

    def add_level(
        self, logits_KR: torch.Tensor, drawn_KK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the children of the nodes just run.

        Args:
            logits_KR: the drafter's raw logits at the root ([1, R], first call) or at the frontier
                of the last call, in its order ([branch_top_k, R]).
            drawn_KK: columns drawn of each row, int64 [rows, branch_top_k], in the order of the
                draws; None: the most probable. Which of the drawn are in the tree goes by that
                order alone (RANK_WORTH), never by what they are: else those that are would no
                longer be draws, and rule rejection would not be lossless.

        Returns:
            token_K: tokens of the next frontier, the branch_top_k best of the new level.
            slot_K: which row of `logits_KR` is each frontier node's parent.
        """
        K = self.config.branch_top_k
        if drawn_KK is None:
            logp_KR = torch.log_softmax(logits_KR, dim=-1, dtype=torch.float32)
            logp_KK, token_KK = logp_KR.topk(K, dim=-1)
        else:
            rank_K = torch.arange(K, device=logits_KR.device)
            worth_K = math.log(RANK_WORTH) + math.log(1 - RANK_WORTH) * rank_K
            logp_KK, token_KK = worth_K.expand(drawn_KK.shape), drawn_KK
        if self.draft_token_R is not None:
            token_KK = self.draft_token_R[token_KK]
        if self.levels == 0:
            expanded_K = torch.full((1,), -1, device=logits_KR.device)
            score_KK = logp_KK
        else:
            expanded_K, score_K = self._frontier
            score_KK = score_K[:, None] + logp_KK
        first = sum(token.shape[0] for token in self._token_P)
        self._token_P.append(token_KK.flatten())
        self._score_P.append(score_KK.flatten())
        self._parent_P.append(expanded_K.repeat_interleave(K))
        self._expanded_E.append(expanded_K)
        self._logits_ER.append(logits_KR)
        self.levels += 1
        best_K = _best(score_KK.flatten(), K)
        self._frontier = (best_K + first, score_KK.flatten()[best_K])
        return token_KK.flatten()[best_K], best_K // K

    def finish(self, root_token: torch.Tensor) -> DraftTree:
        """The num_draft_tokens best candidates under the root, in level order.

        They are connected: a child's score is at most its parent's, the parent stands earlier in
        the pool, and the sort is stable. (Upstream's top-k over half-precision scores orphans
        nodes.)

        Args:
            root_token: token id of the root, int64 [] or [1].
        """
        token_P, score_P = torch.cat(self._token_P), torch.cat(self._score_P)
        parent_P = torch.cat(self._parent_P)
        expanded_E = torch.cat(self._expanded_E)
        device = token_P.device
        keep_M = _best(score_P, self.config.num_draft_tokens).sort().values
        # one slot more than the pool, so that index -1 (the root) has a place of its own: the last
        node_of_P = torch.zeros(token_P.shape[0] + 1, dtype=torch.int64, device=device)
        node_of_P[keep_M] = torch.arange(1, keep_M.shape[0] + 1, device=device)
        row_of_P = torch.full_like(node_of_P, -1)
        row_of_P[expanded_E] = torch.arange(expanded_E.shape[0], device=device)
        root_1 = torch.full((1,), -1, device=device)
        pool_N = torch.cat([root_1, keep_M])
        return DraftTree(
            torch.cat([root_token.reshape(1).to(device), token_P[keep_M]]),
            node_of_P[torch.cat([root_1, parent_P[keep_M]])],
            row_of_P[pool_N],
            torch.cat(self._logits_ER),
            max_depth=self.levels,
            draft_token_R=self.draft_token_R,
            score_N=torch.cat([score_P.new_zeros(1), score_P[keep_M]]),
            max_children=self.config.branch_top_k,
        )


def _best(score_P: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest, ties broken by the lower index (torch.topk promises none)."""
    return score_P.sort(descending=True, stable=True).indices[:count]

"""EAGLE-2's dynamic tree, grown level by level from a model's logits and cut to its best part.

Everything stays on the model's device, and there is no loop over nodes. On a CPU what counts is the
number of operators: a tree's are of a microsecond or two each, and index_select takes half as long
as indexing does.

Axes: K branch_top_k (the frontier), E expanded nodes, N nodes with the root, P pool of candidates,
M candidates that are kept, R draft vocabulary (the target's, or a part of it that the drafter is
confined to).
"""

import math

import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree

# Share of drawn drafts that are taken for accepted, each if those drawn before it were not: so far
# a sibling of rank r is worth RANK_WORTH (1 - RANK_WORTH)^r.
RANK_WORTH = 0.7


class TreeShape:
    """What all trees of a shape have in common: tables on the device, made once.

    A tree's pool are the root, and its candidates, branch_top_k of every expanded node in the order
    in which those were run. A tree of fewer levels has the first of them.

    Attributes:
        row_E: numbers of the expanded nodes; the root's is 0.
        level_E: of the expanded nodes but for the root, how many levels below the first they are.
        parent_row_P: which of them is a candidate's parent; the root is its own.
        no_row_P, no_node_E: -1 for every place in the pool; 0 for every row and for none.
    """

    def __init__(self, config: TreeConfig, device: torch.device | str = "cpu"):
        K, E = config.branch_top_k, config.num_expanded
        self.config = config
        self.row_E = torch.arange(E, device=device)
        self.root_1, self.root_score_1 = self.row_E[:1], torch.zeros(1, device=device)
        self.parent_row_P = torch.cat([self.root_1, self.row_E.repeat_interleave(K)])
        self.no_row_P = torch.full_like(self.parent_row_P, -1)
        self.no_node_E = self.row_E.new_zeros(E + 1)
        self.node_N = torch.arange(config.num_draft_tokens + 1, device=device)
        self.own_KK = torch.eye(K, dtype=torch.bool, device=device)
        self.least_score = math.log(config.keep) if config.keep else None
        on_cpu = self.row_E.device.type == "cpu"
        self.least_best = math.log(config.deepen) if config.deepen and on_cpu else None
        self.level_E = self.row_E[: E - 1] // K


class TreeGrower:
    """Grows one EAGLE-2 tree level by level, then keeps its best connected part.

    The drafter calls `add_level` with the logits of the nodes it has just run, `tree_depth` times
    in all: first of the root, then of each `frontier`; `finish` reranks. EAGLE-2 (arXiv 2406.16858)
    section 4: a node's value is the product of draft probabilities along its path, here a float32
    sum of log-probabilities. For draft_token_R see DraftTree.
    """

    def __init__(self, shape: TreeShape, draft_token_R: torch.Tensor | None = None):
        self.shape = shape
        self.draft_token_R = draft_token_R
        self.levels = 0
        self._token_P: list[torch.Tensor] = []  # candidates, level by level
        self._score_P: list[torch.Tensor] = []
        self._score_K: torch.Tensor | None = None  # of the frontier
        self._expanded_E = [shape.root_1]  # where in the pool each expanded node is
        self._logits_ER: list[torch.Tensor] = []

    def add_level(
        self, logits_KR: torch.Tensor, drawn_KK: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add the children of the nodes just run; returns their scores, a row a parent.

        Args:
            logits_KR: raw logits at the root ([1, R], first call) or at the frontier, in its order.
            drawn_KK: columns drawn of each row, int64 [rows, branch_top_k], in the order of the
                draws; None: the most probable. Which of the drawn are in the tree goes by that
                order alone (RANK_WORTH), never by what they are: else those that are would no
                longer be draws, and rule rejection would not be lossless.
        """
        K = self.shape.config.branch_top_k
        if drawn_KK is None:
            logp_KR = torch.log_softmax(logits_KR, dim=-1, dtype=torch.float32)
            logp_KK, token_KK = logp_KR.topk(K, dim=-1)
        else:
            rank_K = torch.arange(K, device=logits_KR.device)
            worth_K = math.log(RANK_WORTH) + math.log(1 - RANK_WORTH) * rank_K
            logp_KK, token_KK = worth_K.expand(drawn_KK.shape), drawn_KK
        token_P = token_KK.flatten()
        if self.draft_token_R is not None:
            token_P = self.draft_token_R.index_select(0, token_P)
        score_KK = logp_KK if self._score_K is None else self._score_K[:, None] + logp_KK
        self._token_P.append(token_P)
        self._score_P.append(score_KK.flatten())
        self._logits_ER.append(logits_KR)
        self.levels += 1
        return score_KK

    def frontier(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The nodes to run next, the branch_top_k best of the last level: their tokens, and which
        row of the last `logits_KR` is the parent of each."""
        K, score_P = self.shape.config.branch_top_k, self._score_P[-1]
        if self.levels == 1:  # the root's children come in that order
            best_K, self._score_K = self.shape.row_E[:K], score_P
            self._expanded_E.append(1 + best_K)
        else:
            ranked = score_P.sort(descending=True, stable=True)
            best_K, self._score_K = ranked.indices[:K], ranked.values[:K]
            self._expanded_E.append(1 + best_K + K * (1 + (self.levels - 2) * K))
        return self._token_P[-1].index_select(0, best_K), best_K // K

    def finish(self, root_token: torch.Tensor) -> DraftTree:
        """The num_draft_tokens best candidates under the root, whose token is int64 [] or [1], in
        level order.

        They are connected: a child's score is at most its parent's, the parent stands earlier in
        the pool, and the sort is stable. (Upstream's top-k over half-precision scores orphans
        nodes.)
        """
        shape = self.shape
        token_P = torch.cat([root_token.reshape(1), *self._token_P])
        score_P = torch.cat([shape.root_score_1, *self._score_P])
        expanded_E = torch.cat(self._expanded_E)
        # of two alike the earlier is taken, which torch.topk does not promise
        ranked = score_P[1:].sort(descending=True, stable=True)
        most = shape.config.num_draft_tokens
        if shape.least_score is not None:  # the best come first, so that these are connected too
            # a NaN, ranked above all numbers, is kept: it is told in the drafter
            most = min(most, (ranked.values < shape.least_score).logical_not().sum().item())
        keep_M = 1 + ranked.indices[:most].sort().values
        pool_N = torch.cat([shape.root_1, keep_M])
        row_E = shape.row_E[: len(expanded_E)]
        row_P = shape.no_row_P.index_copy(0, expanded_E, row_E)
        row_N = row_P.index_select(0, pool_N)
        # -1 is the last place of the table, which no parent's row is
        node_of_E = shape.no_node_E.index_put((row_N,), shape.node_N[: len(pool_N)])
        parent_row_N = shape.parent_row_P.index_select(0, pool_N)
        return DraftTree(
            token_P.index_select(0, pool_N),
            node_of_E.index_select(0, parent_row_N),
            row_N,
            torch.cat(self._logits_ER),
            max_depth=self.levels,
            draft_token_R=self.draft_token_R,
            score_N=score_P.index_select(0, pool_N),
            max_children=shape.config.branch_top_k,
        )

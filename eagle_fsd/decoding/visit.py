"""What a rule may ask about the node that the walk stands on.

Everything is a 0-d or small tensor; nothing is read back from an accelerator. Rules are in
rules.py, the walk in accept.py.

Axes: N nodes, M judged nodes, V vocabulary, E expanded nodes.
"""

import math
from functools import cached_property

import torch

from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decoding.divergence import divergence_over
from eagle_fsd.decoding.sampling import draw_and_score, filter_logits
from eagle_fsd.decoding.tree import DraftTree


class Judge:
    """What all visits of one round share: the tree, the target's logits, the settings."""

    def __init__(
        self,
        tree: DraftTree,
        target_logits_NV: torch.Tensor,
        *,
        config: AcceptConfig,
        sampling: SamplingConfig,
        threshold: float | torch.Tensor,
    ):
        self.tree = tree
        self.target_logits_NV = target_logits_NV
        self.config = config
        self.sampling = sampling
        device = target_logits_NV.device
        if not isinstance(threshold, torch.Tensor):  # filled on the device: no copy from the host
            threshold = torch.full((), threshold, dtype=torch.float32, device=device)
        self.threshold_N = threshold.expand(tree.size)
        self.node_N = torch.arange(tree.size, device=device)
        self.is_draft_N = self.node_N > 0
        self.expected_length_N: torch.Tensor | None = None  # kept by rules.deepest

    def divergence(self, node_M: torch.Tensor) -> torch.Tensor:
        """D at the given nodes, float32 [M]; NaN where the drafter has no distribution."""
        row_M = self.tree.draft_row_N[node_M]
        if self.tree.draft_logits_ER.shape[0] == 0:
            return torch.full(row_M.shape, math.nan, device=row_M.device)
        target_MV = self.target_logits_NV[node_M]
        draft_MR = self.tree.draft_logits_ER[row_M.clamp_min(0)]
        if self.config.logits == "processed":
            target_MV = filter_logits(target_MV, self.sampling)
            draft_MR = filter_logits(draft_MR, self.sampling)
        tokens = self.tree.draft_token_R
        value_M = divergence_over(self.config.divergence, target_MV, draft_MR, tokens)
        return value_M.masked_fill(row_M < 0, math.nan)

    def passes(self, node_M: torch.Tensor, divergence_M: torch.Tensor) -> torch.Tensor:
        """T > 0 and D <= T, bool [M]; NaN never passes."""
        threshold_M = self.threshold_N[node_M]
        return (threshold_M > 0) & (divergence_M <= threshold_M)

    def rate(self, node_M: torch.Tensor) -> torch.Tensor:
        """r of rule `random`, its threshold within [0, 1], float32 [M]."""
        return self.threshold_N[node_M].clamp(0, 1)


class Visit:
    """One node of the walk; what a rule may ask. Scalars are 0-d tensors, nothing is read back.

    Attributes:
        drawn: x ~ P_v, what the exact test would emit.
        is_child_N: the node's children, bool [N].
        prob_N: P_v of every child's token, 0 for other nodes, float32 [N].
        hit: x is among the children.
        hit_child: which one (any index where it is not).
    """

    def __init__(self, judge: Judge, node: torch.Tensor, uniform_3: torch.Tensor):
        tree = judge.tree
        self.judge = judge
        self.node_1 = node.reshape(1)
        self.uniform_3 = uniform_3
        self.logits_1V = judge.target_logits_NV.index_select(0, self.node_1)
        self.is_child_N = (tree.parent_N == node) & judge.is_draft_N
        self.has_child = self.is_child_N.any()
        drawn_1, prob_1N = draw_and_score(
            self.logits_1V, uniform_3[:1], tree.token_N[None], judge.sampling
        )
        self.drawn = drawn_1[0]
        self.prob_N = torch.where(self.is_child_N, prob_1N[0], 0.0)
        hit_N = self.is_child_N & (tree.token_N == self.drawn)
        self.hit = hit_N.any()
        self.judged = torch.full_like(self.prob_N[0], math.nan)  # D, once a rule has asked for it
        self.hit_child = hit_N.int().argmax()

    @cached_property
    def divergence(self) -> torch.Tensor:
        """D(v), float32; NaN at a node without children."""
        device = self.is_child_N.device
        if device.type == "cpu" and not self.has_child:
            return torch.tensor(math.nan)
        value = self.judge.divergence(self.node_1)[0]
        self.judged = torch.where(self.has_child, value, math.nan)
        return self.judged

    @cached_property
    def passes(self) -> torch.Tensor:
        return self.judge.passes(self.node_1, self.divergence[None])[0]

    @cached_property
    def draft_logits_N(self) -> torch.Tensor:
        """The draft's raw logit of every child's token, float32 [N]; -inf for other nodes."""
        tree = self.judge.tree
        if tree.draft_logits_ER.shape[0] == 0:
            return self.among_children(torch.zeros_like(self.prob_N))
        # a child's token is in the draft vocabulary; what other nodes read does not count
        column_N = tree.token_N
        if tree.draft_token_R is not None:
            column_N = torch.searchsorted(tree.draft_token_R, column_N)
            column_N = column_N.clamp_max(tree.draft_token_R.shape[0] - 1)
        row_1 = tree.draft_row_N[self.node_1].clamp_min(0)
        row_R = tree.draft_logits_ER.index_select(0, row_1)[0]
        return self.among_children(row_R[column_N].float())

    def among_children(self, value_N: torch.Tensor) -> torch.Tensor:
        """The value at children, -inf elsewhere; a child's own -inf becomes finite."""
        lowest = torch.finfo(value_N.dtype).min
        return torch.where(self.is_child_N, value_N.clamp_min(lowest), -math.inf)

"""Speculative sampling: drafts that were drawn from Q are accepted by the ratio of P and Q.

    the children c in the order in which they were drawn, P and Q after the sampling filters:
        accept c with probability min(1, P(c) / Q(c)); else
        P <- norm(max(P - Q, 0)), Q <- norm(Q without c)
    all rejected: the token is drawn from what is left of P

A chain's is Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318); siblings
are SpecInfer's multi-step speculative sampling (2305.09781) with draws without replacement (RSD,
2402.14160), as in EAGLE's own verification. Each token emitted is distributed as P, but is not the
one that `exact` emits with the same numbers. Of one draft a share of sum min(P, Q) is accepted.
"""

from dataclasses import dataclass

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.columns import Rows
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.rules.fsd import Exact


@dataclass(frozen=True)
class Rejection(Exact):
    """Lossless in distribution, with more drafts accepted than by `exact` on the same tree where
    drafts are sampled. At temperature 0 it is `exact`."""

    def check(self, sampling, drafter, guards=()) -> None:
        if not drafter.samples:
            raise BadInput(
                "this rule needs drafts that are sampled, since it asks with what probability they "
                "came: add ,sample=1 to the drafter, as in RULE@DRAFTER,sample=1"
            )
        if guards and sampling.temperature > 0:
            raise BadInput(
                "guards go with this rule at temperature 0 only: above it they do not reach the "
                "tokens that it draws"
            )

    def draw_exact(self, rows: Rows, uniform_M3: torch.Tensor) -> torch.Tensor:
        """One number a place, rescaled after each rejection, decides over all of its drafts, in the
        order in which they were drawn; another draws from what is left.

        Where Q has no token left, drafts that follow were not drawn and are passed over.
        """
        prob_MV, draft_prob_MV, child_MK = rows.prob_MV, rows.draft_distribution_MV, rows.child_MK
        draft_prob_MV = draft_prob_MV.nan_to_num(0.0)  # a node without drafts
        left_M = uniform_M3[:, 2].double()
        taken_M = torch.full_like(left_M, -1, dtype=torch.int64)
        for child_M in child_MK.T:
            column_M1 = child_M.clamp_min(0)[:, None]
            draft_M1 = draft_prob_MV.gather(1, column_M1)
            drawn_M1 = (child_M[:, None] >= 0) & (draft_M1 > 0)
            accept_M1 = prob_MV.gather(1, column_M1).double() / draft_M1
            accept_M = torch.where(drawn_M1, accept_M1.clamp_max(1), 0.0)[:, 0]
            taken_M = torch.where((taken_M < 0) & (left_M < accept_M), child_M, taken_M)
            left_M = (left_M - accept_M) / (1 - accept_M)
            rest_MV = (prob_MV - draft_prob_MV).clamp_min(0)
            is_rest_M1 = drawn_M1 & (rest_MV.sum(-1, keepdim=True) > 0)
            prob_MV = torch.where(is_rest_M1, _normed(rest_MV), prob_MV)
            without_MV = _normed(draft_prob_MV.scatter(1, column_M1, 0.0))
            draft_prob_MV = torch.where(drawn_M1, without_MV, draft_prob_MV)
        return torch.where(taken_M < 0, inverse_cdf(prob_MV, uniform_M3[:, 0]), taken_M)


def _normed(weight_MV: torch.Tensor) -> torch.Tensor:
    """Summing to 1; all zero where there is no weight."""
    return weight_MV / weight_MV.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)

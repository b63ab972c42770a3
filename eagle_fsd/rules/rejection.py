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

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.rule import Guard
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.rules.fsd import Exact


@dataclass(frozen=True)
class Rejection(Exact):
    """Lossless in distribution, with more drafts accepted than by `exact` on the same tree where
    drafts are sampled. At temperature 0 it is `exact`."""

    def check(
        self, sampling: SamplingConfig, guards: Sequence[Guard], draft_vocab_size: int | None
    ) -> None:
        super().check(sampling, guards, draft_vocab_size)
        if guards:
            raise BadInput("guards do not reach tokens that rejection draws: leave them out")

    @staticmethod
    def draw(
        prob_NV: torch.Tensor,
        draft_prob_NV: torch.Tensor,
        child_NK: torch.Tensor,
        uniform_N3: torch.Tensor,
    ) -> torch.Tensor:
        """See Rule.draw. One number a node, rescaled after each rejection, decides over all of
        its children; another draws from what is left.

        Where Q has no token left, drafts that follow were not drawn and are passed over.
        """
        draft_prob_NV = draft_prob_NV.nan_to_num(0.0)  # a node without drafts
        left_N, taken_N = uniform_N3[:, 2].double(), torch.full_like(child_NK[:, 0], -1)
        for child_N in child_NK.T:
            column_N1 = child_N.clamp_min(0)[:, None]
            draft_N1 = draft_prob_NV.gather(1, column_N1)
            drawn_N1 = (child_N[:, None] >= 0) & (draft_N1 > 0)
            accept_N1 = prob_NV.gather(1, column_N1).double() / draft_N1
            accept_N = torch.where(drawn_N1, accept_N1.clamp_max(1), 0.0)[:, 0]
            taken_N = torch.where((taken_N < 0) & (left_N < accept_N), child_N, taken_N)
            left_N = (left_N - accept_N) / (1 - accept_N)
            rest_NV = (prob_NV - draft_prob_NV).clamp_min(0)
            is_rest_N1 = drawn_N1 & (rest_NV.sum(-1, keepdim=True) > 0)
            prob_NV = torch.where(is_rest_N1, _normed(rest_NV), prob_NV)
            without_NV = _normed(draft_prob_NV.scatter(1, column_N1, 0.0))
            draft_prob_NV = torch.where(drawn_N1, without_NV, draft_prob_NV)
        return torch.where(taken_N < 0, inverse_cdf(prob_NV, uniform_N3[:, 0]), taken_N)


def _normed(weight_NV: torch.Tensor) -> torch.Tensor:
    """Summing to 1; all zero where there is no weight."""
    return weight_NV / weight_NV.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)

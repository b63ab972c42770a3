"""Speculative sampling: drafts that were drawn from Q are accepted by the ratio of P and Q.

    the children c in the order in which they were drawn, P and Q after the sampling filters:
        accept c with probability min(1, P(c) / Q(c)); else
        P <- norm(max(P - Q, 0)), Q <- norm(Q without c)
    all rejected: the token is drawn from what is left of P

A chain's is Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318); siblings
are SpecInfer's multi-step speculative sampling (2305.09781) with draws without replacement (RSD,
2402.14160), as in EAGLE's own verification. Each token emitted is distributed as P, but is not the
one that `exact` emits with the same numbers. Of one draft a share of sum min(P, Q) is accepted.

EARS (Sun et al., arXiv 2512.13194) accepts with min(1, P(c) / Q(c) + slack (1 - max P)). Here it is
asked where all children were rejected: what it adds are its fuzzy tokens.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.fsd import Exact


@dataclass(frozen=True)
class Rejection(Exact):
    """Lossless in distribution, with more drafts accepted than by `exact` on the same tree where
    drafts are sampled. At temperature 0 it is `exact`."""

    @staticmethod
    def draw(
        prob_MV: torch.Tensor,
        draft_prob_MV: torch.Tensor,
        child_MC: torch.Tensor,
        uniform_M3: torch.Tensor,
    ) -> torch.Tensor:
        """See verified.Draw. One number a node, rescaled after each rejection, decides over all of
        its children; another draws from what is left.

        Where Q has no token left, drafts that follow were not drawn and are passed over.
        """
        draft_prob_MV = draft_prob_MV.nan_to_num(0.0)  # a node without drafts
        left_M, taken_M = uniform_M3[:, 2].double(), torch.full_like(child_MC[:, 0], -1)
        for child_M in child_MC.T:
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


@dataclass(frozen=True)
class Ears(Rejection):
    """Speculative sampling with a slack where the target is not sure; at temperature 0 `exact`.

    Of one draft it is the source's rule; of siblings each is asked in turn, with its own P / Q. The
    TV to P is an expectation over drafts, so it is not known.

    Attributes:
        slack: beta, of 1 - max P; 0 is `rejection`, `inf` accepts all wherever P is not one-hot.
    """

    columns: ClassVar[tuple[str, ...]] = ("prob", "max_prob", "sampled_prob")
    hides_tv: ClassVar[bool] = True
    exact: ClassVar[float] = math.nan  # 0 is `rejection`, which gains without loss
    slack: float = 0.1

    def __post_init__(self):
        if not self.slack >= 0:  # NaN too
            raise BadInput(f"slack of rule 'ears' must be 0 or above, got {self.slack}")

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        hit = tree.hit(v)
        if hit is not None or tree.greedy or not self.slack:
            return hit
        point = tree.uniform(v, 1)
        for child in tree.options(v):
            draft, doubt = tree.of("sampled_prob", child), 1 - tree.at("max_prob", v)
            rejected = 1 - tree.of("prob", child) / draft if draft > 0 else 0.0
            if rejected <= 0 or doubt <= 0:
                continue
            accept = min(1.0, self.slack * doubt / rejected)
            if point < accept:
                return child
            point = (point - accept) / (1 - accept)
        return None

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return float("nan") if self.slack and not tree.greedy else 0.0


def _normed(weight_MV: torch.Tensor) -> torch.Tensor:
    """Summing to 1; all zero where there is no weight."""
    return weight_MV / weight_MV.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)

"""Rules that emit from a mixture of the target's and the draft's distribution.

    ensemble     (1 - weight) P + weight Q                   (static form of DIVERSED, 2604.07622)
    cascade-tok  Q(t) where P(t) >= (1 - alpha) max P; what Q has elsewhere goes to P
    cascade-opt  Q where max Q > max P - alpha TV(P, Q), else P
                 (both: speculative cascades, Narasimhan et al. 2024, arXiv 2405.19261)

P and Q after the sampling filters, Q over tokens that they leave of P; P alone where the drafter
has no distribution. At temperature 0 both are one-hot, and nothing is to be drawn: refused.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.rule import Rule


class MixedRule(Rule):
    """Its one field is at least `exact`, where it is exact; larger is looser."""

    name: ClassVar[str]

    def __post_init__(self):
        (value,) = vars(self).values()
        if not self.exact <= value <= 1:
            raise BadInput(f"the value of rule {self.name!r} is {self.exact:g} to 1, got {value}")

    def check(self, sampling: SamplingConfig, draft_vocab_size: int | None) -> None:
        super().check(sampling, draft_vocab_size)
        if sampling.temperature == 0:
            raise BadInput(
                f"rule {self.name!r} has no meaning at temperature 0, where both distributions "
                "are one-hot: raise --temperature"
            )

    def law(
        self, prob_MV: torch.Tensor, draft_prob_MV: torch.Tensor, is_child_MV: torch.Tensor
    ) -> torch.Tensor:
        supported_MV = draft_prob_MV * (prob_MV > 0)
        mixed_MV = self.mixed(prob_MV, supported_MV / supported_MV.sum(-1, keepdim=True))
        return torch.where(mixed_MV.isnan(), prob_MV, mixed_MV)

    def mixed(self, prob_MV: torch.Tensor, draft_prob_MV: torch.Tensor) -> torch.Tensor:
        """What is emitted; NaN where there is no Q."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ensemble(MixedRule):
    name: ClassVar[str] = "ensemble"
    weight: float = 0.1

    def mixed(self, prob_MV: torch.Tensor, draft_prob_MV: torch.Tensor) -> torch.Tensor:
        return torch.lerp(prob_MV, draft_prob_MV, self.weight)


@dataclass(frozen=True)
class CascadeTok(MixedRule):
    """0 trusts no token (the source's would trust the likeliest)."""

    name: ClassVar[str] = "cascade-tok"
    alpha: float = 0.3

    def mixed(self, prob_MV: torch.Tensor, draft_prob_MV: torch.Tensor) -> torch.Tensor:
        trusted_MV = prob_MV >= (1 - self.alpha) * prob_MV.amax(-1, keepdim=True)
        kept_MV = draft_prob_MV * trusted_MV
        return kept_MV + prob_MV * (1 - kept_MV.sum(-1, keepdim=True)) if self.alpha else prob_MV


@dataclass(frozen=True)
class CascadeOpt(MixedRule):
    """No maximum differs by more than TV: what is below -1 is exact."""

    name: ClassVar[str] = "cascade-opt"
    exact: ClassVar[float] = -math.inf
    alpha: float = 0.3

    def mixed(self, prob_MV: torch.Tensor, draft_prob_MV: torch.Tensor) -> torch.Tensor:
        tv_M1 = 0.5 * (prob_MV - draft_prob_MV).abs().sum(-1, keepdim=True)
        ahead_M1 = draft_prob_MV.amax(-1, keepdim=True) - prob_MV.amax(-1, keepdim=True)
        return torch.where(ahead_M1 + self.alpha * tv_M1 > 0, draft_prob_MV, prob_MV)

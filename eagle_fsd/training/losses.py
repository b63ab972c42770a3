"""The losses of a draft head, run on its own predictions (heads/unroll.py), against the target.

On features: smooth-L1. On next-token distributions, with P the target's and Q the head's, nats:

    ce    -sum P log Q              soft cross-entropy (EAGLE-1/2 and 3); forward KL's gradient
    rkl   sum Q log(Q / P)          reverse KL, mode-seeking
    js    (KL(P || m) + KL(Q || m)) / 2 with m their mean
    tv    sum |P - Q| / 2           1 - the acceptance rate of a sampled draft (arXiv 2211.17192)

Both softmaxes are over the rows of the lm_head that the head can draft, P renormalised to them as
in EAGLE-3's training. Gradients are written out and formed together with the losses, a chunk of
positions at a time, so that logits of [M, R] never exist: autograd through decoding/divergence.py
takes 1.07 to 2.04 times as long.

Axes: B dialogues, T positions, S unrolled steps, M positions that count, C of a chunk, D hidden
size, R draft vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.linalg import vecdot

from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.heads.unroll import unroll
from eagle_fsd.training.recipe import Recipe

CHUNK_ELEMENTS = 2**22  # logits held at a time: 16 MB in float32, which a CPU's caches like
DEVICE_CHUNK_ELEMENTS = 2**27  # elsewhere: 512 MB, few launches


class Rows(NamedTuple):
    """Next-token distributions of a chunk, [C, R] in the dtype of the lm_head's rows."""

    logits_CR: torch.Tensor
    prob_CR: torch.Tensor

    @property
    def log_CR(self) -> torch.Tensor:
        """Log-probabilities, float32 at least."""
        low = torch.promote_types(self.logits_CR.dtype, torch.float32)
        return torch.log_softmax(self.logits_CR, dim=-1, dtype=low)


# the target's rows and the draft's -> loss [C], gradient by the draft's logits [C, R]
DistributionLoss = Callable[[Rows, Rows], tuple[torch.Tensor, torch.Tensor]]


def cross_entropy(target: Rows, draft: Rows):
    # log sum exp of the logits, by the one token whose probability rounds least
    highest_C, largest_C = draft.logits_CR.amax(-1), draft.prob_CR.amax(-1)
    expected_C = vecdot(target.prob_CR, draft.logits_CR)
    return highest_C - largest_C.log() - expected_C, draft.prob_CR - target.prob_CR


def reverse_kl(target: Rows, draft: Rows):
    draft_CR = draft.log_CR
    prob_CR, ratio_CR = draft_CR.exp(), draft_CR - target.log_CR
    loss_C = vecdot(prob_CR, ratio_CR)
    return loss_C, prob_CR * (ratio_CR - loss_C[:, None])


def jensen_shannon(target: Rows, draft: Rows):
    target_CR, draft_CR = target.log_CR, draft.log_CR
    mean_CR = torch.logaddexp(target_CR, draft_CR) - math.log(2)
    prob_CR, slope_CR = draft_CR.exp(), draft_CR - mean_CR
    of_draft_C = vecdot(prob_CR, slope_CR)
    loss_C = 0.5 * (vecdot(target_CR.exp(), target_CR - mean_CR) + of_draft_C)
    return loss_C, 0.5 * prob_CR * (slope_CR - of_draft_C[:, None])


def total_variation(target: Rows, draft: Rows):
    prob_CR = draft.log_CR.exp()
    difference_CR = prob_CR - target.log_CR.exp()
    sign_CR = difference_CR.sign()
    loss_C = 0.5 * difference_CR.abs().sum(-1)
    return loss_C, 0.5 * prob_CR * (sign_CR - vecdot(prob_CR, sign_CR)[:, None])


DISTRIBUTION_LOSSES: dict[str, DistributionLoss] = {
    "ce": cross_entropy,
    "rkl": reverse_kl,
    "js": jensen_shannon,
    "tv": total_variation,
}


def distribution_losses(
    hidden_SMD: torch.Tensor,
    lm_head_RD: torch.Tensor,
    target_hidden_MD: torch.Tensor,
    target_lm_head_RD: torch.Tensor,
    weight_SM: torch.Tensor,
    losses: Mapping[str, float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """A mix of losses between next-token distributions, positions weighted and summed.

    Q is of hidden_SMD, as the lm_head reads it, and lm_head_RD, the target's rows or an EAGLE-3
    head's own. P is of the target's states and rows, which get no gradient; all products are in the
    dtype of the rows. `losses` are names in DISTRIBUTION_LOSSES and their weights.

    Returns:
        The weighted mix, float32 [], to differentiate, and each loss by itself, float32 [losses].
    """
    with torch.autocast(hidden_SMD.device.type, enabled=False):
        return _Mixed.apply(
            hidden_SMD, lm_head_RD, target_hidden_MD, target_lm_head_RD, weight_SM, dict(losses)
        )


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_SMD, lm_head_RD, target_MD, target_lm_head_RD, weight_SM, losses):
        S, M, _ = hidden_SMD.shape
        low = target_lm_head_RD.dtype
        rows_RD = lm_head_RD.detach().to(low)
        value_K = hidden_SMD.new_zeros(len(losses), dtype=torch.float32)
        grad_SMD = torch.empty_like(hidden_SMD)
        own = ctx.needs_input_grad[1]
        grad_RD = torch.zeros_like(lm_head_RD, dtype=torch.float32) if own else None
        on_cpu = hidden_SMD.device.type == "cpu"
        elements = CHUNK_ELEMENTS if on_cpu else DEVICE_CHUNK_ELEMENTS
        chunk = max(1, min(M, elements // rows_RD.shape[0]))
        # reused: fresh pages for every chunk would cost as much as the arithmetic
        kept_22CR = torch.empty(2, 2, chunk, *rows_RD.shape[:1], dtype=low, device=rows_RD.device)
        for start in range(0, M, chunk):
            part = slice(start, start + chunk)
            target = _softmax(target_MD[part].to(low), target_lm_head_RD, kept_22CR[0])
            for s in range(S):
                hidden_CD, weight_C = hidden_SMD[s, part].to(low), weight_SM[s, part]
                draft = _softmax(hidden_CD, rows_RD, kept_22CR[1])
                total_CR = None
                for k, (name, weight) in enumerate(losses.items()):
                    loss_C, grad_CR = DISTRIBUTION_LOSSES[name](target, draft)
                    value_K[k] += torch.dot(loss_C.float(), weight_C)
                    grad_CR.mul_(weight)
                    total_CR = grad_CR if total_CR is None else total_CR.add_(grad_CR)
                total_CR = total_CR.to(low)
                grad_SMD[s, part] = (total_CR @ rows_RD * weight_C[:, None]).to(grad_SMD.dtype)
                if own:
                    weighted_CD = (hidden_CD * weight_C[:, None]).to(low)
                    grad_RD += (total_CR.T @ weighted_CD).float()
        ctx.save_for_backward(grad_SMD, grad_RD)
        ctx.mark_non_differentiable(value_K)
        return value_K @ value_K.new_tensor(list(losses.values())), value_K

    @staticmethod
    def backward(ctx, grad, _):
        grad_SMD, grad_RD = ctx.saved_tensors
        rows = None if grad_RD is None else grad_RD * grad
        return grad_SMD * grad.to(grad_SMD.dtype), rows, None, None, None, None


def _softmax(hidden_CD: torch.Tensor, rows_RD: torch.Tensor, kept_2CR: torch.Tensor) -> Rows:
    """What the rows say of these states, written to the memory given."""
    logits_CR, prob_CR = kept_2CR[:, : hidden_CD.shape[0]]
    torch.mm(hidden_CD, rows_RD.T, out=logits_CR)
    return Rows(logits_CR, torch.softmax(logits_CR, -1, out=prob_CR))


class Objective(nn.Module):
    """The head inside its losses: the one module that accelerate wraps.

    Its only parameters are the head's. The target's lm_head rows of the tokens that the losses are
    over are a constant, kept out of the state.
    """

    def __init__(self, head: DraftHead, target_lm_head_RD: torch.Tensor, recipe: Recipe):
        super().__init__()
        self.head = head
        self.recipe = recipe
        self._target_lm_head = (target_lm_head_RD,)
        self._mixed = {name: w for name, w in recipe.losses.items() if name != "feature"}

    def forward(
        self,
        feature_BTF: torch.Tensor,
        embedding_BTD: torch.Tensor,
        target_hidden_BTD: torch.Tensor,
        mask_BT: torch.Tensor,
        counted: int,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The weighted sum to differentiate, [], and each loss by its name, detached, [].

        They are a batch's share (see HeadBatch; the embedding is of the next tokens) of the mean
        over the step's `counted` positions, those of all its batches and processes.
        """
        head, (target_rows_RD,) = self.head, self._target_lm_head
        hidden_SBTD = unroll(head, feature_BTF, embedding_BTD, steps=self.recipe.unroll_steps)
        hidden_SMD, target_MD = hidden_SBTD[:, mask_BT], target_hidden_BTD[mask_BT]
        weight_S1 = torch.tensor(self.recipe.step_weights(), device=mask_BT.device)[:, None]
        weight_SM = (weight_S1 / counted).expand(-1, target_MD.shape[0])
        total, each = hidden_SMD.sum() * 0.0, {}  # 0, yet with a gradient, if nothing counts
        if self.recipe.feature:  # mean over D (SafeAILab/EAGLE v1, eagle/train/main.py)
            wanted_SMD = target_MD.float().expand(hidden_SMD.shape)
            l1_SMD = nn.functional.smooth_l1_loss(hidden_SMD.float(), wanted_SMD, reduction="none")
            feature = (l1_SMD.mean(-1) * weight_SM).sum()
            total = total + self.recipe.feature * feature
            each["feature"] = feature.detach()
        if self._mixed:
            rows_RD = target_rows_RD if head.lm_head is None else head.lm_head.weight
            mixed, value_K = distribution_losses(
                head.normed(hidden_SMD), rows_RD, target_MD, target_rows_RD, weight_SM, self._mixed
            )
            total = total + mixed
            each |= zip(self._mixed, value_K, strict=True)
        return total, each

"""Losses of a draft head against the target: pure functions over the positions that count.

EAGLE-1/2 trains with smooth-L1 between features (weight 1) plus a soft cross-entropy between
next-token distributions (weight 0.1), both averaged over masked positions (SafeAILab/EAGLE branch
v1, eagle/train/main.py; arXiv 2401.15077 section 4.2).

Axes: S unrolled steps, M masked positions, D hidden size, V vocabulary or the part of it that
the loss looks at.
"""

import torch
from torch import nn

CHUNK_ELEMENTS = 2**22  # logits held at a time: 16 MB in float32


def feature_smooth_l1(hidden_SMD: torch.Tensor, target_feature_MD: torch.Tensor) -> torch.Tensor:
    """Smooth-L1 (beta 1) between predicted and true features, mean over M and D, float32 [S]."""
    target_SMD = target_feature_MD.float().expand(hidden_SMD.shape)
    loss_SMD = nn.functional.smooth_l1_loss(hidden_SMD.float(), target_SMD, reduction="none")
    return loss_SMD.mean(dim=(1, 2))


def soft_cross_entropy(
    hidden_SMD: torch.Tensor, target_feature_MD: torch.Tensor, lm_head_VD: torch.Tensor
) -> torch.Tensor:
    """-sum_v P(v) log Q(v), mean over positions, float32 [S], in nats.

    P and Q are the softmax of the frozen lm_head over the target's and the head's features. The
    gradient is formed together with the loss, a chunk of positions at a time, so that logits of
    [M, V] never exist; the lm_head gets none.
    """
    return _SoftCrossEntropy.apply(hidden_SMD, target_feature_MD, lm_head_VD)


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_SMD, target_feature_MD, lm_head_VD):
        S, M, _ = hidden_SMD.shape
        loss_S = hidden_SMD.new_zeros(S, dtype=torch.float32)
        grad_SMD = torch.empty_like(hidden_SMD)
        chunk = max(1, CHUNK_ELEMENTS // lm_head_VD.shape[0])
        weight_VD = lm_head_VD.detach()
        for start in range(0, M, chunk):
            rows = slice(start, start + chunk)
            target_CV = nn.functional.linear(target_feature_MD[rows].to(weight_VD), weight_VD)
            prob_CV = torch.softmax(target_CV, dim=-1, dtype=torch.float32)
            for s in range(S):
                logits_CV = nn.functional.linear(hidden_SMD[s, rows].to(weight_VD), weight_VD)
                logp_CV = torch.log_softmax(logits_CV, dim=-1, dtype=torch.float32)
                loss_S[s] -= torch.dot(prob_CV.flatten(), logp_CV.flatten())
                # d loss / d logits = Q - P
                grad_CV = logp_CV.exp_().sub_(prob_CV).to(weight_VD.dtype)
                grad_SMD[s, rows] = (grad_CV @ weight_VD).to(grad_SMD.dtype)
        ctx.save_for_backward(grad_SMD.div_(M))
        return loss_S / M

    @staticmethod
    def backward(ctx, grad_S):
        (grad_SMD,) = ctx.saved_tensors
        return grad_SMD * grad_S[:, None, None].to(grad_SMD.dtype), None, None

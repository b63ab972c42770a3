"""The losses of a draft head, run on its own predictions (draft_head.unroll), against the target.

    feature    smooth-L1 between the head's output and the target's hidden state (EAGLE-1/2)
    ce         -sum P log Q, nats: soft cross-entropy of next-token distributions, P the target's,
               Q the head's (EAGLE-1/2 and 3); its gradient is that of KL(P || Q)

Both softmaxes are over the rows of the lm_head that the head can draft, P renormalised to them as
in EAGLE-3's training. The gradient is written out and formed together with the loss, a chunk of
positions at a time, so that logits of [M, R] never exist; autograd took 1.07 to 2.04 times as long.

Axes: B dialogues, T positions, S unrolled steps, M positions that count, C of a chunk, D hidden
size, R draft vocabulary.
"""

import torch
from torch import nn
from torch.linalg import vecdot

from eagle_fsd.heads.draft_head import DraftHead, unroll
from eagle_fsd.training.recipe import Recipe

CHUNK_ELEMENTS = 2**22  # logits held at a time: 16 MB in float32, which a CPU's caches like
DEVICE_CHUNK_ELEMENTS = 2**27  # elsewhere: 512 MB, few launches


def cross_entropy(
    hidden_SMD: torch.Tensor,
    lm_head_RD: torch.Tensor,
    target_hidden_MD: torch.Tensor,
    target_lm_head_RD: torch.Tensor,
    weight_SM: torch.Tensor,
) -> torch.Tensor:
    """Cross-entropies of next-token distributions, weighted and summed, float32 [].

    Q is of hidden_SMD, as the lm_head reads it, and lm_head_RD, the target's rows or an EAGLE-3
    head's own. P is of the target's states and rows, which get no gradient; all products are in the
    dtype of the target's rows.
    """
    with torch.autocast(hidden_SMD.device.type, enabled=False):
        return _CrossEntropy.apply(
            hidden_SMD, lm_head_RD, target_hidden_MD, target_lm_head_RD, weight_SM
        )


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_SMD, lm_head_RD, target_MD, target_lm_head_RD, weight_SM):
        S, M, _ = hidden_SMD.shape
        low = target_lm_head_RD.dtype
        rows_RD = lm_head_RD.detach().to(low)
        total = hidden_SMD.new_zeros((), dtype=torch.float32)
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
            target_CD = target_MD[part].to(low)
            _, target_prob_CR = _softmax(target_CD, target_lm_head_RD, kept_22CR[0])
            for s in range(S):
                hidden_CD, weight_C = hidden_SMD[s, part].to(low), weight_SM[s, part]
                logits_CR, prob_CR = _softmax(hidden_CD, rows_RD, kept_22CR[1])
                # log sum exp of the logits, by the one token whose probability rounds least
                log_sum_C = logits_CR.amax(-1) - prob_CR.amax(-1).log()
                loss_C = log_sum_C - vecdot(target_prob_CR, logits_CR)
                total += torch.dot(loss_C.float(), weight_C)
                grad_CR = prob_CR.sub_(target_prob_CR)  # by the draft's logits
                grad_SMD[s, part] = (grad_CR @ rows_RD * weight_C[:, None]).to(grad_SMD.dtype)
                if own:
                    weighted_CD = (hidden_CD * weight_C[:, None]).to(low)
                    grad_RD += (grad_CR.T @ weighted_CD).float()
        ctx.save_for_backward(grad_SMD, grad_RD)
        return total

    @staticmethod
    def backward(ctx, grad):
        grad_SMD, grad_RD = ctx.saved_tensors
        rows = None if grad_RD is None else grad_RD * grad
        return grad_SMD * grad.to(grad_SMD.dtype), rows, None, None, None


def _softmax(
    hidden_CD: torch.Tensor, rows_RD: torch.Tensor, kept_2CR: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and probabilities that the rows give these states, written to the memory given."""
    logits_CR, prob_CR = kept_2CR[:, : hidden_CD.shape[0]]
    torch.mm(hidden_CD, rows_RD.T, out=logits_CR)
    return logits_CR, torch.softmax(logits_CR, -1, out=prob_CR)


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

    @property
    def dtype(self) -> torch.dtype:
        """Of the products with the target's rows, bfloat16 where the device multiplies it."""
        return self._target_lm_head[0].dtype

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
        # the steps' weights sum to 1
        powers = [self.recipe.step_decay**step for step in range(self.recipe.unroll_steps)]
        shares = [power / sum(powers) for power in powers]
        weight_S1 = torch.tensor(shares, device=mask_BT.device)[:, None]
        weight_SM = (weight_S1 / counted).expand(-1, target_MD.shape[0])
        total, each = hidden_SMD.sum() * 0.0, {}  # 0, yet with a gradient, if nothing counts
        if self.recipe.feature:  # mean over D (SafeAILab/EAGLE v1, eagle/train/main.py)
            wanted_SMD = target_MD.float().expand(hidden_SMD.shape)
            l1_SMD = nn.functional.smooth_l1_loss(hidden_SMD.float(), wanted_SMD, reduction="none")
            feature = (l1_SMD.mean(-1) * weight_SM).sum()
            total = total + self.recipe.feature * feature
            each["feature"] = feature.detach()
        if self.recipe.ce:
            rows_RD = target_rows_RD if head.lm_head is None else head.lm_head.weight
            entropy = cross_entropy(
                head.normed(hidden_SMD), rows_RD, target_MD, target_rows_RD, weight_SM
            )
            total = total + self.recipe.ce * entropy
            each["ce"] = entropy.detach()
        return total, each

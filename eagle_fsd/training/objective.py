"""What a head is trained to do: one batch in, its weighted losses out.

Axes: B dialogues, T positions, S unrolled steps, M positions that count, D hidden size, F features,
R draft vocabulary.
"""

import torch
from torch import nn

from eagle_fsd.heads.models import DraftHead
from eagle_fsd.training.losses import distribution_losses, feature_smooth_l1
from eagle_fsd.training.recipe import Recipe
from eagle_fsd.training.unroll import unroll


class Objective(nn.Module):
    """The head inside its losses: the one module that accelerate wraps.

    Its only parameters are the head's. The target's lm_head rows are a constant, kept out of the
    state.

    Args:
        head: the head in training.
        target_lm_head_RD: the target's lm_head rows of the draft vocabulary.
        recipe: losses, steps and their weights.
        checkpoint: recompute activations in the backward pass.
    """

    def __init__(
        self,
        head: DraftHead,
        target_lm_head_RD: torch.Tensor,
        recipe: Recipe,
        *,
        checkpoint: bool = False,
    ):
        super().__init__()
        self.head = head
        self.recipe = recipe
        self.checkpoint = checkpoint
        self._target_lm_head = (target_lm_head_RD,)
        self.mixed = {name: w for name, w in recipe.losses.items() if name != "feature"}

    @property
    def names(self) -> list[str]:
        """Of the losses that forward returns, in its order."""
        return [*(["feature"] if "feature" in self.recipe.losses else []), *self.mixed]

    def forward(
        self,
        feature_BTF: torch.Tensor,
        embedding_BTD: torch.Tensor,
        target_hidden_BTD: torch.Tensor,
        mask_BT: torch.Tensor,
        counted: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses of one batch as its share of the step's mean.

        Args:
            feature_BTF: what the head reads (with noise); see HeadBatch for the shift.
            embedding_BTD: embedding of the token after each position.
            target_hidden_BTD: the target's hidden state at the next position.
            mask_BT: positions that count.
            counted: number of positions that count in the whole step, over all its batches and
                processes; the losses of those sum to the step's mean. Float32 [].

        Returns:
            The weighted sum to differentiate, [], and each loss by itself in the order of `names`,
            detached, [losses].
        """
        hidden_SBTD = unroll(
            self.head,
            feature_BTF,
            embedding_BTD,
            steps=self.recipe.unroll_steps,
            checkpoint=self.checkpoint,
        )
        hidden_SMD = hidden_SBTD[:, mask_BT]
        target_MD = target_hidden_BTD[mask_BT]
        weight_S = torch.tensor(self.recipe.step_weights(), device=mask_BT.device)
        weight_SM = (weight_S / counted)[:, None].expand(-1, target_MD.shape[0])
        total, parts = hidden_SMD.sum() * 0.0, []
        if "feature" in self.recipe.losses:
            each_S = feature_smooth_l1(hidden_SMD, target_MD, weight_SM)
            total = total + self.recipe.losses["feature"] * each_S.sum()
            parts.append(each_S.sum().detach())
        if self.mixed:
            own = self.head.lm_head
            rows_RD = self._target_lm_head[0] if own is None else own.weight
            mixed, value_SK = distribution_losses(
                self.head.normed(hidden_SMD),
                rows_RD,
                target_MD,
                self._target_lm_head[0],
                weight_SM,
                self.mixed,
            )
            total = total + mixed
            parts += value_SK.sum(0).unbind()
        return total, torch.stack(parts)

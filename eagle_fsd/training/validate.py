"""How good a head is on held-out answers, by drafted level."""

from collections.abc import Iterable

import torch
from torch import nn

from eagle_fsd.drafters.eagle import EagleHead
from eagle_fsd.training.data import HeadBatch
from eagle_fsd.training.unroll import unroll


@torch.no_grad()
def accuracy_by_depth(
    head: EagleHead,
    batches: Iterable[HeadBatch],
    embed_tokens: nn.Module,
    lm_head_VD: torch.Tensor,
    *,
    depth: int,
    top: int = 8,
) -> dict[str, list[float]]:
    """Share of answer positions at which the head finds the target's most probable token.

    At level s the last s - 1 features are the head's own, while all tokens are the text's, whether
    the head would have drafted them or not. Full vocabulary, no tree.

    Returns:
        {"top1": [level 1, ...], f"top{top}": [...], "positions": [...]}.
    """
    hits = torch.zeros(2, depth, dtype=torch.float64)
    count = torch.zeros(depth, dtype=torch.float64)
    for batch in batches:
        embedding_BTD = embed_tokens(batch.next_token_BT)
        hidden_SBTD = unroll(head, batch.feature_BTD, embedding_BTD, steps=depth)
        for s in range(depth):
            mask_BT = batch.mask_BT.clone()
            mask_BT[:, :s] = False
            # a level's root must lie where drafting happens: at or behind the answer's start
            mask_BT[:, s:] &= batch.mask_BT[:, : mask_BT.shape[1] - s]
            rows = zip(
                batch.target_feature_BTD[mask_BT].split(512),
                hidden_SBTD[s][mask_BT].split(512),
                strict=True,
            )
            for target_RD, hidden_RD in rows:
                wanted_R = nn.functional.linear(target_RD.to(lm_head_VD), lm_head_VD).argmax(-1)
                logits_RV = nn.functional.linear(hidden_RD.to(lm_head_VD), lm_head_VD)
                hit_RT = logits_RV.topk(top, dim=-1).indices == wanted_R[:, None]
                hits[0, s] += hit_RT[:, 0].sum().item()
                hits[1, s] += hit_RT.sum().item()
                count[s] += hit_RT.shape[0]
    share = (hits / count.clamp_min(1)).tolist()
    return {"top1": share[0], f"top{top}": share[1], "positions": count.tolist()}

"""A draft head run on its own predictions along a known text.

Step 1 is the head as EAGLE-1/2 trains it: true features everywhere. At step s the head has already
drafted s - 1 tokens, so the last s - 1 hidden states it sees are its own (EAGLE-3's training-time
test, arXiv 2503.01840; HASS, arXiv 2408.15766). All steps at position i predict the same thing, the
feature at i+1 and the token at i+2, and so share their labels. Tokens are the text's throughout.

Axes: B texts, T positions, S unrolled steps, D hidden size, F features.
"""

import torch
from transformers import DynamicCache

from eagle_fsd.heads.draft_head import DraftHead


def unroll(
    head: DraftHead, feature_BTF: torch.Tensor, embedding_BTD: torch.Tensor, *, steps: int
) -> torch.Tensor:
    """The head's output at every step, [S, B, T, D].

    Entry [s-1, :, i] is the hidden that a drafter has for i+1 as the s-th level below the last true
    feature, i - s + 1. Positions i < s - 1 have no such root and hold nothing of meaning.

    Args:
        embedding_BTD: embedding of the token after each position.
        steps: S; 1 is the head on true features.
    """
    if not torch.is_autocast_enabled(feature_BTF.device.type):
        # the target may be in half precision while the head is not
        feature_BTF, embedding_BTD = feature_BTF.to(head.dtype), embedding_BTD.to(head.dtype)
    fused_BTD = head.fuse(feature_BTF)
    position_T = torch.arange(feature_BTF.shape[1], device=feature_BTF.device)
    angle_T2d = head.angles(position_T)
    cache = DynamicCache()  # it concatenates: nothing that a gradient needs is changed in place
    hidden_BTD, mask, outputs = fused_BTD, None, []
    for step in range(steps):
        if step:  # what the last step predicted for index i stands at i - 1
            hidden_BTD = torch.cat([fused_BTD[:, :1], outputs[-1][:, :-1]], dim=1)
            mask = _unrolled_mask(position_T, step, hidden_BTD.dtype)
        outputs.append(head(hidden_BTD, embedding_BTD, angle_T2d, cache=cache, mask=mask))
    return torch.stack(outputs)


def _unrolled_mask(position_T: torch.Tensor, step: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [1, 1, T, (step + 1) T] over the keys of all steps so far.

    Example, keys that the query at position 4 attends to (step: positions):

        step 1    1: 0 1 2 3 4
        step 2    1: 0 1 2 3        2: 4
        step 3    1: 0 1 2          2: 3     3: 4
    """
    behind_TT = position_T[:, None] - position_T  # of each key, as seen from each query
    blocks = [behind_TT >= step, *(behind_TT == step - own for own in range(1, step + 1))]
    seen = torch.cat(blocks, dim=1)[None, None]
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)

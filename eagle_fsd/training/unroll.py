"""The head run on its own predictions, at every position of a text at once.

Step 1 is the head as EAGLE-1/2 trains it: true features everywhere. At step s the head has already
drafted s - 1 tokens, so the last s - 1 features it sees are its own (EAGLE-3's training-time test,
HASS). All steps at position i predict the same thing, the feature at i+1 and the token at i+2, and
so share their labels. Tokens are the text's own throughout.

Example, keys that the query at position 4 attends to (step: positions):

    step 1    1: 0 1 2 3 4
    step 2    1: 0 1 2 3        2: 4
    step 3    1: 0 1 2          2: 3     3: 4

Axes: B dialogues, T positions, D hidden size, S steps.
"""

import torch
from transformers import DynamicCache

from eagle_fsd.drafters.eagle import EagleHead


def unroll(
    head: EagleHead, feature_BTD: torch.Tensor, embedding_BTD: torch.Tensor, *, steps: int
) -> torch.Tensor:
    """Predicted features of every step, [S, B, T, D].

    Entry [s-1, :, i] is what a drafter predicts for the feature at i+1 as the s-th level below the
    last true feature, i - s + 1. Positions i < s - 1 have no such root and hold nothing of meaning.

    Args:
        feature_BTD: the target's features.
        embedding_BTD: embedding of the token after each position.
    """
    T = feature_BTD.shape[1]
    position_T = torch.arange(T, device=feature_BTD.device)
    cache = DynamicCache()  # concatenates, as autograd needs
    hidden, outputs = feature_BTD, []
    for step in range(steps):
        if step:  # what the last step predicted for index i stands at i - 1
            hidden = torch.cat([feature_BTD[:, :1], outputs[-1][:, :-1]], dim=1)
        mask = _mask(T, step, hidden) if step else None
        hidden = head(hidden, embedding_BTD, position_T, cache=cache, mask=mask)
        outputs.append(hidden)
    return torch.stack(outputs)


def _mask(T: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """Additive mask [1, 1, T, (step + 1) T] over the keys of all steps so far; see the example."""
    query_T1 = torch.arange(T, device=like.device)[:, None]
    key_1T = query_T1.T
    blocks = [key_1T <= query_T1 - step]
    blocks += [key_1T == query_T1 - (step - own) for own in range(1, step + 1)]
    mask = torch.zeros(T, (step + 1) * T, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~torch.cat(blocks, dim=1), torch.finfo(like.dtype).min)[None, None]

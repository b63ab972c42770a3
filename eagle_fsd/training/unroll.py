"""The head run on its own predictions, at every position of a text at once.

Step 1 is the head as EAGLE-1/2 trains it: true features everywhere. At step s the head has already
drafted s - 1 tokens, so the last s - 1 hidden states it sees are its own (EAGLE-3's training-time
test, arXiv 2503.01840; HASS, arXiv 2408.15766). All steps at position i predict the same thing, the
feature at i+1 and the token at i+2, and so share their labels. Tokens are the text's throughout.

Example, keys that the query at position 4 attends to (step: positions):

    step 1    1: 0 1 2 3 4
    step 2    1: 0 1 2 3        2: 4
    step 3    1: 0 1 2          2: 3     3: 4

Axes: B dialogues, T positions, D hidden size, F features, S steps.
"""

import torch
from torch.utils.checkpoint import checkpoint as recompute
from transformers import DynamicCache

from eagle_fsd.heads.models import DraftHead

Past = tuple[tuple[torch.Tensor, torch.Tensor], ...]  # keys and values of each layer


def unroll(
    head: DraftHead,
    feature_BTF: torch.Tensor,
    embedding_BTD: torch.Tensor,
    *,
    steps: int,
    checkpoint: bool = False,
) -> torch.Tensor:
    """The head's output at every step, [S, B, T, D].

    Entry [s-1, :, i] is the hidden that a drafter has for i+1 as the s-th level below the last true
    feature, i - s + 1. Positions i < s - 1 have no such root and hold nothing of meaning.

    Args:
        feature_BTF: the target's features.
        embedding_BTD: embedding of the token after each position.
        steps: S; 1 is the head on true features.
        checkpoint: forget what is inside a step and compute it again in the backward pass.
    """
    T = feature_BTF.shape[1]
    if not torch.is_autocast_enabled(feature_BTF.device.type):
        # the target may be in half precision while the head is not
        dtype = head.fc.weight.dtype
        feature_BTF, embedding_BTD = feature_BTF.to(dtype), embedding_BTD.to(dtype)
    fused_BTD = head.fuse(feature_BTF)
    past: Past = ()
    hidden, outputs = fused_BTD, []
    for step in range(steps):
        if step:  # what the last step predicted for index i stands at i - 1
            hidden = torch.cat([fused_BTD[:, :1], outputs[-1][:, :-1]], dim=1)
        mask = _mask(T, step, hidden) if step else None
        arguments = (head, hidden, embedding_BTD, mask, past)
        if checkpoint:
            hidden, past = recompute(_step, *arguments, use_reentrant=False)
        else:
            hidden, past = _step(*arguments)
        outputs.append(hidden)
    return torch.stack(outputs)


def _step(
    head: DraftHead,
    hidden: torch.Tensor,
    embedding_BTD: torch.Tensor,
    mask: torch.Tensor | None,
    past: Past,
) -> tuple[torch.Tensor, Past]:
    """One run of the head; keys and values go in and out, nothing is changed in place."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(past):
        cache.update(keys, values, layer)
    position_T = torch.arange(hidden.shape[1], device=hidden.device)
    hidden = head(hidden, embedding_BTD, position_T, cache=cache, mask=mask)
    return hidden, tuple((layer.keys, layer.values) for layer in cache.layers)


def _mask(T: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """Additive mask [1, 1, T, (step + 1) T] over the keys of all steps so far; see the example."""
    query_T1 = torch.arange(T, device=like.device)[:, None]
    key_1T = query_T1.T
    blocks = [key_1T <= query_T1 - step]
    blocks += [key_1T == query_T1 - (step - own) for own in range(1, step + 1)]
    mask = torch.zeros(T, (step + 1) * T, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(~torch.cat(blocks, dim=1), torch.finfo(like.dtype).min)[None, None]

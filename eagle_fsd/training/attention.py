"""Attention of one new token per row, without copying keys and values to every query head.

transformers' sdpa attention repeats the cached keys and values once per query head of a group,
each step and layer; with many rows on a CPU that is most of the step's time (7 times this at 128
rows of 300). Here the heads of a group are laid side by side as queries of one key head instead.
Registered under a name of its own; no modeling file is touched.

Axes: B rows, H query heads, K key heads, G = H / K, C columns, D head dimension.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "sdpa_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """As transformers' sdpa attention, [B, 1, H, D]; several new tokens a row are left to it."""
    B, H, T, D = query.shape
    K = key.shape[1]
    if T > 1:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    if attention_mask is not None:
        attention_mask = attention_mask.expand(-1, -1, H // K, -1)
    out_BKGD = scaled_dot_product_attention(
        query.view(B, K, H // K, D), key, value, attn_mask=attention_mask, scale=scaling
    )
    return out_BKGD.reshape(B, 1, H, value.shape[-1]), None


@contextmanager
def grouped(model: PreTrainedModel) -> Iterator[None]:
    """Let a model that uses sdpa attention use this one, for as long as the block lasts."""
    before = model.config._attn_implementation
    if before != "sdpa":
        yield
        return
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)

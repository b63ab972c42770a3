"""Which rows of the cache each node of a tree sees, as the masks that a model's layers take.

Axes: N nodes, K keys, which are rows of the cache.
"""

import torch
from transformers import PretrainedConfig

Masks = torch.Tensor | dict[str, torch.Tensor]


def additive_mask(visible_NK: torch.Tensor, dtype: torch.dtype, repeats: int) -> torch.Tensor:
    """0 where visible, else the dtype's lowest number; in the shape that attention takes, [1, 1,
    repeats N, K]: the same for every query head that shares a key head, where attention folds them
    into the rows (engine/attention.py)."""
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=visible_NK.device)
    mask_NK = torch.where(visible_NK, 0.0, lowest)
    return mask_NK.expand(repeats, -1, -1).reshape(1, 1, -1, mask_NK.shape[1])


def layer_masks(
    config: PretrainedConfig,
    visible_NK: torch.Tensor,
    key_position_K: torch.Tensor,
    position_N: torch.Tensor,
    *,
    dtype: torch.dtype,
    repeats: int,
) -> Masks:
    """Masks for a model's layers, from what each node may see but for windows and chunks. Keys may
    have a position for each node, [N, K].

    Models whose `layer_types` name layers that slide, or that see their own chunk of the text
    alone, take a dict of masks by type. Models with a window and without types take one mask, with
    the window added here because transformers leaves a 4-D mask as it is.
    """
    types = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    near_NK = {"full_attention": visible_NK}
    if window is not None and (not types or "sliding_attention" in types):
        in_window_NK = key_position_K > position_N[:, None] - window
        near_NK["sliding_attention"] = visible_NK & in_window_NK
    if "chunked_attention" in types:
        chunk = config.attention_chunk_size
        in_chunk_NK = key_position_K // chunk == position_N[:, None] // chunk
        near_NK["chunked_attention"] = visible_NK & in_chunk_NK
    if not types or len(near_NK) == 1:
        _, seen_NK = near_NK.popitem()  # the last that was added
        return additive_mask(seen_NK, dtype, repeats)
    return {kind: additive_mask(seen, dtype, repeats) for kind, seen in near_NK.items()}

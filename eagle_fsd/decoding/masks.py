"""Which rows of the cache each node of a tree sees, as the masks that a model's layers take.

Axes: N nodes, K keys, which are rows of the cache.
"""

import inspect
import sys

import torch
from torch import nn
from tqdm import tqdm
from transformers import PretrainedConfig, PreTrainedModel

Masks = torch.Tensor | dict[str, torch.Tensor]
# Layers that see less than all of the text before, and what transformers' forwards make masks by
NEARER = {
    "sliding_attention": "create_sliding_window_causal_mask",
    "chunked_attention": "create_chunked_causal_mask",
}


def leave_cudnn_attention(device: torch.device) -> None:
    """On Hopper and Blackwell torch 2.13 prefers cuDNN's attention, which builds a plan (others
    measured 20 to 40 ms) for every new size and stride, so for nearly every round of a draft tree
    and hardly ever for transformers' `generate`; and on B200 it has given wrong text (pytorch
    issue 193893). Off for the whole process, as vLLM has it, and for every arm alike."""
    if device.type != "cpu" and torch.backends.cuda.cudnn_sdp_enabled():
        torch.backends.cuda.enable_cudnn_sdp(False)
        tqdm.write(
            "eagle_fsd: cuDNN's attention is off in this process, since it plans every size anew "
            "(torch.backends.cuda.enable_cudnn_sdp)",
            file=sys.stderr,
        )


def additive_mask(visible_NK: torch.Tensor, dtype: torch.dtype, repeats: int) -> torch.Tensor:
    """0 where visible, else the dtype's lowest number; in the shape that attention takes, [1, 1,
    repeats N, K]: the same for every query head that shares a key head, where attention folds them
    into the rows (engine/attention.py). Of several sequences, [B, N, K], it is [B, 1, ..]."""
    N, K = visible_NK.shape[-2:]
    if visible_NK.device.type != "cpu":
        # CUDA's memory-efficient attention wants rows 16 bytes apart, and would copy a mask of
        # others again in every layer.
        visible_NK = nn.functional.pad(visible_NK, (0, -K % 8))
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=visible_NK.device)
    mask_B1NK = torch.where(visible_NK, 0.0, lowest).reshape(-1, 1, N, visible_NK.shape[-1])
    return mask_B1NK.expand(-1, repeats, -1, -1).flatten(1, 2)[:, None, :, :K]


def nearer_masks(body: PreTrainedModel) -> dict[str, bool]:
    """Types of layers that see less than all of the text before, of those whose masks transformers'
    own forward of the family makes; and whether `layer_types` says which layers are such, or all
    are. The config does not tell: it may have keys that no layer of its family reads."""
    body = getattr(body, "_orig_mod", body)  # what torch.compile wraps
    source = inspect.getsource(inspect.unwrap(type(body).forward))
    return {kind: f'"{kind}"' in source for kind, name in NEARER.items() if name in source}


def layer_masks(
    config: PretrainedConfig,
    visible_NK: torch.Tensor,
    key_position_K: torch.Tensor,
    position_N: torch.Tensor,
    *,
    nearer: dict[str, bool],
    dtype: torch.dtype,
    repeats: int,
) -> Masks:
    """Masks for a model's layers, from what each node may see but for windows and chunks; `nearer`
    is what nearer_masks says of the model. Keys may have a position for each node, [N, K]; of
    several sequences everything is given with that axis in front.

    Models whose `layer_types` name layers that slide, or that see their own chunk of the text
    alone, take a dict of masks by type. Models with a window for all layers take one mask, with the
    window added here because transformers leaves a 4-D mask as it is.
    """
    types = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    near_NK = {"full_attention": visible_NK}
    if window is not None and _applies("sliding_attention", nearer, types):
        in_window_NK = key_position_K > position_N[..., None] - window
        near_NK["sliding_attention"] = visible_NK & in_window_NK
    if _applies("chunked_attention", nearer, types):
        chunk = config.attention_chunk_size
        in_chunk_NK = key_position_K // chunk == position_N[..., None] // chunk
        near_NK["chunked_attention"] = visible_NK & in_chunk_NK
    if len(near_NK) == 1 or not any(nearer.values()):
        _, seen_NK = near_NK.popitem()  # the last that was added
        return additive_mask(seen_NK, dtype, repeats)
    return {kind: additive_mask(seen, dtype, repeats) for kind, seen in near_NK.items()}


def _applies(kind: str, nearer: dict[str, bool], types: set[str]) -> bool:
    return kind in nearer and (kind in types or not nearer[kind])

"""What each node of a draft tree may see, as the additive float masks that a model's layers take.

Axes: N tree nodes, K keys (cache rows).
"""

import torch
from transformers import PretrainedConfig

Masks = torch.Tensor | dict[str, torch.Tensor]


def additive(visible_NK: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where visible, else the dtype's lowest number."""
    mask_NK = torch.zeros(visible_NK.shape, dtype=dtype, device=visible_NK.device)
    return mask_NK.masked_fill_(~visible_NK, torch.finfo(dtype).min)


def fold(mask_NK: torch.Tensor, repeats: int) -> torch.Tensor:
    """In the shape that attention takes, [1, 1, repeats N, K]."""
    return mask_NK.repeat(repeats, 1)[None, None]


class LayerMasks:
    """Masks for the layers of one model.

    Models with `layer_types` that slide take a dict of masks; those whose layers all slide
    (Mistral) take one mask, with the window added here because transformers leaves a 4-D mask as
    it is.

    Args:
        config, dtype: the model's.
        repeats: query heads that share a key head where attention folds them into the rows
            (engine/attention.py), else 1.
    """

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype, repeats: int):
        self._dtype, self._repeats = dtype, repeats
        self._window = getattr(config, "sliding_window", None)
        self._layer_types = set(getattr(config, "layer_types", None) or [])
        every = self._window is not None and not self._layer_types
        self._slides = every or "sliding_attention" in self._layer_types

    def of(
        self, visible_NK: torch.Tensor, key_position_K: torch.Tensor, position_N: torch.Tensor
    ) -> Masks:
        """From what each node may see but for windows, and where keys and nodes stand."""
        if not self._slides:
            return self._mask(visible_NK)
        in_window_NK = key_position_K[None] > position_N[:, None] - self._window
        sliding = self._mask(visible_NK & in_window_NK)
        if not self._layer_types:
            return sliding
        return {"full_attention": self._mask(visible_NK), "sliding_attention": sliding}

    def _mask(self, visible_NK: torch.Tensor) -> torch.Tensor:
        return fold(additive(visible_NK, self._dtype), self._repeats)

"""The stock engine; the others are in eagle_fsd/engine.

Axes: N tree nodes, D hidden size, R rows of a linear layer.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


class Engine:
    """The stock engine: runs the transformers model as it is, and keeps nothing of it.

    Attributes:
        name: as users give it.
        rebuilds: the model that it runs is no longer stock.
        compiles: forwards run as compiled code, which is given a mask for a single node too.
    """

    name = "stock"
    rebuilds = False
    compiles = False

    def rebuild(self, model: PreTrainedModel, *, keep_stock: bool) -> PreTrainedModel:
        """The model to run; with keep_stock, `model` itself stays as it is."""
        return model

    def for_drafts(self) -> "Engine":
        """The engine for heads and draft models, where a rounding does no harm."""
        return self

    def exchange(self, module: nn.Module) -> None:
        """Put the engine's layers in the place of the module's own."""

    def linear(
        self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function x W^T + b, from [N, D] to [N, R]."""
        return partial(nn.functional.linear, weight=weight_RD, bias=bias_R)

    def shrink(self, model: PreTrainedModel, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Hold embedding and lm_head of a model that is not kept stock in less memory, where that
        changes no number; `read` is the lm_head as the engine runs it."""

    def mask_repeats(self, config: PretrainedConfig) -> int:
        """Query heads of a rebuilt model that share a row of a mask; see masks.additive_mask."""
        return 1

    def rows(self, capacity: int) -> int:
        """Rows that a cache is given of which so many are needed."""
        return capacity

    def wrap(self, function: Callable[..., tuple[torch.Tensor, ...]]) -> Callable:
        """What is called in the place of function(cache, *tensors), which runs a forward: it writes
        the cache's rows, sets what the cache holds for a forward, and takes any number of new
        positions and of cache rows. An engine may compile it, and may use its results' memory again
        at the next call."""
        return function


STOCK = Engine()

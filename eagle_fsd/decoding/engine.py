"""How a target is run: the stock engine (others: eagle_fsd/engine/), and the decoded sequence.

Axes: N tree nodes, K keys (cache rows), D hidden size, R rows of a linear layer.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.tree import DraftTree

# Target's forward over tree nodes to logits and features, from their tokens [N] and positions [N],
# which cache rows each sees [N, K], and where those stand [K]; without these two, all rows.
NodeForward = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class CachedSequence:
    """The cache of the sequence that is decoded, and how many of its rows are committed.

    Attributes:
        length: committed rows.
        cache: None before the first start and after close.
        fixed_shapes: forwards of few tokens are made functions of fixed shapes (engine/graphs.py).
    """

    fixed_shapes = False

    def __init__(self, new_cache: Callable[[int], TreeCache], device: torch.device):
        self._new_cache, self._device = new_cache, device
        self.close()

    def close(self) -> None:
        self.length, self.cache = 0, None

    def start(self, capacity: int) -> None:
        """Begin a new sequence with a cache of at least `capacity` rows."""
        self.length, self.cache = 0, self._new_cache(capacity)

    def advance(self, rows: int) -> None:
        self.length += rows

    def verify(self, tree: DraftTree, forward: NodeForward) -> tuple[torch.Tensor, torch.Tensor]:
        """Run every node at once, each seeing the committed rows and its ancestors only."""
        N, prefix = tree.size, self.length
        position_N = prefix + tree.depth_N
        if N == 1:  # plain decoding gets what `generate` gets: transformers' own masks
            return forward(tree.token_N, position_N)
        visible_NK = torch.ones(N, prefix + N, dtype=torch.bool, device=self._device)
        visible_NK[:, prefix:] = tree.ancestor_NN
        key_position_K = torch.cat([torch.arange(prefix, device=self._device), position_N])
        return forward(tree.token_N, position_N, visible_NK, key_position_K)


class Engine:
    """The stock engine: runs the transformers model as it is, and keeps nothing of it.

    Attributes:
        name: as users give it.
        rebuilds: the model that it runs is no longer stock.
        sequence: what it decodes one sequence with.
    """

    name = "stock"
    rebuilds = False
    sequence: ClassVar[type[CachedSequence]] = CachedSequence

    def rebuild(self, model: PreTrainedModel, *, keep_stock: bool) -> PreTrainedModel:
        """The model to run; with keep_stock, `model` itself stays as it is."""
        return model

    def exchange_linears(self, module: nn.Module) -> None:
        """Put the engine's linear layers in the place of the module's own."""

    def linear(
        self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function x W^T + b, from [N, D] to [N, R]."""
        return partial(nn.functional.linear, weight=weight_RD, bias=bias_R)

    def mask_repeats(self, config: PretrainedConfig) -> int:
        """Query heads of a rebuilt model that share a row of a mask; see masks.fold."""
        return 1


STOCK = Engine()

"""How a target is run: the stock engine (others: eagle_fsd/engine/), and the decoded sequence.

Axes: N tree nodes, K keys (cache rows; S: a drafter's own), T new positions, E rows of a drafted
tree, F features, D hidden size, R rows of a linear layer.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.recurrent.hooks import TreeForward

# Target's forward over tree nodes to logits and features, from their tokens [N] and positions [N],
# which cache rows each sees [N, K], where those stand [K], and the tree for recurrent layers;
# without these three, all rows, one after the other.
NodeForward = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class CachedSequence:
    """The cache of the sequence that is decoded, and how many of its rows are committed.

    Attributes:
        length: committed rows.
        cache: None before the first start and after close.
    """

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
        nodes = TreeForward(tree.parent_N, tree.ancestor_NN)
        return forward(tree.token_N, position_N, visible_NK, key_position_K, nodes)

    def draft(
        self,
        grow: Callable[..., DraftTree],
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        *more: torch.Tensor,
        slots: int,
        rows: int,
        kind: Hashable,
    ) -> DraftTree:
        """A drafter's tree behind newly committed tokens: grow(features_TF, token_T, count, stable,
        *more), of which the first `count` are new, behind `stable` rows.

        Args:
            slots: most tokens that a round commits.
            rows: that the tree needs behind them.
            kind: what else `grow` depends on.
        """
        return grow(features_TF, token_T, token_T.shape[0], self.length, *more)

    def step(
        self,
        forward: Callable[..., torch.Tensor],
        seen_TE: torch.Tensor | None,
        base: int | torch.Tensor,
    ) -> torch.Tensor:
        """A step of `grow`: forward(visible_TS), given which cache rows each position sees.

        Args:
            seen_TE: of the rows from `base` on; the last T of them are the positions' own. Rows
                before `base` are seen by all. None: the cache is empty, and causal.
        """
        if seen_TE is None or seen_TE.shape[0] == 1:  # a row alone sees all of its chain
            return forward(visible_TS=None)
        return forward(visible_TS=nn.functional.pad(seen_TE, (base, 0), value=True))


class Engine:
    """The stock engine: runs the transformers model as it is, and keeps nothing of it.

    Attributes:
        name: as users give it.
        rebuilds: the model that it runs is no longer stock.
        runs_states: it runs models with recurrent layers.
        sequence: what it decodes one sequence with.
    """

    name = "stock"
    rebuilds = False
    runs_states = True
    sequence: ClassVar[type[CachedSequence]] = CachedSequence

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
        """Query heads of a rebuilt model that share a row of a mask; see masks.fold."""
        return 1


def no_states(engine: str, kind: str) -> BadInput:
    """The error where an engine cannot run a model type with recurrent layers."""
    return BadInput(
        f"engine {engine!r} cannot run a target of type {kind!r}: it records forwards, and states "
        "of recurrent layers are changed from outside them; use auto"
    )


STOCK = Engine()

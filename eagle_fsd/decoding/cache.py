"""A key/value cache that is allocated once and in which a path of a draft tree can be kept.

transformers' DynamicCache concatenates (so it reallocates every step); its static caches index with
tensors and drop rows of sliding-window layers. Here every layer keeps whole rows in one buffer.
Recurrent layers keep a state instead, into which the path is folded (recurrent/states.py).
"""

import weakref
from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from eagle_fsd.recurrent.hooks import TreeForward
from eagle_fsd.recurrent.kinds import HYBRID, NOTHING, RECURRENT
from eagle_fsd.recurrent.states import RecurrentLayer


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of a layer, [1, kv_heads, capacity, head_dim]; rows [0, length) are valid."""

    is_sliding = False  # whole rows are kept for sliding-window layers too

    def __init__(self, cache: "TreeCache", index: int):
        super().__init__()
        # No cycle: a cache must go when its owner lets it go. No proxy: torch.compile misses what
        # is set through one.
        self._cache = weakref.ref(cache)
        self._index = index
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = self._cache().buffers(self._index, key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows; return views of all valid rows, the new ones included."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._cache().fixed is not None:
            row_N, end = self._cache().fixed
            self.keys.index_copy_(2, row_N, key_states)
            self.values.index_copy_(2, row_N, value_states)
        else:
            new = key_states.shape[2]
            self.keys.narrow(2, self.length, new).copy_(key_states)
            self.values.narrow(2, self.length, new).copy_(value_states)
            self.length += new
            end = self._cache().capacity if self._cache().whole else self.length
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int | torch.Tensor:
        """Rows before the new ones; with `positions`, of each new one the positions before it, less
        the new ones before it: what the model adds to 0, 1, 2, .. to place them."""
        if (position_N := self._cache().positions) is None:
            return self.length
        return position_N - torch.arange(len(position_N), device=position_N.device)

    def get_max_length(self) -> int:
        return self._cache().capacity


class HybridLayer(RecurrentLayer, PreallocatedLayer):
    """Of a model layer with both attention and a recurrence."""

    def __init__(self, cache: "TreeCache", index: int):
        PreallocatedLayer.__init__(self, cache, index)
        RecurrentLayer.__init__(self, cache)
        # which the second of transformers' own two classes clears
        self.is_initialized = False

    def lazy_initialization(self, *rows: torch.Tensor, **states) -> None:
        """Of keys and values by position, or of states by name."""
        if rows:
            PreallocatedLayer.lazy_initialization(self, *rows)
        else:
            RecurrentLayer.lazy_initialization(self, **states)


class TreeCache(Cache):
    """One layer of the cache per model layer: a PreallocatedLayer, or what its type needs.

    Example: 5 committed rows and a tree of 4 nodes give length 9; `keep_path(5, [0, 2])` leaves
    rows 0-4, node 0's row at 5 and node 2's row at 6, and length 7.

    Args:
        capacity: rows of each layer with attention.
        types: of the model's layers, as in transformers' configs; empty: all have attention.
        pooled: one buffer for all layers; False where they lie on several devices.

    Attributes:
        fixed: None, or for a forward of fixed shapes (engine/graphs.py) the cache row of each new
            position, int64 on the device, and how many rows are read, valid or not: the mask hides
            the others.
        positions: None, or int64 [N], the positions of a forward's new rows, for a model that asks
            the cache where they stand (Llama 4: target.Target.run).
        forward: None, or the tree that a forward runs over recurrent layers.
        whole: a forward reads all rows, valid or not, as one block without gaps between sequences;
            the mask hides the others.
    """

    def __init__(
        self, num_layers: int, capacity: int, *, types: Sequence[str] = (), pooled: bool = True
    ):
        self._with_rows: list[PreallocatedLayer] = []
        self._with_states: list[RecurrentLayer] = []
        types = types or ["full_attention"] * num_layers
        super().__init__(layers=[self._layer(kind) for kind in types])
        self.capacity = capacity
        self.fixed: tuple[torch.Tensor, int] | None = None
        self.positions: torch.Tensor | None = None
        self.forward: TreeForward | None = None
        self.whole = False
        self._pooled = pooled
        self._pools: list[torch.Tensor] = []  # keys and values in turn, [layers, *a layer's shape]

    def _layer(self, kind: str) -> "PreallocatedLayer | RecurrentLayer | DummyLayer":
        if kind in NOTHING:
            return DummyLayer()
        if kind in RECURRENT:
            layer = RecurrentLayer(self)
        else:
            index = len(self._with_rows)
            layer = (HybridLayer if kind in HYBRID else PreallocatedLayer)(self, index)
            self._with_rows.append(layer)
        if isinstance(layer, RecurrentLayer):
            self._with_states.append(layer)
        return layer

    @property
    def length(self) -> int:
        """Number of valid rows. Set lower, it forgets the rows behind; set higher, rows are valid
        that a forward of fixed shapes has written."""
        return self._with_rows[0].length

    @length.setter
    def length(self, length: int) -> None:
        assert 0 <= length <= self.capacity, f"length {length} of a cache of {self.capacity} rows"
        for layer in self._with_rows:
            layer.length = length

    def buffers(
        self, index: int, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's part of the pool of all layers; its own if it lies or looks apart."""
        shapes = [
            torch.Size((*states.shape[:2], self.capacity, states.shape[3]))
            for states in (key_states, value_states)
        ]
        if self._pooled and [pool.shape[1:] for pool in self._pools[:2]] == shapes:
            keys, values = self._pools[:2]
            return keys[index], values[index]
        layers = len(self._with_rows) if self._pooled and not self._pools else 1
        # zeros: a row behind a mask must not be infinite or NaN
        keys, values = (key_states.new_zeros(layers, *shape) for shape in shapes)
        self._pools += [keys, values]
        return keys[0], values[0]

    @torch.inference_mode()
    def keep_path(self, prefix_length: int, node_A: torch.Tensor) -> None:
        """Keep rows [0, prefix_length) and, right behind them, those of a path's nodes; states
        become those behind the path's last node."""
        for layer in self._with_states:
            layer.keep_path(node_A)
        kept = node_A.shape[0]
        if kept > 1:  # the root's row is where it should be
            row_A = node_A + prefix_length
            for pool in self._pools:
                # index_select copies first, so source and destination rows may overlap
                kept_rows = pool.index_select(3, row_A.to(pool.device))
                pool.narrow(3, prefix_length, kept).copy_(kept_rows)
        self.length = prefix_length + kept

    @property
    def state_bytes(self) -> int:
        """Memory of the states of recurrent layers, which does not grow with the text."""
        return sum(layer.state_bytes for layer in self._with_states)

    def tree_bytes(self, nodes: int, *, channels: bool) -> int:
        """Memory that recurrent layers need for a tree of so many nodes, about; see
        RecurrentLayer."""
        layers = self._with_states
        kept = sum(layer.tree_bytes(nodes, channels=channels) for layer in layers)
        return kept + max(layer.work_bytes(nodes, channels=channels) for layer in layers)

    @property
    def stash_bytes(self) -> int:
        """Memory that recurrent layers keep of the last tree until a path is kept."""
        return sum(layer.stash_bytes for layer in self._with_states)

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all rows, and what they held."""
        self.length = 0
        for pool in self._pools:
            pool.zero_()
        for layer in self._with_states:
            RecurrentLayer.reset(layer)

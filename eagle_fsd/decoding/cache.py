"""A key/value cache that is allocated once and in which a path of a draft tree can be kept.

transformers' DynamicCache concatenates (so it reallocates every step); its static caches index with
tensors and drop rows of sliding-window layers. Here every layer keeps whole rows in one buffer, and
`keep_path` moves the accepted rows of a tree behind the prefix, in all layers at once. Which rows a
query may see is the mask's business (masks.py), not the cache's.
"""

import weakref
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True)
class FixedRows:
    """Where a forward of fixed shapes writes, and how far it reads (engine/graphs.py).

    Attributes:
        row_N: the cache row of each new position, int64 on the device.
        bucket: rows [0, bucket) are read, valid or not; the mask hides the others.
    """

    row_N: torch.Tensor
    bucket: int


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of a layer, [1, kv_heads, capacity, head_dim]; rows [0, length) are valid."""

    is_sliding = False  # whole rows are kept for sliding-window layers too

    def __init__(self, cache: "TreeCache", index: int):
        super().__init__()
        self._cache = weakref.proxy(cache)  # no cycle: a cache must go when its owner lets it go
        self._index = index
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = self._cache.buffers(self._index, key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows; return views of all valid rows, the new ones included."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        fixed = self._cache.fixed
        if fixed is not None:
            self.keys.index_copy_(2, fixed.row_N, key_states)
            self.values.index_copy_(2, fixed.row_N, value_states)
            return self.keys.narrow(2, 0, fixed.bucket), self.values.narrow(2, 0, fixed.bucket)
        new = key_states.shape[2]
        end = self.length + new
        capacity = self._cache.capacity
        assert end <= capacity, f"cache of {capacity} rows cannot hold {end}"
        self.keys.narrow(2, self.length, new).copy_(key_states)
        self.values.narrow(2, self.length, new).copy_(value_states)
        self.length = end
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self._cache.capacity


class TreeCache(Cache):
    """One PreallocatedLayer per model layer.

    Example: 5 committed rows and a tree of 4 nodes give length 9; `keep_path(5, [0, 2])` leaves
    rows 0-4, node 0's row at 5 and node 2's row at 6, and length 7.

    Args:
        num_layers: layers of the model.
        capacity: rows of each.
        pooled: one buffer for all layers; False where they lie on several devices.
        zeroed: no row is ever undefined; for forwards that read rows not valid yet.

    Attributes:
        fixed: set while a forward of fixed shapes runs, else None.
    """

    def __init__(
        self, num_layers: int, capacity: int, *, pooled: bool = True, zeroed: bool = False
    ):
        super().__init__(layers=[PreallocatedLayer(self, index) for index in range(num_layers)])
        self.capacity = capacity
        self.fixed: FixedRows | None = None
        self.pooled, self._zeroed = pooled, zeroed
        self._pools: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def length(self) -> int:
        """Number of valid rows."""
        return self.layers[0].length

    def buffers(
        self, index: int, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's part of the pool of all layers; of one of its own if it lies or looks apart."""
        shapes = [self._shape(states) for states in (key_states, value_states)]
        if not self._pools and self.pooled:
            self._add_pool(len(self.layers), shapes, key_states)
        if not self.pooled or [part.shape[1:] for part in self._pools[0]] != shapes:
            self._add_pool(1, shapes, key_states)
            index = -1
        keys, values = self._pools[-1 if index < 0 else 0]
        return keys[index], values[index]

    def _add_pool(self, layers: int, shapes: list[torch.Size], like: torch.Tensor) -> None:
        new = like.new_zeros if self._zeroed else like.new_empty
        self._pools.append(tuple(new(layers, *shape) for shape in shapes))

    def _shape(self, states: torch.Tensor) -> torch.Size:
        batch, heads, _, head_dim = states.shape
        return torch.Size((batch, heads, self.capacity, head_dim))

    @torch.inference_mode()
    def keep_path(self, prefix_length: int, node_A: torch.Tensor) -> None:
        """Keep rows [0, prefix_length) and, right behind them, the tree rows `node_A`.

        Args:
            prefix_length: rows before the tree's own.
            node_A: indices of the accepted nodes within the tree, root first, [A].
        """
        kept = node_A.shape[0]
        if kept > 1:  # the root's row is where it should be
            for pool in self._pools:
                row_A = (node_A + prefix_length).to(pool[0].device)
                for part in pool:
                    # index_select copies first, so source and destination rows may overlap
                    part.narrow(3, prefix_length, kept).copy_(part.index_select(3, row_A))
        self.truncate(prefix_length + kept)

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on."""
        assert length <= self.length, f"cannot grow a cache from {self.length} to {length}"
        self._set_length(length)

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all rows, and what they held: a row behind a mask must not be infinite or NaN."""
        self._set_length(0)
        for pool in self._pools:
            for part in pool:
                part.zero_()

    def extend(self, length: int) -> None:
        """Rows [0, length) are valid now: a forward of fixed shapes has written them."""
        assert self.length <= length <= self.capacity, (self.length, length, self.capacity)
        self._set_length(length)

    def _set_length(self, length: int) -> None:
        for layer in self.layers:
            layer.length = length

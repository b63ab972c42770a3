"""A key/value cache that is allocated once and in which a path of a draft tree can be kept.

transformers' DynamicCache concatenates (so it reallocates every step); its static caches index with
tensors and drop rows of sliding-window layers. Here every layer keeps whole rows in one buffer, and
`keep_path` moves the accepted rows of a tree behind the prefix. Which rows a query may see is the
mask's business (target.py), not the cache's.
"""

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of a layer, [1, kv_heads, capacity, head_dim]; rows [0, length) are valid."""

    is_sliding = False  # whole rows are kept for sliding-window layers too

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, head_dim = key_states.shape
        self.keys = key_states.new_empty(batch, heads, self.capacity, head_dim)
        self.values = value_states.new_empty(batch, heads, self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append rows; return views of all valid rows, the new ones included."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        assert end <= self.capacity, f"cache of {self.capacity} rows cannot hold {end}"
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.capacity


class TreeCache(Cache):
    """One PreallocatedLayer per model layer.

    Example: 5 committed rows and a tree of 4 nodes give length 9; `keep_path(5, [0, 2])` leaves
    rows 0-4, node 0's row at 5 and node 2's row at 6, and length 7.
    """

    def __init__(self, num_layers: int, capacity: int):
        super().__init__(layers=[PreallocatedLayer(capacity) for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Number of valid rows."""
        return self.layers[0].length

    @torch.inference_mode()
    def keep_path(self, prefix_length: int, node_A: torch.Tensor) -> None:
        """Keep rows [0, prefix_length) and, right behind them, the tree rows `node_A`.

        Args:
            prefix_length: rows before the tree's own.
            node_A: indices of the accepted nodes within the tree, root first, [A].
        """
        end = prefix_length + node_A.shape[0]
        for layer in self.layers:
            row_A = (node_A + prefix_length).to(layer.keys.device)
            # index_select copies first, so source and destination rows may overlap
            layer.keys[:, :, prefix_length:end] = layer.keys.index_select(2, row_A)
            layer.values[:, :, prefix_length:end] = layer.values.index_select(2, row_A)
            layer.length = end

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on."""
        for layer in self.layers:
            assert length <= layer.length, f"cannot grow a cache from {layer.length} to {length}"
            layer.length = length

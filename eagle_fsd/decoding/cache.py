"""A key/value cache that is allocated once and in which a path of a draft tree can be kept.

transformers' DynamicCache concatenates (so it reallocates every step); its static caches index with
tensors and drop rows of sliding-window layers. Here every layer keeps whole rows in one buffer,
and whoever runs a forward says before it which of them it writes (TreeCache.write).
Recurrent layers keep a state instead, into which the path is folded (recurrent/states.py).

Axes: N new rows, the nodes of a tree; K keys, which are rows of the cache; A accepted path; M of
several texts (evaluation/batches.py).
"""

import weakref
from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer

from eagle_fsd.recurrent.kinds import HYBRID, NOTHING, RECURRENT
from eagle_fsd.recurrent.states import RecurrentLayer, TreeForward


class PreallocatedLayer(CacheLayerMixin):
    """Keys and values of a layer, [texts, kv_heads, capacity, head_dim]."""

    is_sliding = False  # whole rows are kept for sliding-window layers too

    def __init__(self, cache: "TreeCache", index: int):
        super().__init__()
        # No cycle: a cache must go when its owner lets it go. No proxy: torch.compile misses what
        # is set through one.
        self._cache = weakref.ref(cache)
        self._index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = self._cache().buffers(self._index, key_states, value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the forward's rows; returns all rows that it reads, these included."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache = self._cache()
        row_N = cache.row_N.to(self.keys.device)
        if cache.forward_texts:
            both = (self.keys, key_states), (self.values, value_states)
            return tuple(self._update_texts(row_N, *each) for each in both)
        self.keys.index_copy_(2, row_N, key_states)
        self.values.index_copy_(2, row_N, value_states)
        return self.keys.narrow(2, 0, cache.end), self.values.narrow(2, 0, cache.end)

    def _update_texts(
        self, row_MN: torch.Tensor, held: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """The same over some of the texts, which need not write the same rows."""
        cache = self._cache()
        texts, text_M1 = cache.forward_texts, cache.text_M1.to(held.device)
        held.transpose(1, 2)[text_M1, row_MN] = states.transpose(1, 2)
        rows = held.narrow(2, 0, cache.end)
        if texts == list(range(texts[0], texts[-1] + 1)):
            return rows[texts[0] : texts[-1] + 1]
        return rows.index_select(0, text_M1[:, 0])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache().length + query_length, 0

    def get_seq_length(self) -> int | torch.Tensor:
        """Rows before the new ones. Llama 4 adds 0, 1, 2, .. to what it is given here to place the
        new ones, so with `positions` it is what makes these sums the true positions."""
        cache = self._cache()
        if cache.positions is None:
            return cache.length
        return cache.positions - torch.arange(len(cache.positions), device=cache.positions.device)

    def get_max_length(self) -> int:
        return self._cache().capacity


class HybridLayer(RecurrentLayer, PreallocatedLayer):
    """Of a model layer with both attention and a recurrence."""

    def __init__(self, cache: "TreeCache", index: int):
        PreallocatedLayer.__init__(self, cache, index)
        RecurrentLayer.__init__(self, cache)
        # which RecurrentLayer's own class would take for that of its states
        self.is_initialized = False

    def lazy_initialization(self, *rows: torch.Tensor, **states) -> None:
        if rows:
            PreallocatedLayer.lazy_initialization(self, *rows)
        else:
            RecurrentLayer.lazy_initialization(self, **states)


class TreeCache(Cache):
    """One layer of the cache per model layer: a PreallocatedLayer, or what its type needs.

    Between rounds all rows are committed, and committed row r holds position r of the text. Node i
    of a tree is written to row committed + i and stands at position committed + its depth. A path
    has a node of each depth, so that its rows, put right behind the committed ones, stand where
    they should again; and each of them was computed from those before it alone.

    Example: 5 committed rows and a tree of 4 nodes give length 9; `keep_path([0, 2])` leaves rows
    0-4, node 0's row at 5 and node 2's row at 6, and length 7, all of them committed.

    Args:
        capacity: rows of each layer with attention.
        types: of the model's layers, as in transformers' configs; empty: all have attention.
        pooled: one buffer for all layers; False where they lie on several devices.
        texts: sequences that it has room for; 0: as many as its first forward has.

    Attributes:
        length: valid rows; whoever runs a forward sets it, Target or a drafter.
        committed: rows of the prompt and of the answer without its last token, which is the root of
            the next tree and has not been run.
        row_N, end: of the forward that runs, see `write`.
        positions: None, or int64 [N], the positions of a forward's new rows, for a model that asks
            the cache where they stand (Target.run).
        tree: None, or the tree that the forward runs over recurrent layers.
        forward_texts, text_M1: numbers of the texts that the forward is over, ascending; empty: of
            all.
    """

    def __init__(
        self,
        num_layers: int,
        capacity: int,
        *,
        types: Sequence[str] = (),
        pooled: bool = True,
        texts: int = 0,
    ):
        layers: list[CacheLayerMixin] = []
        self._with_rows = 0  # layers
        for kind in types or ["full_attention"] * num_layers:
            if kind in NOTHING:
                layer = DummyLayer()
            elif kind in RECURRENT:
                layer = RecurrentLayer(self)
            else:
                made = HybridLayer if kind in HYBRID else PreallocatedLayer
                layer = made(self, self._with_rows)
                self._with_rows += 1
            layers.append(layer)
        super().__init__(layers=layers)
        self.capacity, self.texts = capacity, texts
        self.length = self.committed = 0
        self.write(torch.empty(0, dtype=torch.int64), 0)
        self._pooled = pooled
        # keys and values in turn, [layers, texts, kv_heads, capacity, head_dim]
        self._pools: list[torch.Tensor] = []

    def next_rows(self, count: int, device: torch.device) -> torch.Tensor:
        """The rows right behind the valid ones, int64 [count]."""
        assert self.length + count <= self.capacity, (self.length, count, self.capacity)
        return torch.arange(self.length, self.length + count, device=device)

    def write(
        self,
        row_N: torch.Tensor,
        end: int,
        *,
        positions: torch.Tensor | None = None,
        tree: TreeForward | None = None,
        texts: Sequence[int] = (),
    ) -> None:
        """Before a forward: which rows it writes, int64 [N], of some `texts` [M, N], and that it
        reads the first `end`, valid or not, of which a mask hides those that are not. For the
        others see the class."""
        self.row_N, self.end = row_N, end
        self.positions, self.tree, self.forward_texts = positions, tree, texts
        if texts:
            of_each = zip(row_N[:, :1], texts, strict=True)
            self.text_M1 = torch.stack([torch.full_like(row_1, text) for row_1, text in of_each])

    def buffers(
        self, index: int, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values: its part of the pool of all layers, or buffers of its own."""
        shapes = [
            torch.Size((self.texts or B, heads, self.capacity, size))
            for B, heads, _, size in (key_states.shape, value_states.shape)
        ]
        if self._pooled and [pool.shape[1:] for pool in self._pools[:2]] == shapes:
            keys, values = self._pools[:2]
            return keys[index], values[index]
        layers = self._with_rows if self._pooled and not self._pools else 1
        # zeros: where rows are read that nobody has written (models/generate.py), a mask hides
        # numbers, but no NaN
        keys, values = (key_states.new_zeros(layers, *shape) for shape in shapes)
        self._pools += [keys, values]
        place = index if layers > 1 else 0
        return keys[place], values[place]

    @torch.inference_mode()
    def keep_path(self, node_A: torch.Tensor) -> None:
        """Commit the rows of a path's nodes, right behind the committed ones, and forget the tree's
        others; states become those behind the path's last node."""
        for layer in self.layers:
            if isinstance(layer, RecurrentLayer):
                layer.keep_path(node_A)
        kept = node_A.shape[0]
        if kept > 1:  # the root's row is where it should be
            row_A = node_A + self.committed
            for pool in self._pools:
                # index_select copies first, so source and destination rows may overlap
                kept_rows = pool.index_select(3, row_A.to(pool.device))
                pool.narrow(3, self.committed, kept).copy_(kept_rows)
        self.length = self.committed = self.committed + kept


class TextRows(TreeCache):
    """One text's rows of a cache of several, as a cache of its own."""

    def __init__(self, shared: TreeCache, text: int):
        super().__init__(len(shared.layers), shared.capacity)
        self.shared, self.text = shared, text

    def buffers(self, index, key_states, value_states):
        layer, own = self.shared.layers[index], slice(self.text, self.text + 1)
        if not layer.is_initialized:
            layer.lazy_initialization(key_states, value_states)
        self._pools = [pool[:, own] for pool in self.shared._pools]
        return layer.keys[own], layer.values[own]

"""A key/value cache of many sequences that end in the same column, whose rows come and go.

Rows are padded on the left. Between two changes of the rows every step writes in place; a change
copies the cache once, so it should be made for several rows together.

Axes: R rows, H key/value heads, C columns, D head dimension.
"""

import torch

from eagle_fsd.decoding.cache import PreallocatedLayer, TreeCache

ROOM = 64  # columns to spare after a change


class RowCache(TreeCache):
    """A TreeCache of several sequences; its rows of one sequence are this one's columns."""

    @property
    def columns(self) -> int:
        """Columns in use, padding included."""
        return self.length

    @property
    def full(self) -> bool:
        """Whether the next step has no column left."""
        return self.length == self.capacity


def join(parts: list[tuple[RowCache, torch.Tensor]], columns: int) -> RowCache:
    """The chosen rows of several caches, one below the other, in a new cache.

    Args:
        parts: caches with the rows to keep, int64 [R].
        columns: length of the longest kept row; what lies further left is padding and cut off.

    Example: rows `ab` and `cde` of a cache, and `f` of another, with 3 columns: `.ab`, `cde`, `..f`
    """
    num_layers = len(parts[0][0].layers)
    joined = RowCache(num_layers, columns + ROOM, pooled=parts[0][0].pooled)
    total = sum(len(row_R) for _, row_R in parts)
    for number, layer in enumerate(joined.layers):
        layer.lazy_initialization(*_like(parts[0][0].layers[number], total))
        layer.length = columns
        # padding is masked, but masked NaN would still spread
        layer.keys[:, :, :columns].zero_()
        layer.values[:, :, :columns].zero_()
        first = 0
        for cache, row_R in parts:
            source = cache.layers[number]
            width = min(source.length, columns)
            where = slice(first, first + len(row_R)), slice(None), slice(columns - width, columns)
            row_R = row_R.to(source.keys.device)
            end = slice(source.length - width, source.length)
            layer.keys[where] = source.keys[:, :, end].index_select(0, row_R)
            layer.values[where] = source.values[:, :, end].index_select(0, row_R)
            first += len(row_R)
    return joined


def _like(layer: PreallocatedLayer, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand-ins with the wanted rows and the layer's heads and widths, for allocation."""
    return (
        layer.keys[:1].expand(rows, -1, -1, -1),
        layer.values[:1].expand(rows, -1, -1, -1),
    )

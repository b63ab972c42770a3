"""The cache: rows kept, rows dropped, one buffer.

Axes of a key tensor: batch, heads, rows, channels (1, 3, rows, 5 here).
"""

import pytest
import torch

from eagle_fsd.decoding.cache import TreeCache

LAYERS = 2


def rows(first: int, count: int, *, layer: int = 0) -> torch.Tensor:
    """Keys whose row r holds the number first + r (+ 100 a layer) everywhere."""
    row_R = torch.arange(first, first + count, dtype=torch.float32) + 100 * layer
    return row_R[None, None, :, None].expand(1, 3, count, 5).clone()


def append(cache: TreeCache, first: int, count: int) -> None:
    for index, layer in enumerate(cache.layers):
        keys = rows(first, count, layer=index)
        layer.update(keys, -keys[..., :2])  # values with a width of their own


def stored(cache: TreeCache, *, layer: int = 0) -> list[int]:
    """The numbers in the valid rows of a layer, keys and values checked to agree."""
    one = cache.layers[layer]
    keys, values = one.keys[:, :, : one.length], one.values[:, :, : one.length]
    assert (keys == keys[:, :1, :, :1]).all() and torch.equal(values, -keys[..., :2])
    return [int(row) - 100 * layer for row in keys[0, 0, :, 0]]


@pytest.mark.parametrize("path", [[0], [0, 2], [0, 1, 2, 3], [0, 1, 3, 4], [0, 2, 3, 6], [0, 6]])
def test_keep_path_moves_accepted_rows_behind_the_prefix(path):
    """3 committed rows and a tree of 7. Rows are moved as if copied first, where source and
    destination overlap too; the next row goes right behind them."""
    cache = TreeCache(LAYERS, capacity=13)
    append(cache, 0, 3)
    append(cache, 3, 7)
    assert cache.length == 10
    cache.keep_path(3, torch.tensor(path))
    assert cache.length == 3 + len(path)
    append(cache, 40, 1)
    for layer in range(LAYERS):
        assert stored(cache, layer=layer) == [0, 1, 2, *(3 + node for node in path), 40]


def test_update_returns_all_valid_rows_and_only_those():
    """Never the unwritten rest of the buffer; a lower length forgets the end."""
    cache = TreeCache(LAYERS, capacity=9)
    append(cache, 0, 4)
    keys, values = cache.update(rows(4, 2), -rows(4, 2)[..., :2], 0)
    assert keys[0, 0, :, 0].tolist() == values.neg()[0, 0, :, 0].tolist() == list(range(6))
    assert cache.get_seq_length() == 6
    assert cache.get_mask_sizes(2, 0) == (8, 0)
    cache.length = 2
    append(cache, 20, 1)
    assert stored(cache) == stored(cache, layer=1) == [0, 1, 20]
    with pytest.raises(AssertionError, match="cache of 9 rows"):
        cache.length = 10
    with pytest.raises(RuntimeError, match="exceeds dimension"):  # a full cache does not grow
        append(cache, 20, 8)

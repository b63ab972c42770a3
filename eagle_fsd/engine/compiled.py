"""The packed engine whose steps go through torch.compile.

What lies between two products of a step is hundreds of small operators and the Python that calls
them; a compiler makes a few loops of them, in a minute a step the first time and in seconds from
its cache on disk. Two steps are compiled, Target.verify over the nodes of a tree and
GrowingDrafter.step over a level, for any number of nodes. Measured in results/speed_compiled.
"""

import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable

import torch
from tqdm import tqdm

from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.engine.packed import Packed
from eagle_fsd.engine.products import Linear

CACHE_ROWS = 1024  # caches are as long as a multiple of these: compiled code knows their strides

# A compiler follows operators on tensors and no packed weights, so it is given products by number.
# They live as long as the layers that call them. torch.library.custom_op would wrap each of the 120
# calls of a step in Python, for 20 microseconds.
_products: weakref.WeakValueDictionary[int, Linear] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_library = torch.library.Library("eagle_fsd", "DEF")
_library.define("product(Tensor x_ND, int number, int rows) -> Tensor")
_library.impl("product", lambda x_ND, number, rows: _products[number](x_ND), "CPU")
_library.impl("product", lambda x_ND, number, rows: x_ND.new_empty(*x_ND.shape[:-1], rows), "Meta")


_compiling = threading.Lock()


class _Numbered:
    def __init__(self, product: Linear, rows: int):
        self._product, self._number, self._rows = product, next(_numbers), rows
        _products[self._number] = product

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        return torch.ops.eagle_fsd.product.default(x_ND, self._number, self._rows)


class CompiledStep:
    """A step that is compiled when it is first called: once for single positions and once for
    several, since a compiler takes a size of 1 for a constant."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]]):
        self._function = function
        self._compiled: dict[Hashable, Callable] = {}

    def __call__(self, cache: TreeCache, *tensors: torch.Tensor | None) -> tuple:
        # all that is fixed in the code: the cache's strides, what is not given, sizes of 1
        fixed = [None if t is None else tuple(size == 1 for size in t.shape) for t in tensors]
        key = cache.capacity, *fixed
        if key not in self._compiled:
            with _compiling:  # of two answers' threads one compiles
                if key not in self._compiled:
                    return self._compile(key, cache, *tensors)
        return self._compiled[key](cache, *tensors)

    def _compile(self, key: Hashable, cache: TreeCache, *tensors: torch.Tensor | None) -> tuple:
        """The first call of its kind, which is kept."""
        tqdm.write("compiling, a minute at most; the result is kept on disk", file=sys.stderr)
        for tensor in tensors:
            if tensor is not None:
                # positions and cache rows; of hidden states the positions alone
                axes = (0,) if tensor.is_floating_point() else range(tensor.ndim)
                for axis in axes:
                    if tensor.shape[axis] > 1:
                        torch._dynamo.mark_dynamic(tensor, axis)
        # The key says all that is fixed, so nothing is asked again at every call (at 30 layers,
        # for 2 ms), and no code is shared between keys.
        settings = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}
        settings["options"] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        try:
            step = torch.compile(self._function, **settings)
            result = step(cache, *tensors)
        # Nothing has run yet: there is no compiler, it fails, or its results cannot be kept.
        except (torch._dynamo.exc.TorchDynamoException, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"cannot compile, running as engine 'packed': {reason}", stacklevel=2)
            step = self._function
            result = step(cache, *tensors)
        self._compiled[key] = step
        return result


class Compiled(Packed):
    """On a CPU: as Packed, with compiled steps where there is a C++ compiler.

    Not on CUDA: its graphs (mode="reduce-overhead") are recorded for fixed sizes, and keys and
    masks of a round are longer than those of the round before.
    """

    name = "compiled"
    compiles = True

    def linear(self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None) -> Linear:
        return _Numbered(super().linear(weight_RD, bias_R), weight_RD.shape[0])

    def rows(self, capacity: int) -> int:
        return -(-capacity // CACHE_ROWS) * CACHE_ROWS

    def wrap(self, function: Callable[..., tuple[torch.Tensor, ...]]) -> CompiledStep:
        return CompiledStep(function)

"""The packed engine whose functions of fixed shapes (graphs.py) go through torch.compile.

What lies between two products of a step is hundreds of small operators and the Python that calls
them; a compiler makes a few loops of them, in a minute a function the first time and in seconds
from its cache on disk. The cache holds code and no weights. Measured in
results/speed_compiled.
"""

import itertools
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Hashable

import torch
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.engine.graphs import Output, RecordedSequence
from eagle_fsd.engine.packed import Linear, Packed

# Functions that a sequence compiles; later ones run as they are. Drafts that are looked up come in
# trees of more widths.
MOST = 6

# A compiler follows operators on tensors and no packed weights, so it is given products by number.
# They live as long as the layers that call them.
_products: weakref.WeakValueDictionary[int, Linear] = weakref.WeakValueDictionary()
_numbers = itertools.count()


@torch.library.custom_op("eagle_fsd::product", mutates_args=())
def _product(x_ND: torch.Tensor, number: int, rows: int) -> torch.Tensor:
    return _products[number](x_ND)


@_product.register_fake
def _(x_ND: torch.Tensor, number: int, rows: int) -> torch.Tensor:
    return x_ND.new_empty(*x_ND.shape[:-1], rows)


class _Numbered:
    """A product that compiled code can call."""

    def __init__(self, product: Linear, rows: int):
        self._product, self._number, self._rows = product, next(_numbers), rows
        _products[self._number] = product

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        return torch.ops.eagle_fsd.product.default(x_ND, self._number, self._rows)


class Compiler:
    """Compiles each function once by key, the first MOST, for any number of cache rows; see
    graphs.Recorder."""

    def __init__(self):
        self._compiled: dict[Hashable, Callable] = {}

    def forget(self) -> None:
        """Nothing: compiled code is given addresses at every call."""

    def run(
        self,
        key: Hashable,
        function: Callable[..., Output],
        row_K: torch.Tensor,
        *others: torch.Tensor,
    ) -> Output:
        if key in self._compiled:
            return self._compiled[key](row_K, *others)
        if len(self._compiled) == MOST:
            return function(row_K, *others)
        compiled = self._prepare(function, row_K)
        try:
            # once only: a single token changes the states of recurrent layers
            output = compiled(row_K, *others)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"cannot compile, running as engine 'packed': {reason}", stacklevel=2)
            compiled, output = function, function(row_K, *others)
        self._compiled[key] = compiled
        return output

    def _prepare(self, function: Callable, row_K: torch.Tensor) -> Callable:
        tqdm.write(f"compiling, a minute at most; kept in {cache_folder()}", file=sys.stderr)
        # The key says all that is fixed, so nothing is asked again at every call (at 30 layers,
        # for 2 ms), and no code is shared between keys.
        compiled = torch.compile(
            function,
            fullgraph=True,
            dynamic=False,
            isolate_recompiles=True,
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        torch._dynamo.mark_dynamic(row_K, 0)
        return compiled


class CompiledSequence(RecordedSequence):
    """Reads no row too many: K is the one size that compiled code leaves open."""

    read_rows, held_rows = 1, 1024

    def new_recorder(self, device: torch.device) -> Compiler:
        return Compiler()


class Compiled(Packed):
    """On a CPU: as Packed, verification and drafting compiled; needs a C++ compiler."""

    name = "compiled"
    sequence = CompiledSequence

    def linear(self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None) -> Linear:
        return _Numbered(super().linear(weight_RD, bias_R), weight_RD.shape[0])


def cache_folder() -> str:
    """Where torch keeps what it has compiled."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # a second to import

    return os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()


def check_compiler() -> None:
    """
    Raises:
        BadInput: there is no C++ compiler, or its results cannot be kept.
    """
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise BadInput(
            f"engine 'compiled' needs a C++ compiler, and {compiler!r} is not here: install it, "
            "name another in CXX, or use auto"
        )
    folder = cache_folder()
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadInput(
            f"engine 'compiled' cannot write to its cache {folder}: {error.strerror}; name "
            "another folder in TORCHINDUCTOR_CACHE_DIR, or use auto"
        ) from error

"""A forward of a stock model whose recurrent layers take the new tokens for the nodes of a tree.

The layers of a modeling file call two functions of that file, for their convolution and their scan.
While a tree is verified, functions of ours stand in their place. These ask a context variable,
which belongs to one thread, whether a tree is being verified there, and call the stock function if
not: another thread's model does not see them. No layer is touched.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.recurrent.convolution import node_windows, tree_convolution
from eagle_fsd.recurrent.kinds import CONVOLUTION, CONVOLUTION_ALONE, FAMILIES, SCANS

if TYPE_CHECKING:
    from transformers.cache_utils import CacheLayerMixin

    from eagle_fsd.recurrent.states import RecurrentLayer


class TreeForward:
    """The tree that a forward runs.

    Attributes:
        layer: of the cache, the one whose mixer runs now; a mixer gives its inputs to the cache
            before it calls its functions.
    """

    def __init__(self, parent_N: torch.Tensor, ancestor_NN: torch.Tensor):
        self.parent_N, self.ancestor_NN = parent_N, ancestor_NN
        self.layer: RecurrentLayer | None = None
        self._convolved: set[RecurrentLayer] = set()
        self._windows: dict[int, torch.Tensor] = {}

    def convolution(self, hidden_states, weight, bias=None, activation=None, **_) -> torch.Tensor:
        taps = weight.shape[-1]
        if taps not in self._windows:
            self._windows[taps] = node_windows(self.parent_N, taps)
        window_NK = self._windows[taps].to(hidden_states.device)
        self._convolved.add(self.layer)
        return tree_convolution(hidden_states, weight, bias, activation, window_NK=window_NK)

    def check(self, layers: "Sequence[CacheLayerMixin | RecurrentLayer]", kind: str) -> None:
        """Refuse, by a BadInput, a model whose mixers did not call the functions: their outputs are
        a chain's and not a tree's."""
        for index, layer in enumerate(layers):
            if not hasattr(layer, "stash"):
                continue
            scanned = layer.stash is not None or FAMILIES.get(kind) == CONVOLUTION_ALONE
            if layer not in self._convolved or not scanned:
                raise BadInput(
                    f"layer {index} of a target of type {kind!r} did not call transformers' own "
                    "functions for its recurrence, so that no draft tree can be verified: load it "
                    "without use_kernels, and without changes to its layers"
                )


running: ContextVar[TreeForward | None] = ContextVar("running", default=None)
_lock = threading.Lock()
_users: Counter[ModuleType] = Counter()
_stock: dict[ModuleType, dict[str, Callable]] = {}


@contextmanager
def tree_forward(
    module: ModuleType, parent_N: torch.Tensor, ancestor_NN: torch.Tensor
) -> Iterator[TreeForward]:
    """Around a forward of one model of this modeling file, in this thread."""
    with _lock:
        if not _users[module]:
            _stock[module] = _exchanged(module)
        _users[module] += 1
    forward = TreeForward(parent_N, ancestor_NN)
    token = running.set(forward)
    try:
        yield forward
    finally:
        running.reset(token)
        with _lock:
            _users[module] -= 1
            if not _users[module]:
                vars(module).update(_stock.pop(module))
                del _users[module]


def _exchanged(module: ModuleType) -> dict[str, Callable]:
    """Put ours in the place of a modeling file's functions, and give those back."""
    stock = {name: getattr(module, name) for name in (CONVOLUTION, *SCANS) if hasattr(module, name)}
    for name, function in stock.items():
        exchange = _convolution if name == CONVOLUTION else _scan
        setattr(module, name, exchange(name, function))
    return stock


def _convolution(name: str, stock: Callable) -> Callable:
    @wraps(stock)
    def convolution(*args, **kwargs):
        forward = running.get()
        if forward is None or forward.layer is None:
            return stock(*args, **kwargs)
        return forward.convolution(*args, **kwargs)

    return convolution


def _scan(name: str, stock: Callable) -> Callable:
    ours, initial = SCANS[name]
    taken = inspect.signature(ours).parameters

    @wraps(stock)
    def scan(*args, **kwargs):
        forward = running.get()
        if forward is None or forward.layer is None:
            return stock(*args, **kwargs)
        state = kwargs[initial]
        given = {key: value for key, value in kwargs.items() if key in taken}
        ancestor_NN = forward.ancestor_NN.to(state.device)
        output, forward.layer.stash = ours(*args, **given, ancestor_NN=ancestor_NN)
        return output, state  # which stays as it is until a path is kept

    return scan

"""A forward of a stock model whose recurrent layers take the new tokens for the nodes of a tree.

The layers of a modeling file call two functions of that file, for their convolution and their scan,
and hand them every argument of the model's forward that they do not know. While a tree is verified,
functions of ours stand in their place. These look for the tree among their arguments, and call the
stock function where there is none: the forwards of other models, in other threads, do not see them.
No layer is touched.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Protocol

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.recurrent.convolution import node_windows, tree_convolution
from eagle_fsd.recurrent.kinds import CONVOLUTION, CONVOLUTION_ALONE, FAMILIES, SCANS
from eagle_fsd.recurrent.scans import Stash

# The argument of a model's forward by which its layers' functions are given the tree.
ARGUMENT = "draft_tree"


class RunningLayer(Protocol):
    """What a forward over a tree leaves in a layer of the cache (states.RecurrentLayer)."""

    inputs: torch.Tensor | None
    convolved: bool
    stash: Stash | None


class TreeForward:
    """The tree that a forward runs.

    Attributes:
        parent_N: int64 [N], the root's own is 0.
        ancestor_NN: bool [N, N]; row i marks node i and its ancestors.
        layer: of the cache, the one whose mixer runs now; a mixer gives its inputs to the cache
            before it calls its functions.
    """

    def __init__(self, parent_N: torch.Tensor, ancestor_NN: torch.Tensor):
        self.parent_N, self.ancestor_NN = parent_N, ancestor_NN
        self.layer: RunningLayer | None = None
        self._windows: dict[int, torch.Tensor] = {}

    def convolution(self, hidden_states, weight, bias=None, activation=None, **_) -> torch.Tensor:
        taps = weight.shape[-1]
        if taps not in self._windows:
            self._windows[taps] = node_windows(self.parent_N, taps)
        window_NK = self._windows[taps].to(hidden_states.device)
        self.layer.convolved = True
        return tree_convolution(hidden_states, weight, bias, activation, window_NK=window_NK)


def check_called(layers: Sequence[object], kind: str) -> None:
    """Refuse, by a BadInput, a model whose mixers did not call the functions in the forward over a
    tree that has just been run: their outputs are a chain's and not a tree's."""
    for index, layer in enumerate(layers):
        if not hasattr(layer, "stash"):
            continue
        scanned = layer.stash is not None or FAMILIES.get(kind) == CONVOLUTION_ALONE
        if layer.inputs is None or not layer.convolved or not scanned:
            raise BadInput(
                f"layer {index} of a target of type {kind!r} did not call transformers' own "
                "functions for its recurrence, so that no draft tree can be verified: load it "
                "without use_kernels, and without changes to its layers"
            )


_lock = threading.Lock()
_users: Counter[ModuleType] = Counter()
_stock: dict[ModuleType, dict[str, Callable]] = {}


@contextmanager
def exchanged_functions(module: ModuleType) -> Iterator[None]:
    """Around a forward over a tree of one model of this modeling file."""
    with _lock:
        if not _users[module]:
            _stock[module] = _exchange(module)
        _users[module] += 1
    try:
        yield
    finally:
        with _lock:
            _users[module] -= 1
            if not _users[module]:
                vars(module).update(_stock.pop(module))
                del _users[module]


def _exchange(module: ModuleType) -> dict[str, Callable]:
    """Put ours in the place of a modeling file's functions, and give those back."""
    stock = {name: getattr(module, name) for name in (CONVOLUTION, *SCANS) if hasattr(module, name)}
    for name, function in stock.items():
        ours = _convolution if name == CONVOLUTION else _scan
        setattr(module, name, ours(name, function))
    return stock


def _convolution(name: str, stock: Callable) -> Callable:
    @wraps(stock)
    def convolution(*args, **kwargs):
        forward = kwargs.pop(ARGUMENT, None)
        if forward is None:
            return stock(*args, **kwargs)
        return forward.convolution(*args, **kwargs)

    return convolution


def _scan(name: str, stock: Callable) -> Callable:
    ours, initial = SCANS[name]
    taken = frozenset(inspect.signature(ours).parameters)

    @wraps(stock)
    def scan(*args, **kwargs):
        forward = kwargs.pop(ARGUMENT, None)
        if forward is None:
            return stock(*args, **kwargs)
        state = kwargs[initial]
        given = {key: value for key, value in kwargs.items() if key in taken}
        ancestor_NN = forward.ancestor_NN.to(state.device)
        output, forward.layer.stash = ours(*args, **given, ancestor_NN=ancestor_NN)
        return output, state  # which stays as it is until a path is kept

    return scan

"""A forward of a stock model whose recurrent layers take the new tokens for the nodes of a tree,
and what the cache keeps of such a layer: its states, and a tree's stash until a path is kept.

The layers of a modeling file call two functions of that file, for their convolution and their scan,
and hand them every argument of the model's forward that they do not know. While a tree is verified,
functions of ours stand in their place. These look for the tree among their arguments, and call the
stock function where there is none: the forwards of other models, in other threads, do not see them.
No layer is touched.

Axes: C channels of the convolution, T taps of its kernel, N tree nodes, A nodes of the kept path.
"""

import functools
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import ModuleType

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, LinearAttentionLayer

from eagle_fsd.config import BadInput
from eagle_fsd.recurrent.kinds import CONVOLUTION, CONVOLUTION_ALONE, FAMILIES, SCANS
from eagle_fsd.recurrent.scans import Stash
from eagle_fsd.versions import told_versions

# The argument of a model's forward by which its layers' functions are given the tree.
ARGUMENT = "draft_tree"


class RecurrentLayer(LinearAttentionLayer):
    """The last inputs of the convolution, in the model's dtype, and the state of the recurrence, in
    float32, behind the last committed token. A tree leaves them alone until `keep_path`.

    Attributes:
        inputs: of the nodes' convolutions, [1, C, N]; None when no tree waits for its path.
        convolved: the layer's convolution was run over these nodes, by our function for trees.
        stash: of the nodes' recurrences; None for a layer without one.
    """

    def __init__(self, cache: Cache):
        super().__init__()
        self._cache = weakref.ref(cache)  # whose `tree` is the TreeForward that runs, or None
        self._forget_tree()

    def _forget_tree(self) -> None:
        self.inputs: torch.Tensor | None = None
        self.convolved = False
        self.stash: Stash | None = None

    def update_conv_state(self, conv_states, state_idx=0, **kwargs) -> torch.Tensor:
        forward = self._cache().tree
        self._forget_tree()
        if forward is None:
            return super().update_conv_state(conv_states, state_idx, **kwargs)
        forward.layer, self.inputs = self, conv_states  # the convolution is run over kept and new
        return torch.cat([self.conv_states[0], conv_states], dim=-1)

    def update_recurrent_state(self, recurrent_states, state_idx=0, **kwargs) -> torch.Tensor:
        if self._cache().tree is not None:
            return recurrent_states
        return super().update_recurrent_state(recurrent_states.float(), state_idx, **kwargs)

    def keep_path(self, node_A: torch.Tensor) -> None:
        """Fold a path of the last tree, root first; after a single token there is none."""
        if self.inputs is not None:
            node_A, window = node_A.to(self.inputs.device), self.conv_states[0]
            kept = torch.cat([window, self.inputs[:, :, node_A]], dim=-1)
            window.copy_(kept[:, :, -window.shape[-1] :])
        if self.stash is not None:
            state = self.recurrent_states[0]
            state.copy_(self.stash.folded(state, node_A))
        self._forget_tree()

    def take(self, parts: "Sequence[tuple[RecurrentLayer, Sequence[int]]]") -> None:
        """Become the states of several batches' chosen rows, one below the other."""
        for name, initialized in (
            ("conv_states", self.is_conv_states_initialized),
            ("recurrent_states", self.is_recurrent_states_initialized),
        ):
            states = [(getattr(layer, name)[0], rows) for layer, rows in parts]
            initialized[0] = states[0][0] is not None
            if initialized[0]:
                chosen = [state[torch.tensor(rows, device=state.device)] for state, rows in states]
                getattr(self, name)[0] = torch.cat(chosen)
        first, _ = parts[0]
        self.device, self.dtype = first.device, first.dtype
        self.conv_kernel_size = dict(first.conv_kernel_size)
        self.has_previous_state[0] = True


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
        self.layer: RecurrentLayer | None = None
        self._windows: dict[int, torch.Tensor] = {}

    def convolution(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **_: object,  # see exchanged_functions
    ) -> torch.Tensor:
        """In the calling convention of transformers' `causal_conv1d_fn`, depthwise: from [1, C, T +
        N], which begins with the text's last T columns, to the nodes' [1, C, N]."""
        self.layer.convolved = True
        T, parent_N = weight.shape[-1], self.parent_N
        if T not in self._windows:
            # For every node the columns that its output reads, oldest first, int64 [N, T]: its own,
            # its parent's and so on up to the root, and then the text's before the root.
            before = torch.arange(-1, T - 1, device=parent_N.device)  # of the text's columns
            before_C = torch.cat([before, parent_N + T]).clamp_min(0)
            before_C[T] = T - 1  # what stands before the root is the text's last
            columns = [torch.arange(T, T + len(parent_N), device=parent_N.device)]
            for _ in range(T - 1):
                columns.append(before_C[columns[-1]])
            self._windows[T] = torch.stack(columns[::-1], dim=1)
        window_NT = self._windows[T].to(hidden_states.device)
        seen_CNT = hidden_states[0].to(weight.dtype)[:, window_NT]
        # in float32, as the kernels of half-precision numbers add up
        output_CN = (seen_CNT.float() * weight.float()[:, None]).sum(-1)
        if bias is not None:
            output_CN = output_CN + bias.float()[:, None]
        output_CN = output_CN.to(weight.dtype)
        if activation is not None:
            output_CN = ACT2FN[activation](output_CN)
        return output_CN[None].to(hidden_states.dtype)

    def scan(self, name: str, *args, **kwargs) -> tuple[torch.Tensor, torch.Tensor]:
        ours, initial = SCANS[name]
        state = kwargs[initial]
        ancestor_NN = self.ancestor_NN.to(state.device)
        output, self.layer.stash = ours(*args, **kwargs, ancestor_NN=ancestor_NN)
        return output, state  # which stays as it is until a path is kept


def check_called(layers: Sequence[object], kind: str) -> None:
    """Refuse, by a BadInput, a model whose mixers did not call the functions in the forward that
    has just been run: their outputs are a chain's and not a tree's."""
    for index, layer in enumerate(layers):
        if not isinstance(layer, RecurrentLayer):
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
def exchanged_functions(body: PreTrainedModel) -> Iterator[None]:
    """Around a forward of this model over a tree.

    Ours take by name what the stock functions do. Both are also given every argument of the model's
    forward that its layers do not know, and leave it alone. BadInput: a stock function takes more.
    """
    module = sys.modules[type(body).__module__]
    with _lock:
        if not _users[module]:
            names = [name for name in (CONVOLUTION, *SCANS) if hasattr(module, name)]
            stock = {name: getattr(module, name) for name in names}
            vars(module).update({name: _ours(name, function) for name, function in stock.items()})
            _stock[module] = stock
        _users[module] += 1
    try:
        yield
    finally:
        with _lock:
            _users[module] -= 1
            if not _users[module]:
                vars(module).update(_stock.pop(module))
                del _users[module]


@functools.cache
def _ours(name: str, stock: Callable) -> Callable:
    ours = TreeForward.convolution if name == CONVOLUTION else SCANS[name][0]
    taken, known = (inspect.signature(function).parameters for function in (stock, ours))
    if new := {arg for arg in taken if taken[arg].kind != inspect.Parameter.VAR_KEYWORD} - {*known}:
        raise BadInput(
            f"transformers' {name} of this family takes {', '.join(sorted(new))}, which its form "
            f"for draft trees does not know: {told_versions()}"
        )

    @wraps(stock)
    def function(*args, **kwargs):
        forward: TreeForward | None = kwargs.pop(ARGUMENT, None)
        if forward is None:
            return stock(*args, **kwargs)
        if name == CONVOLUTION:
            return forward.convolution(*args, **kwargs)
        return forward.scan(name, *args, **kwargs)

    return function

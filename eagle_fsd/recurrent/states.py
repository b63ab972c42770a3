"""What the cache keeps of a recurrent layer: its states, and a tree's stash until a path is kept.

Axes: C channels of the convolution, K its taps, N tree nodes, A nodes of the kept path.
"""

import weakref
from collections.abc import Sequence
from typing import Protocol

import psutil
import torch
from transformers.cache_utils import LinearAttentionLayer

from eagle_fsd.config import BadInput
from eagle_fsd.recurrent.hooks import TreeForward
from eagle_fsd.recurrent.kinds import per_channel
from eagle_fsd.recurrent.scans import Stash


class RunsTrees(Protocol):
    """The cache that a layer belongs to.

    Attributes:
        forward: the tree that runs; None while a prompt or a single token does.
    """

    forward: TreeForward | None


class RecurrentLayer(LinearAttentionLayer):
    """The last K inputs of the convolution, in the model's dtype, and the state of the recurrence,
    in float32, behind the last committed token.

    Prompts and single tokens change them as transformers does. A tree leaves them alone until
    `keep_path`.

    Attributes:
        inputs: of the nodes' convolutions, [1, C, N]; None when no tree waits for its path.
        convolved: the layer's convolution was run over these nodes, by our function for trees.
        stash: of the nodes' recurrences; None for a layer without one.
    """

    def __init__(self, cache: RunsTrees):
        super().__init__()
        self._cache = weakref.ref(cache)
        self.inputs: torch.Tensor | None = None
        self.convolved = False
        self.stash: Stash | None = None

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs
    ) -> torch.Tensor:
        """The inputs behind those that are kept; of a tree the convolution is run over both."""
        forward = self._cache().forward
        self.inputs, self.convolved, self.stash = None, False, None
        if forward is None:
            return super().update_conv_state(conv_states, state_idx, **kwargs)
        forward.layer, self.inputs = self, conv_states
        return torch.cat([self.conv_states[0], conv_states], dim=-1)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs
    ) -> torch.Tensor:
        if self._cache().forward is not None:
            return recurrent_states
        return super().update_recurrent_state(recurrent_states.float(), state_idx, **kwargs)

    def keep_path(self, node_A: torch.Tensor) -> None:
        """Fold a path of the last tree, root first; nothing to do after a single token."""
        if self.inputs is not None:
            node_A, window = node_A.to(self.inputs.device), self.conv_states[0]
            kept = torch.cat([window, self.inputs[:, :, node_A]], dim=-1)
            window.copy_(kept[:, :, -window.shape[-1] :])
        if self.stash is not None:
            state = self.recurrent_states[0]
            state.copy_(self.stash.folded(state, node_A))
        self.inputs, self.convolved, self.stash = None, False, None

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

    def tree_bytes(self, nodes: int, *, channels: bool) -> int:
        """Of what a tree of so many nodes keeps here until its path is known, about.

        Args:
            channels: the recurrence has a decay for each channel of its keys.
        """
        window = self.conv_states[0]
        kept = nodes * window.shape[1] * window.element_size()
        if (state := self.recurrent_states[0]) is not None:
            _, heads, first, second = state.shape
            kept += 4 * nodes * heads * (first + second + (first if channels else 1))
        return kept

    def work_bytes(self, nodes: int, *, channels: bool) -> int:
        """Of what the recurrence of such a tree takes while it runs, about: the decays between each
        two nodes and their products."""
        if (state := self.recurrent_states[0]) is None:
            return 0
        _, heads, first, _ = state.shape
        return 4 * nodes**2 * heads * (3 * (first if channels else 1) + 4)


def check_room(layers: Sequence[object], nodes: int, *, kind: str, device: torch.device) -> None:
    """Refuse, by a BadInput, a tree of so many nodes for whose recurrent layers the memory does not
    suffice.

    Args:
        layers: of the cache.
        kind: the model type.
    """
    recurrent = [layer for layer in layers if isinstance(layer, RecurrentLayer)]
    channels = per_channel(kind)
    needed = sum(layer.tree_bytes(nodes, channels=channels) for layer in recurrent)
    needed += max(layer.work_bytes(nodes, channels=channels) for layer in recurrent)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
    else:
        free = psutil.virtual_memory().available
    if needed > free:
        raise BadInput(
            f"a draft tree of {nodes} nodes needs some {needed / 2**30:.3g} GiB in the recurrent "
            f"layers of a target of type {kind!r}, and {device} has {free / 2**30:.3g} GiB free: "
            "give a smaller tree"
        )

"""Linear layers of a stock model in oneDNN's own weight layout, swapped in from outside.

A stock bf16 `nn.Linear` on a CPU lays its weight out anew, or reads it badly, at every call. oneDNN
can be given the weight packed once (what torch.compile's freezing does, without a compiler).
Layers that read the same input (q, k, v; gate, up) become one product. Measured with SmolLM2-135M
on two cores: results/speed_cpu.

The model's forward stays as it is: only its submodules are exchanged.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from eagle_fsd.engine.attention import Folded

# Layers of one parent that a decoder layer calls one after the other with the same input.
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this CPU and this build of torch have fast packed products for the dtype."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return dtype == torch.float32


class PackedLinear:
    """x W^T + b with W packed; inference only, CPU only.

    No nn.Module: a decoding step calls hundreds of these, and a module's call costs microseconds.
    """

    def __init__(self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None):
        # packed for one row: the layout is the same for the widths of trees, or no slower there
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_RD.detach(), 1)
        self._bias = None if bias_R is None else bias_R.detach()
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        return self._product(x_ND, self._packed, self._bias, "none", [], "")


class _Joined:
    """Several linear layers as one product; parts are handed out as its members are called."""

    def __init__(self, linears: list[nn.Linear]):
        weight_RD = torch.cat([linear.weight.detach() for linear in linears])
        biased = linears[0].bias is not None
        bias_R = torch.cat([linear.bias.detach() for linear in linears]) if biased else None
        self._linear = PackedLinear(weight_RD, bias_R)
        self._sizes = [linear.out_features for linear in linears]
        self._input: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()

    def part(self, index: int, x_ND: torch.Tensor) -> torch.Tensor:
        if index == 0 or x_ND is not self._input:
            self._input = x_ND
            self._parts = self._linear(x_ND).split_with_sizes(self._sizes, -1)
        part = self._parts[index]
        if index == len(self._sizes) - 1:  # hold nothing alive between calls
            self._input, self._parts = None, ()
        return part


@torch.inference_mode()
def pack(module: nn.Module) -> None:
    """Exchange every linear layer of the module by a packed one; it can then be run, not saved.

    The plain weights are dropped on the way, so that no second copy of these layers is ever held.
    """
    for parent in list(module.modules()):
        for names in JOINED:
            linears = [getattr(parent, name, None) for name in names]
            if _joinable(linears):
                joined = _Joined(linears)
                for index, name in enumerate(names):
                    _exchange(parent, name, partial(joined.part, index))
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                _exchange(parent, name, PackedLinear(child.weight, child.bias))


def _exchange(parent: nn.Module, name: str, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    delattr(parent, name)
    setattr(parent, name, call)


def _joinable(linears: list) -> bool:
    """Plain linear layers with one input width, all or none of them with a bias."""
    if any(type(linear) is not nn.Linear for linear in linears):
        return False
    biased = {linear.bias is not None for linear in linears}
    return len({linear.in_features for linear in linears}) == 1 and len(biased) == 1


class Packed(Folded):
    """On a CPU: packed linear layers and folded attention, no compiler needed."""

    name = "packed"
    exchange_linears = staticmethod(pack)
    linear = staticmethod(PackedLinear)

"""Linear layers of a stock model with weights laid out for the processor, swapped in from outside.

A stock `nn.Linear` on a CPU lays its weight out anew, or reads it badly, at every call. In float32
the weights are held in 16 bits where they fit (products.py); otherwise oneDNN is given the weight
packed once (what torch.compile's freezing does, without a compiler). Layers that read the same
input (q, k, v; gate, up) become one product. Measured: results/speed_float32.

The model's forward stays as it is: only its submodules are exchanged.
"""

import ctypes
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from eagle_fsd.engine import products
from eagle_fsd.engine.attention import Folded, Rotation
from eagle_fsd.engine.lean import exchange_norms, exchanging, lean_attention, lean_mlp
from eagle_fsd.engine.products import Joined, Linear, PackedLinear

# Layers of one parent that a decoder layer calls one after the other with the same input.
ATTENTION = ("q_proj", "k_proj", "v_proj")
JOINED = ATTENTION, ("gate_proj", "up_proj")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this CPU and this build of torch have fast packed products for the dtype."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return dtype == torch.float32


def _exchange(parent: nn.Module, name: str, call: Linear) -> None:
    delattr(parent, name)
    setattr(parent, name, call)


@functools.cache
def _read_by(kind: type[nn.Module]) -> frozenset[str]:
    """Names of children whose attributes the class's own methods read, such as `self.gate.weight`;
    a product in their place has none."""
    methods = [
        method
        for parent in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for method in vars(parent).values()
        if inspect.isfunction(method)
    ]
    return frozenset(
        name for method in methods for name in re.findall(r"\bself\.(\w+)\.", _source(method))
    )


def _source(method: Callable) -> str:
    try:
        return inspect.getsource(method)
    except OSError:  # made while running, or its file is gone
        return ""


def _exchangeable(parent: nn.Module, name: str) -> bool:
    """Whether the parent's child is a plain linear layer, and is only called."""
    return type(getattr(parent, name, None)) is nn.Linear and name not in _read_by(type(parent))


def _joinable(linears: list[nn.Linear]) -> bool:
    """Linear layers with one input width, all or none of them with a bias."""
    biased = {linear.bias is not None for linear in linears}
    return len({linear.in_features for linear in linears}) == 1 and len(biased) == 1


class Packed(Folded):
    """On a CPU: packed linear layers, folded attention, fewer operators; no compiler needed.

    Args:
        exact: weights are held in 16 bits only where that changes none of them; False for what
            drafts, where a rounding costs no more than an accepted draft now and then.
    """

    name = "packed"

    def __init__(self, *, exact: bool = True):
        self.exact = exact

    def for_drafts(self) -> "Packed":
        return type(self)(exact=False)

    def linear(self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None) -> Linear:
        if weight_RD.dtype == torch.float32 and products.can_multiply():
            scale = products.power_of_two(weight_RD, exact=self.exact)
            if scale is not None:
                return products.HalfLinear(weight_RD, bias_R, scale)
            warnings.warn(
                "some float32 weights cannot be held in 16 bits without changing a number, since "
                "they use more bits or too wide a range: products with them read 32 bits and take "
                "about twice as long (--dtype bfloat16 rounds them, and reads half as much)",
                stacklevel=1,  # from one place, so Python shows it once
            )
        return PackedLinear(weight_RD, bias_R)

    @torch.inference_mode()
    def exchange(self, module: nn.Module) -> None:
        """Exchange linear layers, norms, attention and MLPs; the module can then be run, not saved.

        The plain weights are dropped on the way, so that no second copy of these layers is ever
        held.
        """
        rotation = Rotation()
        for parent in exchanging(module):
            for names in JOINED:
                if not all(_exchangeable(parent, name) for name in names):
                    continue
                linears = [getattr(parent, name) for name in names]
                if not _joinable(linears):
                    continue
                joined = Joined(linears, self.linear)
                if names == ATTENTION:
                    lean = lean_attention(parent, joined.product, rotation)
                else:
                    lean = lean_mlp(parent, joined.product)
                parent.forward = lean or parent.forward
                for index, name in enumerate(names):
                    _exchange(parent, name, partial(joined.part, index))
            for name, child in list(parent.named_children()):
                if _exchangeable(parent, name):
                    _exchange(parent, name, self.linear(child.weight, child.bias))
        exchange_norms(module)

    def shrink(self, model: PreTrainedModel, read: Linear) -> None:
        head, table = model.get_output_embeddings(), model.get_input_embeddings()
        plain, tied = type(table) is nn.Embedding, head.weight is table.weight
        if head.weight.dtype != torch.float32 or not products.can_multiply():
            return
        rows = products.in_half(head.weight) if plain or not tied else None
        if rows is not None:
            head.forward, head.weight = read, rows
        held = rows if tied else products.in_half(table.weight) if plain else None
        if held is not None:
            model.set_input_embeddings(products.HalfEmbedding(held))
        _give_back()


def _give_back() -> None:
    """Freed float32 weights go back to the system; glibc would keep them for itself."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)

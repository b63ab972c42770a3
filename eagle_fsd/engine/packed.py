"""The engine for CPUs: linear layers of a stock model, exchanged from outside for products with
weights laid out once (products.py), and the fewer operators of lean.py. Measured:
results/speed_float32.

Axes: N positions, D input size, R rows of a linear layer.
"""

import ctypes
import sys
import warnings
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from eagle_fsd.engine import products
from eagle_fsd.engine.attention import Rotation
from eagle_fsd.engine.folded import Folded
from eagle_fsd.engine.lean import (
    ATTENTION,
    JOINED,
    exchangeable,
    joinable,
    lean_attention,
    lean_mlp,
    lean_norm,
)
from eagle_fsd.engine.products import Joined, Linear, PackedLinear


def can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return dtype == torch.float32


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
        """The module can then be run, not saved. The plain weights are dropped on the way, so that
        no second copy of these layers is ever held."""
        rotation = Rotation()
        # a list of those with children alone, since one of all would keep every weight
        for parent in [parent for parent in module.modules() if parent._modules]:
            # these go over their children, or find them by number: what is no module is not among
            # them then
            if isinstance(parent, nn.Sequential | nn.ModuleList | nn.ModuleDict):
                continue
            # 1. Layers of the same input become one product, and with it their parent's forward.
            for names in JOINED:
                if not (linears := joinable(parent, names)):
                    continue
                joined = Joined(linears, self.linear)
                if names == ATTENTION:
                    lean = lean_attention(parent, joined.product, rotation)
                else:
                    lean = lean_mlp(parent, joined.product)
                if lean is not None:
                    parent.forward = lean
                for index, name in enumerate(names):
                    _put(parent, name, partial(joined.part, index))
            # 2. Other linear layers, and norms.
            for name, child in list(parent.named_children()):
                if exchangeable(parent, name):
                    _put(parent, name, self.linear(child.weight, child.bias))
                elif norm := lean_norm(child):
                    _put(parent, name, norm)

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
        # freed float32 weights go back to the system; glibc would keep them for itself
        if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
            trim(0)


def _put(parent: nn.Module, name: str, call: Linear) -> None:
    delattr(parent, name)  # setattr alone takes no call in a module's place
    setattr(parent, name, call)

"""Linear layers, norms, attention and MLPs of a stock model, exchanged from outside for products
with weights laid out once (products.py) and for fewer operators. Layers that read the same input
(q, k, v; gate, up) become one product. Measured: results/speed_float32.

A step of a small model is hundreds of operators of a microsecond or two, called from Python. An
RMS norm is six of them and rotary positions of queries and keys some fourteen; here they are five,
and four for both. Families differ in these places: what is exchanged is first run beside the layer
that it stands for, on random numbers, and left as it was where the two differ.

Axes: B sequences, N positions, D input size.
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

from eagle_fsd.decoding.masks import additive_mask
from eagle_fsd.engine import products
from eagle_fsd.engine.attention import NAME, Folded, RotaryAttention, Rotation, takes_rotary
from eagle_fsd.engine.products import GatedMlp, Joined, Linear, PackedLinear, RmsNorm

# Layers of one parent that a decoder layer calls one after the other with the same input.
ATTENTION = ("q_proj", "k_proj", "v_proj")
JOINED = ATTENTION, ("gate_proj", "up_proj")
PROBED = 5  # positions that a layer is tried on
# By how much, in parts of a layer's output, two kernels for the same may differ
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.02}
HUGE = 1e4  # times LARGE: beyond any limit of an MLP
LARGE, GROSS = 300, 0.1  # numbers that reach a layer's limits, and what counts as a difference then


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
                if not all(_exchangeable(parent, name) for name in names):
                    continue
                linears = [getattr(parent, name) for name in names]
                if len({(linear.in_features, linear.bias is None) for linear in linears}) > 1:
                    continue
                joined = Joined(linears, self.linear)
                if names == ATTENTION:
                    lean = lean_attention(parent, joined.product, rotation)
                else:
                    lean = lean_mlp(parent, joined.product)
                parent.forward = lean or parent.forward
                for index, name in enumerate(names):
                    _put(parent, name, partial(joined.part, index))
            # 2. Other linear layers, and norms.
            for name, child in list(parent.named_children()):
                if _exchangeable(parent, name):
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


@functools.cache
def _read_by(kind: type[nn.Module]) -> frozenset[str]:
    """Names of children whose attributes the class's own code reads, such as `self.gate.weight`; a
    product in their place has none."""
    names: set[str] = set()
    for parent in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        try:
            names |= set(re.findall(r"\bself\.(\w+)\.", inspect.getsource(parent)))
        except (OSError, TypeError):  # made while running, or its file is gone
            continue
    return frozenset(names)


def _exchangeable(parent: nn.Module, name: str) -> bool:
    """Whether the parent's child is a plain linear layer, and is only called."""
    return type(getattr(parent, name, None)) is nn.Linear and name not in _read_by(type(parent))


def _put(parent: nn.Module, name: str, call: Linear) -> None:
    delattr(parent, name)  # setattr alone takes no call in a module's place
    setattr(parent, name, call)


def lean_norm(norm: nn.Module) -> RmsNorm | None:
    """For an RMS norm, and None for whatever else a layer has."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight, kind = getattr(norm, "weight", None), type(norm).__name__
    # one with a gate is run with a second input, of which the trial knows nothing
    if "RMSNorm" not in kind or "Gated" in kind or eps is None or weight is None:
        return None
    if weight.dtype not in CLOSE or weight.ndim != 1:
        return None
    lean, x_ND = RmsNorm(weight, eps), _random(PROBED, *weight.shape, like=weight)
    stock_ND = _tried(norm, x_ND)
    if stock_ND is None or not _agree(lean(x_ND), stock_ND, CLOSE[weight.dtype]):
        return None
    return lean


def lean_attention(
    attention: nn.Module, product: Callable[[torch.Tensor], torch.Tensor], rotation: Rotation
) -> RotaryAttention | None:
    """For a self-attention whose linear layers are still its own; None where it computes something
    else."""
    if not takes_rotary(attention.forward):
        return None
    names = {name for name, _ in attention.named_children()}
    size, config = getattr(attention, "head_dim", None), getattr(attention, "config", None)
    implementation = getattr(config, "_attn_implementation", None)
    if names != {"q_proj", "k_proj", "v_proj", "o_proj"} or not size or implementation != NAME:
        return None
    lean, weight = RotaryAttention(attention, product, rotation), attention.q_proj.weight
    x_BND = _random(1, PROBED, weight.shape[1], like=weight)
    half_BNd = _random(1, PROBED, size // 2, like=weight)
    angles_BNd = torch.cat([half_BNd, half_BNd], dim=-1)
    seen_NN = torch.ones(PROBED, PROBED, dtype=torch.bool, device=weight.device).tril()
    rows = weight.shape[0] // attention.k_proj.out_features
    call = {
        "position_embeddings": (angles_BNd.cos(), angles_BNd.sin()),
        "attention_mask": additive_mask(seen_NN, weight.dtype, rows),
    }
    # Some layers clip queries or cap scores (OLMo, Gemma 2): large numbers show that. A softmax of
    # such scores hangs on their roundings, so that only gross differences count.
    for size_of_input, allowed in ((1, CLOSE[weight.dtype]), (LARGE, GROSS)):
        stock = _tried(attention, x_BND * size_of_input, **call)
        if stock is None or not _agree(lean(x_BND * size_of_input, **call)[0], stock[0], allowed):
            return None
    return lean


def lean_mlp(mlp: nn.Module, product: Callable[[torch.Tensor], torch.Tensor]) -> GatedMlp | None:
    """For an MLP whose linear layers are still its own; None where it computes something else."""
    names = {name for name, _ in mlp.named_children()}
    one_input = len(inspect.signature(mlp.forward).parameters) == 1
    if names != {"gate_proj", "up_proj", "down_proj", "act_fn"} or not one_input:
        return None
    gate, up, weight = mlp.gate_proj, mlp.up_proj, mlp.gate_proj.weight
    if gate.out_features != up.out_features:
        return None
    x_BND = _random(1, PROBED, weight.shape[1], like=weight)
    for size_of_input in (1, LARGE, HUGE):  # some layers clip, and some round in between
        x_BND = x_BND * size_of_input
        stock = _tried(mlp, x_BND)
        gated = _tried(lambda x: mlp.down_proj(mlp.act_fn(gate(x)) * up(x)), x_BND)
        both = isinstance(stock, torch.Tensor) and isinstance(gated, torch.Tensor)
        if not both or not torch.equal(stock, gated):  # by the same kernels
            return None
    return GatedMlp(mlp, product)


def _tried(layer: nn.Module, *given: torch.Tensor, **call):
    """What a stock layer makes of this; None if it asks for something else."""
    try:
        return layer(*given, **call)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError):
        return None


def _random(*shape: int, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator).to(like.device, like.dtype)


def _agree(ours: torch.Tensor, stock: torch.Tensor, allowed: float) -> bool:
    """Up to a share of the stock layer's output."""
    return bool((ours - stock).norm() <= allowed * stock.norm())

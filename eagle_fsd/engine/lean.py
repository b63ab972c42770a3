"""Norms, attention and MLPs of a stock model with fewer operators, swapped in from outside.

A step of a small model is hundreds of operators of a microsecond or two, called from Python. An
RMS norm is six of them and rotary positions of queries and keys some fourteen; here they are five,
and four for both. What is exchanged is first run beside the layer that it stands for, on random
numbers, and left as it was where the two differ: families differ in these places.

Axes: B sequences, N positions, H query heads, G key/value heads, d head size, D input size.
"""

import inspect
from collections.abc import Callable

import torch
from torch import nn

from eagle_fsd.decoding.masks import additive_mask
from eagle_fsd.engine.attention import NAME, RotaryAttention, Rotation
from eagle_fsd.engine.products import GatedMlp, RmsNorm

PROBED = 5  # positions that a layer is tried on
# By how much, in parts of a layer's output, two kernels for the same may differ
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.02}
HUGE = 1e4  # times LARGE: beyond any limit of an MLP
LARGE, GROSS = 300, 0.1  # numbers that reach a layer's limits, and what counts as a difference then


# They go over their children, or find them by number: what is no module is not among these.
CONTAINERS = nn.Sequential, nn.ModuleList, nn.ModuleDict


def exchanging(module: nn.Module) -> list[nn.Module]:
    """The modules whose children may be exchanged by what is no module."""
    return [parent for parent in module.modules() if not isinstance(parent, CONTAINERS)]


def exchange_norms(module: nn.Module) -> None:
    """Put an RMS norm of few operators in the place of every layer that computes just that."""
    for parent in exchanging(module):
        for name, child in list(parent.named_children()):
            eps = getattr(child, "variance_epsilon", getattr(child, "eps", None))
            weight = getattr(child, "weight", None)
            kind = type(child).__name__
            # one with a gate is run with a second input, of which the trial knows nothing
            if "RMSNorm" not in kind or "Gated" in kind or eps is None or weight is None:
                continue
            if weight.dtype not in CLOSE or weight.ndim != 1:
                continue
            norm = RmsNorm(weight, eps)
            x_ND = _random(PROBED, *weight.shape, like=weight)
            stock_ND = _tried(child, x_ND)
            if stock_ND is not None and _agree(norm(x_ND), stock_ND, CLOSE[weight.dtype]):
                delattr(parent, name)
                setattr(parent, name, norm)


def lean_attention(
    attention: nn.Module, product: Callable[[torch.Tensor], torch.Tensor], rotation: Rotation
) -> RotaryAttention | None:
    """For a self-attention whose linear layers are still its own; None where it computes something
    else. See RotaryAttention."""
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
        "past_key_values": None,
    }
    # Some layers clip queries or cap scores (OLMo, Gemma 2): large numbers show that. A softmax of
    # such scores hangs on their roundings, so that only gross differences count.
    for size_of_input, allowed in ((1, CLOSE[weight.dtype]), (LARGE, GROSS)):
        stock = _tried(attention, x_BND * size_of_input, **call)
        if stock is None or not _agree(lean(x_BND * size_of_input, **call)[0], stock[0], allowed):
            return None
    return lean


def lean_mlp(mlp: nn.Module, product: Callable[[torch.Tensor], torch.Tensor]) -> GatedMlp | None:
    """For an MLP whose linear layers are still its own; None where it computes something else. See
    GatedMlp."""
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

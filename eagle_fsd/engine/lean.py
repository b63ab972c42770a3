"""Norms, attention and MLPs of fewer operators than a stock model's, in the place of those that
compute the same.

An RMS norm is six operators and rotary positions of queries and keys some fourteen; here they are
one (on a CPU in float32 five), and four for both, and layers that read the same input (q, k, v;
gate, up) are one product. Families differ in these places: what is exchanged is first run beside
the layer that it stands for, on random numbers, and left as it was where the two differ.

Axes: B sequences, N positions, D input size, I size within an MLP, R rows of a linear layer.
"""

import copy
import functools
import inspect
import re
from collections.abc import Callable

import torch
from torch import nn

from eagle_fsd.decoding.masks import additive_mask
from eagle_fsd.engine.attention import NAME, RotaryAttention, Rotation, takes_rotary

Product = Callable[[torch.Tensor], torch.Tensor]

# Layers of one parent that a decoder layer calls one after the other with the same input.
ATTENTION = ("q_proj", "k_proj", "v_proj")
JOINED = ATTENTION, ("gate_proj", "up_proj")
PROBED = 5  # positions that a layer is tried on
# By how much, in parts of a layer's output, two kernels for the same may differ
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.02}
HUGE = 1e4  # times LARGE: beyond any limit of an MLP
LARGE, GROSS = 300, 0.1  # numbers that reach a layer's limits, and what counts as a difference then


class RmsNorm:
    """x w / sqrt(mean of x^2 + eps). No nn.Module either."""

    def __init__(self, weight_D: torch.Tensor, eps: float):
        # some layers ask their norm's weight for its dtype
        self.weight = weight_D.detach()
        self._shape, self._eps = list(weight_D.shape), float(eps)
        self._eps_1 = torch.full((1,), self._eps, dtype=torch.float32, device=weight_D.device)

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        # Torch's own computes 16 bits in 32, and is one kernel on CUDA. On a CPU, of float32, it is
        # six operators, which take half as long again as these.
        if x_ND.dtype != torch.float32 or x_ND.is_cuda:
            return torch.rms_norm(x_ND, self._shape, self.weight, self._eps)
        norm_N1 = torch.linalg.vector_norm(x_ND, dim=-1, keepdim=True)
        square_N1 = torch.addcmul(self._eps_1, norm_N1, norm_N1, value=1 / self._shape[-1])
        return (x_ND * square_N1.rsqrt_()).mul_(self.weight)


class GatedMlp:
    """down(act(gate(x)) up(x)), where one product, [N, D] to [N, 2 I], gives gate and up."""

    def __init__(self, mlp: nn.Module, product: Product):
        self._mlp, self._product = mlp, product

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        gate_NI, up_NI = self._product(x_ND).chunk(2, -1)
        return self._mlp.down_proj(self._mlp.act_fn(gate_NI) * up_NI)


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


def exchangeable(parent: nn.Module, name: str) -> bool:
    """Whether the parent's child is a plain linear layer, and is only called."""
    return type(getattr(parent, name, None)) is nn.Linear and name not in _read_by(type(parent))


def told_exchanges(model: nn.Module, repeats: int) -> str:
    """What of a model runs in fewer operators, for people: "32 attentions, 32 MLPs, 65 norms"."""
    kinds = [type(getattr(module, "forward", None)) for module in model.modules()]
    named = {"attentions": RotaryAttention, "MLPs": GatedMlp, "norms": RmsNorm}
    counts = ", ".join(f"{kinds.count(kind)} {name}" for name, kind in named.items())
    return f"{counts} in fewer operators, {repeats} query heads to a row of the mask"


def joinable(parent: nn.Module, names: tuple[str, ...]) -> list[nn.Linear]:
    """The parent's linear layers of these names where one product can stand for them, else none."""
    if not all(exchangeable(parent, name) for name in names):
        return []
    linears = [getattr(parent, name) for name in names]
    alike = {(linear.in_features, linear.bias is None, linear.weight.dtype) for linear in linears}
    return linears if len(alike) == 1 else []


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
    attention: nn.Module, product: Product, rotation: Rotation
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
    # Tried in float32, since roundings to 16 bits are as large as what is to be found
    tried, weight = attention, attention.q_proj.weight
    if weight.dtype != torch.float32:
        memo = {id(own): nn.Parameter(own.float(), False) for own in attention.parameters()}
        tried = copy.deepcopy(attention, memo | {id(config): config})
    linears = [getattr(tried, name) for name in ATTENTION]

    def side_by_side(x_BND: torch.Tensor) -> torch.Tensor:
        return torch.cat([linear(x_BND) for linear in linears], dim=-1)

    lean = RotaryAttention(tried, side_by_side, Rotation())
    like = tried.q_proj.weight
    x_BND = _random(1, PROBED, weight.shape[1], like=like)
    half_BNd = _random(1, PROBED, size // 2, like=like)
    angles_BNd = torch.cat([half_BNd, half_BNd], dim=-1)
    seen_NN = torch.ones(PROBED, PROBED, dtype=torch.bool, device=weight.device).tril()
    rows = weight.shape[0] // attention.k_proj.out_features
    call = {
        "position_embeddings": (angles_BNd.cos(), angles_BNd.sin()),
        "attention_mask": additive_mask(seen_NN, like.dtype, rows),
    }
    # Some layers clip queries or cap scores (OLMo, Gemma 2): large numbers show that. A softmax of
    # such scores hangs on their roundings, so that only gross differences count.
    for size_of_input, allowed in ((1, CLOSE[like.dtype]), (LARGE, GROSS)):
        stock = _tried(tried, x_BND * size_of_input, **call)
        if stock is None or not _agree(lean(x_BND * size_of_input, **call)[0], stock[0], allowed):
            return None
    return RotaryAttention(attention, product, rotation)


def lean_mlp(mlp: nn.Module, product: Product) -> GatedMlp | None:
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
        # by the same kernels; 16 bits overflow at such numbers, to NaN in both
        if not both or not torch.equal(stock.nan_to_num(), gated.nan_to_num()):
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

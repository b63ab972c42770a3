"""What stands in the place of a stock model's linear layers and embedding on a CPU.

A stock nn.Linear lays its weight out anew at every call: oneDNN is given it packed once. And
reading weights is what a small batch waits for: float32 ones are held in 16 bits where these hold
them exactly, for FBGEMM's products on x86 processors, which are done in float32. bfloat16 values (8
bits of mantissa) fit into float16 (11 bits) if their range does; a power of two, by which the whole
matrix is multiplied and its input divided, moves the range and rounds nothing. The smallest number
that is kept whole is then some 2 ** -32 of the matrix's largest.
"""

import functools
import threading
from collections.abc import Callable

import torch
from torch import nn

Linear = Callable[[torch.Tensor], torch.Tensor]

CLOSE = 2.0**-11  # what rounding to float16 changes a number by, at most, in parts of it
ROWS = 4096  # of a matrix that are checked at a time
TOP_EXPONENT = 15  # of a matrix whose largest number is scaled to just below 2 ** 15


@functools.cache
def can_multiply() -> bool:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    try:
        plain = {"dtype": torch.float32, "device": "cpu"}  # whatever the process's defaults are
        probe = HalfLinear(torch.eye(2, **plain), None, 1.0)
        return torch.equal(probe(torch.ones(1, 2, **plain)), torch.ones(1, 2, **plain))
    except (AttributeError, RuntimeError):  # another torch, or a processor without AVX2 and F16C
        return False


class HalfLinear:
    """x W^T + b in float32 of a weight held in float16, times a power of two (power_of_two)."""

    def __init__(self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None, scale: float):
        scaled_RD = weight_RD.detach().contiguous() * scale
        bias_R = None if bias_R is None else bias_R.detach().float()
        self._packed = torch.ops.quantized.linear_prepack_fp16(scaled_RD, bias_R)
        self._product = torch.ops.quantized.linear_dynamic_fp16.default
        self._inverse = 1 / scale

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        return self._product(x_ND if self._inverse == 1 else x_ND * self._inverse, self._packed)


class PackedLinear:
    """x W^T + b with W packed by oneDNN.

    No nn.Module: a decoding step calls hundreds of these, and a module's call costs microseconds.
    """

    def __init__(self, weight_RD: torch.Tensor, bias_R: torch.Tensor | None):
        # packed for one row: the layout is the same for the widths of trees, or no slower there
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight_RD.detach(), 1)
        self._bias = None if bias_R is None else bias_R.detach()
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        return self._product(x_ND, self._packed, self._bias, "none", [], "")


class Joined:
    """Several linear layers as one product, whose parts are handed out as the members are called,
    in any order, to each thread its own."""

    def __init__(self, linears: list[nn.Linear], pack_linear: Callable[..., Linear]):
        weight_RD = torch.cat([linear.weight.detach() for linear in linears])
        biased = linears[0].bias is not None
        bias_R = torch.cat([linear.bias.detach() for linear in linears]) if biased else None
        self.product = pack_linear(weight_RD, bias_R)
        self._sizes = [linear.out_features for linear in linears]
        self._held = threading.local()  # the input, and by member the parts that wait

    def part(self, index: int, x_ND: torch.Tensor) -> torch.Tensor:
        held = vars(self._held)
        if held.get("input") is not x_ND or index not in held["parts"]:
            parts = self.product(x_ND).split_with_sizes(self._sizes, -1)
            held |= {"input": x_ND, "parts": dict(enumerate(parts))}
        part = held["parts"].pop(index)
        if not held["parts"]:  # hold nothing alive between calls
            held.clear()
        return part


def power_of_two(weight_RD: torch.Tensor, *, exact: bool) -> float | None:
    """By what to multiply a float32 matrix so that float16 holds it; 1 if that holds it unchanged,
    None if nothing does.

    Args:
        exact: every number stays what it is. Else a number may also change by CLOSE parts of
            itself, or by 2 ** -40 parts of the matrix's largest.

    Example: of a bfloat16 number near 1e-6 float16 keeps too few bits, of 4096 times that all.
    """
    weight_RD = weight_RD.detach()
    top = torch.stack(weight_RD.aminmax()).abs().amax().item()
    if top == 0:
        return 1.0
    if not top < float("inf"):  # NaN too
        return None
    highest = 2.0 ** (TOP_EXPONENT - torch.tensor(top).frexp().exponent.item())
    ways = [(1.0, 0.0), (highest, 0.0), (highest, CLOSE)]
    for scale, allowed in ways[:2] if exact else ways:
        least = torch.finfo(torch.float16).smallest_normal * allowed / scale
        # in blocks of rows, up to the first that is not held: copies of a large lm_head would be
        # gigabytes
        for part_RD in weight_RD.split(ROWS):
            error_RD = (part_RD * scale).half().float().div_(scale).sub_(part_RD).abs_()
            if not (error_RD <= part_RD.abs().mul_(allowed).clamp_(min=least)).all():
                break
        else:
            return scale
    return None


class HalfEmbedding(nn.Module):
    """Held in 16 bits and read as float32."""

    def __init__(self, table_VD: nn.Parameter):
        super().__init__()
        self.weight = table_VD

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(token, self.weight).float()


def in_half(weight: torch.Tensor) -> nn.Parameter | None:
    """The same numbers in 16 bits; None if neither of the two types holds them all."""
    for dtype in (torch.bfloat16, torch.float16):
        held = weight.detach().to(dtype)
        if torch.equal(held.float(), weight.detach()):
            return nn.Parameter(held, requires_grad=False)
    return None

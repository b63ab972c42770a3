"""Which way a target's forwards are run. What each does is in its own file."""

import torch

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.decoding.engine import Engine
from eagle_fsd.engine.attention import Folded
from eagle_fsd.engine.compiled import Compiled, check_compiler
from eagle_fsd.engine.packed import Packed, can_pack

ENGINES: dict[str, type[Engine]] = {
    "stock": Engine,  # transformers' model as it is
    "packed": Packed,  # CPU: weights in oneDNN's layout, folded attention
    "compiled": Compiled,  # CPU: packed, and what lies between products compiled
    "folded": Folded,  # attention without copies of keys and values
}


def choose_engine(name: str, *, device: str, dtype: torch.dtype) -> Engine:
    """The engine to use; `auto` takes the fastest that works here, but not `compiled`, whose
    minutes of compilation few runs are long enough for.

    Args:
        name: a key of ENGINES, or "auto".
        device: cpu, cuda, cuda:1, auto (several).
        dtype: of the target's weights.

    Raises:
        BadInput: unknown, or not possible here; says why.
    """
    if name == "auto":
        return Packed() if device == "cpu" and can_pack(dtype) else Folded()
    check_known("engine", name, ["auto", *ENGINES])
    if name in ("packed", "compiled") and not (device == "cpu" and can_pack(dtype)):
        raise BadInput(
            f"engine {name!r} needs a CPU whose oneDNN multiplies {dtype}; here it is {device}: "
            "use auto"
        )
    if name == "compiled":
        check_compiler()
    return ENGINES[name]()


def engines_in_turn(name: str, *, device: str, dtype: torch.dtype) -> list[Engine]:
    """choose_engine's, and behind it those that can take its place where a family's layers are not
    what it exchanges, the fastest first."""
    first = choose_engine(name, device=device, dtype=dtype)
    packs = device == "cpu" and can_pack(dtype)
    others = [Packed(), Folded(), Engine()] if packs else [Folded(), Engine()]
    return [first, *(engine for engine in others if engine.name != first.name)]

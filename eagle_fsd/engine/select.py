"""Which way a target's forwards are run. What each does is in its own file."""

import torch

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.decoding.engine import Engine
from eagle_fsd.engine.compiled import Compiled
from eagle_fsd.engine.folded import Folded
from eagle_fsd.engine.packed import Packed, can_pack

ENGINES: dict[str, type[Engine]] = {
    "stock": Engine,  # transformers' model as it is
    "packed": Packed,  # CPU: weights in oneDNN's layout, folded attention
    "compiled": Compiled,  # CPU: packed, and what lies between products compiled
    "folded": Folded,  # fewer operators, attention without copies of keys and values
}


def choose_engines(name: str, *, device: str, dtype: torch.dtype) -> list[Engine]:
    """The engine that is named; of `auto` those that work here, the fastest first: the next is
    taken where a family's layers are not what the one before exchanges. `compiled` is not among
    them, since few runs are long enough for minutes of compilation. BadInput: unknown, or not
    possible here."""
    check_known("engine", name, ["auto", *ENGINES])
    packs = device == "cpu" and can_pack(dtype)
    if name == "auto":
        return [Packed(), Folded(), Engine()] if packs else [Folded(), Engine()]
    if name in ("packed", "compiled") and not packs:
        raise BadInput(
            f"engine {name!r} needs a CPU whose oneDNN multiplies {dtype}; here it is {device}: "
            "use auto"
        )
    return [ENGINES[name]()]

"""Which way a target's forwards are run. What each does is in the files beside this one."""

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.engine.packed import can_pack

ENGINES = {
    "stock": "the transformers model as it is",
    "packed": "on a CPU: oneDNN-packed linear layers and folded attention, no compiler needed",
    "graphs": "on one CUDA device: folded attention, verification and drafting as CUDA graphs",
    "folded": "folded attention only; for several devices, and CPUs that cannot pack",
}


def choose_engine(name: str, *, device: str, dtype: torch.dtype) -> str:
    """The engine to use; `auto` takes the fastest that works here.

    Args:
        name: a key of ENGINES, or "auto".
        device: cpu, cuda, cuda:1, auto (several).
        dtype: of the target's weights.

    Raises:
        BadInput: unknown, or not possible here; says why.
    """
    if name == "auto":
        if device.startswith("cuda"):
            return "graphs"
        return "packed" if device == "cpu" and can_pack(dtype) else "folded"
    if name not in ENGINES:
        raise BadInput(f"unknown engine {name!r}; known: auto, {', '.join(ENGINES)}")
    if name == "packed" and not (device == "cpu" and can_pack(dtype)):
        raise BadInput(
            f"engine 'packed' needs a CPU whose oneDNN multiplies {dtype}; here it is {device}: "
            "use auto"
        )
    if name == "graphs" and not device.startswith("cuda"):
        raise BadInput(f"engine 'graphs' needs one CUDA device; here it is {device}: use auto")
    return name

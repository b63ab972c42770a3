"""What of the machine decides a speed: threads, their way of waiting, and who else is at work."""

import os

import torch

from eagle_fsd.speed.quiet import load_by_others


def describe_machine() -> dict[str, int | str | float | None]:
    """Threads, OpenMP's wait policy, and the cores that others keep busy now (None: unknown)."""
    load = load_by_others()
    return {
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load_by_others": None if load is None else round(load, 2),
    }

"""The clock of every measurement, the order of what is compared by it, and whether it would time
this process or its neighbours."""

import os
import sys
import time
from collections.abc import Sequence
from typing import TypeVar

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.engine.threads import load_by_others
from eagle_fsd.models.load import check_device

BUSY = 0.5  # cores that others may keep busy
TAKEN = 2.0  # GiB of a CUDA device that may be taken: contexts, ours among them
Item = TypeVar("Item")


def synchronized_time(device: torch.device) -> float:
    """Seconds, read after the device has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """The items from another one on every turn: a b c at turn 4 is b c a."""
    at = turn % len(items)
    return [*items[at:], *items[:at]]


def check_one_process() -> None:
    """Refuse a launcher's processes: they would time each other."""
    if (count := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise BadInput(
            f"{count} processes (WORLD_SIZE) share this machine's time: speeds are of one process "
            "alone. Start the command without a launcher, or ask for no timing"
        )


def check_timing_alone(device: str) -> list[str]:
    """Look around right before weights load and something is timed, on auto at every CUDA device.
    Returns warnings, printed too."""
    check_device(device)
    check_one_process()
    warnings = []
    # 1. A CUDA device is this process's alone, by the memory that is taken there.
    every = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for one in map(torch.device, every if device == "auto" else [device]):
        if one.type == "cuda":
            free, total = torch.cuda.mem_get_info(one)
            if (taken := (total - free - torch.cuda.memory_reserved(one)) / 2**30) > TAKEN:
                warnings.append(
                    f"other processes hold {taken:.1f} GiB of {one}: speeds will be theirs too. "
                    "Wait for them, or choose another device"
                )
    # 2. The CPU is busy with others' work to a part alone.
    if (busy := load_by_others()) > BUSY:
        warnings.append(
            f"other processes keep {busy:.1f} cores busy: speeds will be low and vary. Wait until "
            "the machine is idle"
        )
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return warnings

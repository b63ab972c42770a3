"""The clock of every measurement, the order of what is compared by it, whether it would time this
process or its neighbours, and what memory is left."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TypeVar

import psutil
import torch

from eagle_fsd.config import BadInput
from eagle_fsd.engine.threads import load_by_others
from eagle_fsd.models.load import check_device

BUSY = 0.5  # cores that others may keep busy
Item = TypeVar("Item")


def synchronized_time(device: torch.device) -> float:
    """Seconds, read after the device has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def free_bytes(device: torch.device) -> int:
    """Of the device's memory, what torch holds unused included."""
    if device.type != "cuda":
        return psutil.virtual_memory().available
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def held_gigabytes(device: torch.device) -> float:
    """The most that this process has held so far, of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


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
    """Look around right before something is timed, on auto at every CUDA device: BadInput where
    another process uses one. Returns warnings, printed too."""
    check_device(device)
    check_one_process()
    warnings = []
    # 1. A CUDA device is this process's alone, by what nvidia-smi lists.
    every = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for one in map(torch.device, every if device == "auto" else [device]):
        if one.type != "cuda":
            continue
        torch.zeros(1, device=one)  # a context of our own, so that one of the listed is us
        query = ["nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(one).uuid}"]
        query += ["--query-compute-apps=pid", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
            listed = [int(line) for line in done.stdout.split()]
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            warnings.append(f"cannot find out whether other processes use {one}: {error}")
            continue
        if others := other_processes(listed, os.getpid()):
            raise BadInput(
                f"other processes use {one} (by nvidia-smi: {', '.join(map(str, others))}): speeds "
                "would be theirs too. Wait for them, or choose another device"
            )
        if not listed:
            warnings.append(f"cannot find out who uses {one}: nvidia-smi does not list even us")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    # 2. The CPU is busy with others' work to a part alone.
    return warnings + warn_of_busy_cpu()


def warn_of_busy_cpu() -> list[str]:
    """What is said on standard error where others keep the CPU's cores busy, else nothing."""
    if (busy := load_by_others()) <= BUSY:
        return []
    warning = (
        f"other processes keep {busy:.1f} cores busy: speeds will be low and vary. Wait until the "
        "machine is idle"
    )
    print(f"warning: {warning}", file=sys.stderr)
    return [warning]


def other_processes(listed: list[int], own: int) -> list[int]:
    """The listed processes that are not this one. In a container the ids are the host's and ours
    is not recognised: a single one is ours all the same."""
    if own in listed:
        return [process for process in listed if process != own]
    return listed if len(listed) > 1 else []

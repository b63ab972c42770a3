"""Whether a timing would measure this process, or its neighbours; and what else decides it."""

import os
import subprocess
import time
from pathlib import Path

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.models.load import check_device

BUSY = 0.5  # cores that others may keep busy
SAMPLE_SECONDS = 0.5


def check_timing_alone(device: str) -> list[str]:
    """Look around before a timed run; takes half a second.

    Args:
        device: what is timed, auto for every CUDA device. On CUDA the driver's tool nvidia-smi is
            asked, and a context is made.

    Returns:
        Warnings: others keep the CPU busy, or it cannot be told who is at work.

    Raises:
        BadInput: no such device, this is one of several processes of a launcher, or another
            process has the CUDA device in use.
    """
    check_device(device)
    count = process_count()
    if count > 1:
        raise BadInput(
            f"{count} processes share this machine's time: speeds are of one process alone. Start "
            "the command without a launcher, or ask for no timing"
        )
    warnings = [warning for used in _cuda_devices(device) for warning in _check_cuda(used)]
    busy = load_by_others()
    if busy is None:
        warnings.append("cannot tell whether others keep the CPU busy: there is no /proc/stat")
    elif busy > BUSY:
        warnings.append(
            f"other processes keep {busy:.1f} cores busy: speeds will be low and vary. Wait until "
            "the machine is idle"
        )
    return warnings


def describe_machine() -> dict[str, int | str | float | None]:
    """Threads, OpenMP's wait policy, and the cores that others keep busy now (None: unknown)."""
    load = load_by_others()
    return {
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load_by_others": None if load is None else round(load, 2),
    }


def process_count() -> int:
    """How many processes a launcher (accelerate, torchrun) has started for this command."""
    told = os.environ.get("WORLD_SIZE", "1")
    if not told.isdecimal():
        raise BadInput(f"WORLD_SIZE is {told!r}, no number of processes: unset it")
    return int(told)


def load_by_others(seconds: float = SAMPLE_SECONDS) -> float | None:
    """Cores' worth of time that others took, of the cores this process may run on; None where
    there is no /proc/stat.

    A sample of now, unlike the load average, which still holds what ended a minute ago. Time that
    a hypervisor gave away (steal) counts; children of this process count as others.
    """
    if not Path("/proc/stat").is_file():
        return None
    busy, own, began = _busy_seconds(), time.process_time(), time.perf_counter()
    time.sleep(seconds)
    busy, own = _busy_seconds() - busy, time.process_time() - own
    return max(0.0, (busy - own) / (time.perf_counter() - began))


def _busy_seconds() -> float:
    """Since boot, of the cores this process may run on."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in cores:
            # user nice system idle iowait irq softirq steal; guest time is part of user's
            user, nice, system, _, _, *others = map(int, fields[:8])
            ticks += user + nice + system + sum(others)
    return ticks / os.sysconf("SC_CLK_TCK")


def _cuda_devices(device: str) -> list[torch.device]:
    if device == "auto":
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [torch.device(device)] if torch.device(device).type == "cuda" else []


def _check_cuda(device: torch.device) -> list[str]:
    """Refuses a device that others use; a warning where that cannot be told."""
    torch.zeros(1, device=device)  # a context of our own, so that one of the listed is us
    query = ["nvidia-smi", f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"]
    query += ["--query-compute-apps=pid", "--format=csv,noheader"]
    unknown = f"cannot tell whether other processes use {device}"
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        listed = [int(line) for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return [f"{unknown}: {error}"]
    if not listed:
        return [f"{unknown}: nvidia-smi does not list even this one"]
    others = other_processes(listed, os.getpid())
    if others:
        raise BadInput(
            f"other processes use {device} (by nvidia-smi: {', '.join(map(str, others))}): speeds "
            "would be theirs too. Wait for them, or choose another device"
        )
    return []


def other_processes(listed: list[int], own: int) -> list[int]:
    """The listed processes that are not this one.

    In a container the ids are the host's, so that our own may not be recognised: one is ours all
    the same.
    """
    if own in listed:
        return [process for process in listed if process != own]
    return listed if len(listed) > 1 else []

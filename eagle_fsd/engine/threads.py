"""How many threads a CPU's products get: of torch's own number the share of the machine that other
processes leave free.

OpenMP's threads wait for each other after every product: beside one busy process two threads on two
cores are a twentieth as fast as alone, and one thread loses nothing (results/speed_threads).
"""

import math
import os
import time

import psutil
import torch


def choose_threads(device: str) -> str:
    """Lower torch's threads where others keep this process's cores busy, before weights load, and
    say how many there are; "" on an accelerator, whose products have no threads here."""
    if device != "cpu":
        return ""
    default, cores = torch.get_num_threads(), len(_own_cores())
    plain = "with 1 thread" if default == 1 else f"with {default} threads"
    # A number that somebody chose stays, also by a torch.set_num_threads to another than torch's.
    named = os.environ.get("OMP_NUM_THREADS") or os.environ.get("MKL_NUM_THREADS")
    if named or default == 1:
        return plain
    try:
        if default not in (cores, psutil.cpu_count(logical=False)):
            return plain
        busy = load_by_others()
    except (OSError, psutil.Error):  # the system tells none, such as a container without /proc
        return plain
    # Half a thread's worth of neighbours is overlooked.
    threads = max(1, math.ceil(default * (1 - busy / cores) - 0.5))
    if threads == default:
        return plain
    torch.set_num_threads(threads)
    return (
        f"with {threads} of {default} threads, since other processes keep {busy:.1f} cores busy "
        "and threads wait for each other (OMP_NUM_THREADS sets another number)"
    )


def load_by_others(seconds: float = 0.5) -> float:
    """Cores' worth of time that others take now, of the cores this process may run on; children of
    this process count as others."""
    psutil.cpu_percent(percpu=True)  # from now on
    own, began = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    percents = psutil.cpu_percent(percpu=True)
    own = (time.process_time() - own) / (time.perf_counter() - began)
    here = [percents[core] for core in _own_cores() if core < len(percents)]
    return max(0.0, sum(here) / 100 - own)


def _own_cores() -> list[int]:
    """Numbers of the cores this process may run on; all where the system does not list them."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

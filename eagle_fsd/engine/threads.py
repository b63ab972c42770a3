"""How many threads a CPU's products get: of torch's own number the share of the machine that other
processes leave free.

OpenMP's threads meet after every product and spin until the last one is there. A thread that has to
share its core makes all of them wait for the scheduler, some hundred times a token: beside one busy
process two threads on two cores are not half as fast as alone, they are a twentieth or less. One
thread loses nothing there. To wait asleep (OMP_WAIT_POLICY=PASSIVE) costs an idle machine up to a
third of its speed; results/speed_threads has the figures.
"""

import math
import os
import time

import psutil
import torch

NAMED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def choose_threads(device: str) -> str:
    """Lower torch's threads where others keep this process's cores busy.

    To be called before weights load. What others begin or end later changes nothing: a run has one
    number of threads. A number that somebody chose stays: by a variable of NAMED, or by a
    torch.set_num_threads to another than torch's own; so does one on an accelerator, whose products
    have no threads here.

    Returns:
        The number of threads and why it is lowered, for the line that says what is loaded: such as
        "with 2 threads"; "" on an accelerator.
    """
    if device != "cpu":
        return ""
    default, cores = torch.get_num_threads(), _own_cores()
    plain = "with 1 thread" if default == 1 else f"with {default} threads"
    if any(map(_is_number, NAMED)) or default == 1:
        return plain
    try:
        if default not in (len(cores), psutil.cpu_count(logical=False)):
            return plain
        busy = load_by_others(0.2)
        if free_threads(default, busy, len(cores)) < default:
            busy = min(busy, load_by_others(0.5))  # a short burst is no neighbour
    except (OSError, psutil.Error):  # the system lists none, such as a container without /proc
        return plain
    if (threads := free_threads(default, busy, len(cores))) == default:
        return plain
    torch.set_num_threads(threads)
    return (
        f"with {threads} of {default} threads, since other processes keep {busy:.1f} cores busy "
        "and threads wait for each other (OMP_NUM_THREADS sets another number)"
    )


def free_threads(default: int, busy: float, cores: int) -> int:
    """The share of the default's threads that busy cores leave, at least one; half a thread's worth
    of neighbours may be overlooked.

    Example: of 2 on 2 cores, one busy, it is 1; of 8 on 16 hyperthreads, one busy, 7, since a
    neighbour takes the half of a core; of 64 on 64 cores, .4 busy, 64.
    """
    return max(1, math.ceil(default * (1 - busy / cores) - 0.5))


def load_by_others(seconds: float = 0.5) -> float:
    """Cores' worth of time that others took, of the cores this process may run on.

    A sample of now, unlike the load average, which still holds what ended a minute ago. Time that
    a hypervisor gave away (steal) counts; children of this process count as others.
    """
    psutil.cpu_percent(percpu=True)  # from now on
    own, began = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    percents = psutil.cpu_percent(percpu=True)
    own = (time.process_time() - own) / (time.perf_counter() - began)
    if len(percents) > max(cores := _own_cores()):  # else offline cores shift them
        percents = [percents[core] for core in cores]
    return max(0.0, sum(percents) / 100 - own)


def _is_number(variable: str) -> bool:
    """OpenMP takes a number, or a list of them for nested regions, and ignores all else."""
    first = os.environ.get(variable, "").partition(",")[0].strip()
    return first.isdecimal() and int(first) > 0


def _own_cores() -> list[int]:
    """Numbers of the cores this process may run on; all where the system does not list them."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

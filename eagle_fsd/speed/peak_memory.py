"""Peak memory of a piece of work, above what was held before it; exact, unlike the resident set."""

import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Most bytes that the work holds at a time; it is slowed down, so do not time it.

    On CUDA the allocator's own peak. On a CPU the running sum of what torch's allocator gave out
    and took back, from the profiler's memory events: tensors, temporaries of operators, weights
    that oneDNN has packed. Blocks freed inside that were allocated before are not counted as given
    back, so work that drops old buffers should drop them before. Neither counts what a library
    (MKL, cuBLAS, OpenMP) takes from the system by itself.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # torch 2.13's profiler tells of every start and stop below this level
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as finished:
        work()
    events = finished.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in changes), initial=0))

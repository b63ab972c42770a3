"""Peak memory of a piece of work, above what was held before it; exact, unlike the resident set.

CUDA: the allocator's own peak. CPU: the running sum of what torch's CPU allocator gave out and took
back, from the profiler's memory events: tensors, temporaries of operators, weights that oneDNN has
packed. Neither counts what a library (MKL, cuBLAS, OpenMP) takes from the system by itself.
"""

import os
from types import TracebackType

import torch
from torch.profiler import ProfilerActivity, profile


class PeakAllocated:
    """Measures a block of work; it makes the work slower, so do not time it.

    On a CPU, blocks freed inside that were allocated before it are not counted as given back, so
    work that drops old buffers should drop them before.

    Example:
        >>> with PeakAllocated(torch.device("cpu")) as memory:
        ...     work()
        >>> memory.peak_bytes

    Attributes:
        peak_bytes: most bytes held at a time, above what was held at the start.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._profile: profile | None = None
        self.peak_bytes = 0

    def __enter__(self) -> "PeakAllocated":
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            # torch 2.13's profiler tells of every start and stop below this level
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self._profile.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._profile is None:
            torch.cuda.synchronize(self._device)
            self.peak_bytes = torch.cuda.max_memory_allocated(self._device) - self._before
            return
        self._profile.__exit__(kind, error, trace)
        if kind is None:
            self.peak_bytes = _peak(self._profile)


def _peak(finished: profile) -> int:
    """The largest running sum of allocations (positive) and releases (negative)."""
    events = finished.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    level = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        level += change
        peak = max(peak, level)
    return peak

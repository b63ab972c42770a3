"""Peak memory of one piece of work as the system sees it, above what was there before.

On CUDA: torch's max_memory_allocated. On Linux CPUs: the kernel's high-water mark of the resident
set (VmHWM), set back before. Elsewhere: nothing is measured. PeakAllocated of engine_time/memory.py
counts what torch's allocators give out instead, on a CPU too.
"""

import ctypes
import gc
from pathlib import Path

import torch

METHODS = {
    "cuda": "torch.cuda.max_memory_allocated",
    "cpu": "VmHWM of /proc/self/status, set back through /proc/self/clear_refs",
}


class PeakResident:
    """Measures the body of a `with` statement.

    What the allocator holds back from earlier work would hide new memory, so it is returned to the
    system first. That makes the body slower: do not time it.

    Attributes:
        bytes: peak above the state before; None where it cannot be measured.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.bytes: int | None = None

    def __enter__(self) -> "PeakResident":
        gc.collect()
        self._before = _start_cuda(self._device) if self._on_cuda else _start_process()
        return self

    def __exit__(self, *error) -> None:
        if self._before is not None:
            on_cuda = self._on_cuda
            peak = torch.cuda.max_memory_allocated(self._device) if on_cuda else _status("VmHWM")
            self.bytes = peak - self._before

    @property
    def _on_cuda(self) -> bool:
        return self._device.type == "cuda"


def _start_cuda(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _start_process() -> int | None:
    """Set the high-water mark back to the present; the bytes resident now, or None."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # 5: reset VmHWM (proc_pid_clear_refs(5))
    except OSError:
        return None
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # another C library than glibc keeps what it keeps
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> int:
    """Bytes from a line such as "VmHWM:    123 kB"."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {key}")

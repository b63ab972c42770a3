"""What of the machine decides a speed: threads, their way of waiting, and who else is at work."""

import os
import sys
import time

import torch

BUSY = 0.5  # runnable processes of others, averaged over the last minute


def describe_machine() -> dict[str, int | str | float]:
    """Threads, OpenMP's wait policy, and the load by others in the last minute."""
    return {
        "threads": torch.get_num_threads(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load_by_others": round(load_by_others(), 2),
    }


def load_by_others() -> float:
    """The one-minute load average without what this process itself has run in that time."""
    own = min(time.process_time(), 60) / 60
    return max(0.0, os.getloadavg()[0] - own)


def warn_if_busy(load: float) -> None:
    """A benchmark on a busy machine measures the neighbours."""
    if load > BUSY:
        print(
            f"warning: other processes keep {load:.1f} cores busy (average of the last minute); "
            "speeds will be low and vary. Wait until the machine is idle",
            file=sys.stderr,
        )

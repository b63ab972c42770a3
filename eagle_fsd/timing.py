"""The clock of every measurement."""

import time

import torch


def synchronized_time(device: torch.device) -> float:
    """Seconds, read after the device has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

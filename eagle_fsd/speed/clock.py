"""The clock of every measurement."""

import time

import torch

ROUND_PHASES = ("propose", "verify", "accept", "commit", "host")


def synchronized_time(device: torch.device) -> float:
    """Seconds, read after the device has finished what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class PhaseClock:
    """Where the time of an answer goes: `seconds` by phase, the device synchronised at every lap.

    `host` is what is left of a round: trimming, stop strings, bookkeeping. An answer with a clock
    is a little slower than one without; on an accelerator much, since phases no longer overlap.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.restart()

    def restart(self) -> None:
        """Forget what was measured so far."""
        self.seconds = dict.fromkeys(("prefill", *ROUND_PHASES), 0.0)
        self._last = synchronized_time(self._device)

    def lap(self, phase: str) -> None:
        """The time since the last lap was this phase's."""
        now = synchronized_time(self._device)
        self.seconds[phase] += now - self._last
        self._last = now

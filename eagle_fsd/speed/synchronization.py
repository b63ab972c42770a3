"""How often a round makes the host wait for the accelerator."""

import warnings
from collections.abc import Iterator

import torch

from eagle_fsd.decoding.loop import Round


def synchronizations_per_round(rounds: Iterator[Round], device: torch.device) -> float | None:
    """Waits of the host in all rounds after prefill / rounds; None on a CPU or without a round.

    torch warns at every operation that synchronises (set_sync_debug_mode); the warnings are
    counted.

    Args:
        rounds: from decode_rounds, not begun yet and without a clock, whose laps synchronise.
    """
    if device.type != "cuda":
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(rounds)  # prefill
            before = len(caught)
            count = sum(1 for _ in rounds)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = sum("synchroniz" in str(warning.message) for warning in caught[before:])
    return waits / count if count else None

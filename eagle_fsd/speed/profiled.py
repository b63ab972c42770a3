"""Where an answer of our loop spends time and memory."""

import gc
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate, islice, pairwise

import torch
from torch.profiler import ProfilerActivity, profile

from eagle_fsd.arms import Arm
from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.timing import synchronized_time

# host is what is left of a round: trimming, stop strings, bookkeeping
ROUND_PHASES = ("propose", "verify", "accept", "commit", "host")
NEW_TOKENS = 64  # of a profiled answer
MEMORY_ROUNDS = 8  # the peak is prefill's or a round's


# What is noted before and after a method of the target or the drafter: the phase that has ended
# there. Between verification and commit is acceptance.
LAPS: dict[str, tuple[str | None, str | None]] = {
    "propose": ("host", "propose"),
    "verify": (None, "verify"),
    "commit": ("accept", None),
    "observe": (None, "commit"),
}


class Lapped:
    """A target or a drafter seen from outside, whose methods named in LAPS give `lap` the phase
    that has just ended."""

    def __init__(self, inner: Target | Drafter, lap: Callable[[str], None]):
        self._inner, self._lap = inner, lap

    def __getattr__(self, name: str) -> object:
        value = getattr(self._inner, name)
        if name not in LAPS:
            return value
        before, after = LAPS[name]

        def lapped(*args: object, **settings: object) -> object:
            if before:
                self._lap(before)
            result = value(*args, **settings)
            if after:
                self._lap(after)
            return result

        return lapped


def profile_arm(arm: Arm, model: Model, prompt: list[int], sampling: SamplingConfig) -> dict:
    """Answer a prompt four times, since what measures one thing slows the others; the first time
    warms up. Stop tokens are passed over.

    Returns:
        peak_memory_bytes of prefill and the first rounds, above what was there before;
        start_seconds, of prefill and the first round, in which a drafter takes in the prompt; then
        of the other rounds: their number, round_tokens, round_seconds without laps and
        phase_seconds by laps (which wait for the device at every phase).
    """
    target, drafter = model.target, arm.build_drafter(model)
    now = partial(synchronized_time, target.device)
    laps: list[tuple[str, float]] = []
    config = DecodeConfig(arm.policy(sampling), StopConfig(NEW_TOKENS))

    def beginning() -> None:
        steps = decode_rounds(target, drafter, prompt, config)
        deque(islice(steps, 1 + MEMORY_ROUNDS), maxlen=0)

    def timed(target: Target | Lapped, drafter: Drafter | Lapped) -> dict:
        began = now()
        steps = decode_rounds(target, drafter, prompt, config)
        deque(islice(steps, 2), maxlen=0)
        started = now()
        laps[:] = [("start", started)]
        tokens = [len(step.acceptance.tokens) for step in steps]
        return {
            "start_seconds": started - began,
            "round_seconds": now() - started,
            "rounds": len(tokens),
            "round_tokens": sum(tokens),
        }

    beginning()
    target.close()  # what the last answer holds is no part of this one
    drafter.reset(1, prompt[0])
    gc.collect()
    peak = peak_bytes(target.device, beginning)
    timed(*(Lapped(part, lambda phase: laps.append((phase, now()))) for part in (target, drafter)))
    seconds = dict.fromkeys(ROUND_PHASES, 0.0)
    for (_, before), (phase, end) in pairwise(laps):
        seconds[phase] += end - before
    whole = {"peak_memory_bytes": peak, "phase_seconds": seconds}
    return whole | timed(target, drafter)


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Most bytes that the work holds at a time, above what was held before it; exact, unlike the
    resident set. The work is slowed down, so do not time it.

    On CUDA the allocator's own peak. On a CPU the running sum of the profiler's memory events:
    tensors, temporaries of operators, weights that oneDNN has packed. Blocks freed inside that were
    allocated before are not counted as given back, so drop old buffers before. Neither counts what
    a library (MKL, cuBLAS, OpenMP) takes from the system by itself.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # torch 2.13's profiler reports every start and stop below this level
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as finished:
        work()
    events = finished.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in changes), initial=0))

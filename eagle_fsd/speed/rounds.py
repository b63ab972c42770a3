"""Where an answer of our loop spends time and memory, at prompts of several lengths."""

import gc
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice, pairwise

import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from eagle_fsd.arms import PLAIN, Arm
from eagle_fsd.config import CPU_TREE, SamplingConfig, tree_name
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.runs.folder import Run
from eagle_fsd.speed.forwards import WIDE, forward_rows, time_forwards
from eagle_fsd.timing import check_timing_alone, rotated, synchronized_time

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
# How often the likeliest child of a level's best path is right, if that is (results/priced_trees)
FIRST_CHILD = 0.6
PROFILES = "profiles"  # file of records
FORWARDS = "forwards"  # in the place of an arm


def profile_contexts(
    run: Run,
    model: Callable[[], Model],
    arms: Sequence[Arm],
    lengths: Sequence[int],
    text: str,
    sampling: SamplingConfig,
    *,
    device: str,
) -> tuple[list[dict], list[dict]]:
    """Measure what the run, whose key is (arm, context), lacks; returns the rows of round_rows, and
    those of forward_rows with their context.

    Args:
        model: loads it, or gives the one that is loaded; asked only where something is missing.
        lengths: tokens of the prompts, which are the ends of a user turn of the text repeated.
    """
    found = run.records[PROFILES]
    jobs = [
        (arm, length)
        for turn, length in enumerate(lengths)
        for arm in [*rotated(arms, turn), None]
        if (arm.text if arm else FORWARDS, length) not in found
    ]
    if jobs:
        warnings = check_timing_alone(device)
        model()  # a session records the threads that loading chose
        run.begin_session(timed=True, warnings=warnings)
    for arm, length in tqdm(jobs, desc="rounds by context", disable=not jobs):
        while len(prompt := model().prompt_ids(text)) < length:
            text += "\n\n" + text
        prompt = prompt[-length:]
        record = {"arm": arm.text if arm else FORWARDS, "context": length}
        if arm:
            record |= profile_arm(arm, model(), prompt, sampling)
        else:
            record["seconds"] = time_forwards(model(), prompt)
        run.add(PROFILES, record)
    rows = round_rows([found[arm.text, length] for length in lengths for arm in arms])
    single = [
        {"context": length} | row
        for length in lengths
        for row in forward_rows(found[FORWARDS, length]["seconds"])
    ]
    return rows, single


def profile_arm(arm: Arm, model: Model, prompt: list[int], sampling: SamplingConfig) -> dict:
    """Answer a prompt four times, since what measures one thing slows the others: to warm up, for
    the memory, by laps, which wait for the device at every phase, and without them. Stop tokens are
    passed over; prefill and the first round, in which a drafter takes in the prompt, are the
    record's start."""
    target, drafter = model.target, arm.build_drafter(model)
    now = partial(synchronized_time, target.device)
    laps: list[tuple[str, float]] = []
    config = DecodeConfig(arm.policy(sampling), StopConfig(NEW_TOKENS))

    def beginning() -> None:
        deque(islice(decode_rounds(target, drafter, prompt, config), 1 + MEMORY_ROUNDS), maxlen=0)

    def timed(target: "Target | Lapped", drafter: "Drafter | Lapped") -> dict:
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
    gc.collect()
    peak = peak_bytes(target.device, beginning)
    timed(*(Lapped(part, lambda phase: laps.append((phase, now()))) for part in (target, drafter)))
    seconds = dict.fromkeys(ROUND_PHASES, 0.0)
    for (_, before), (phase, end) in pairwise(laps):
        seconds[phase] += end - before
    return {"peak_memory_bytes": peak, "phase_seconds": seconds} | timed(target, drafter)


class Lapped:
    """A target or a drafter seen from outside, whose methods named in LAPS give `lap` the phase
    that has just ended."""

    def __init__(self, inner: Target | Drafter, lap: Callable[[str], None]):
        self._inner, self._lap = inner, lap

    def begin(self, *args: object) -> "TreeCache | Lapped":
        """A target's is a cache, which has no phases; a drafter's a drafter."""
        begun = self._inner.begin(*args)
        return begun if isinstance(begun, TreeCache) else Lapped(begun, self._lap)

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


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Most bytes that the work holds at a time, above what was held before it, without what a
    library (MKL, cuBLAS, OpenMP) takes from the system by itself. On a CPU by the profiler, which
    slows the work down and does not see that a block of before is given back: drop old buffers."""
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


def round_rows(records: list[dict]) -> list[dict]:
    """What an average round costs: milliseconds, also by phase, and as a multiple of plain's in the
    same context; None where one draft filled the answer."""
    rows = []
    for record in records:
        count = record["rounds"] or None
        seconds = {"ms_per_round": record["round_seconds"], **record["phase_seconds"]}
        row = {key: record[key] for key in ("arm", "context", "rounds", "round_tokens")}
        for name in ("ms_per_round", *ROUND_PHASES):
            row[name] = count and 1000 * seconds[name] / count
        row["start"] = 1000 * record["start_seconds"]
        row["peak_mebibytes"] = record["peak_memory_bytes"] / 2**20
        rows.append(row)
    plain = {row["context"]: row["ms_per_round"] for row in rows if row["arm"] == PLAIN}
    for row in rows:
        mine, base = row["ms_per_round"], plain.get(row["context"])
        row["round_vs_plain"] = mine / base if mine and base else None
    return rows


def price_lines(rounds: list[dict], single: list[dict]) -> list[str]:
    """By context the tree whose prices are a node's, a level's and a token's cost, if there is a
    head and an arm with the exact rule and its drafts (docs/speed.md#trees-by-price)."""
    lines = []
    for context in sorted({row["context"] for row in rounds}):
        ms = {row["forward"]: row["median_ms"] for row in single if row["context"] == context}
        # a node is the mean of those from a single one to WIDE nodes
        node = (ms[f"verify {WIDE}"] - ms["verify 1"]) / (WIDE - 1)
        level = next((ms[name] for name in ms if name.startswith("draft level")), None)
        # a token is the fastest arm's whose drafts are the head's: long prompts repeat themselves
        # for an n-gram table
        token = min(
            (
                row["rounds"] * row["ms_per_round"] / row["round_tokens"]
                for row in rounds
                if row["context"] == context
                and (row["arm"] == "exact" or row["arm"].startswith("exact@eagle"))
                and row["rounds"]
            ),
            default=None,
        )
        if level is None or token is None or min(node, node + level) <= 0:  # noise
            continue
        keep, deepen = node / token, (level + node) / token / FIRST_CHILD
        keep, deepen = (min(1.0, float(f"{price:.2g}")) for price in (keep, deepen))
        tree = replace(CPU_TREE, keep=keep, deepen=deepen)
        lines.append(
            f"Trees by price at {context} tokens: a node takes {node:.2f} ms, a level {level:.2f}, "
            f"a token {token:.2f}, so the tree for this machine is exact@eagle:{tree_name(tree)}"
        )
    return lines

"""Time and memory of rounds at a context length: the plain loop against exact EAGLE-2.

Axes: T newly committed tokens, F features.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

import torch

from eagle_fsd.config import AcceptConfig
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.random_weights import cache_row_bytes
from eagle_fsd.speed.clock import synchronized_time
from eagle_fsd.speed.device_memory import PeakAllocated

WARM_UP_PAIRS = 2  # the drafter's prefill is in its first round
MEMORY_ROUNDS = 3
SLACK = 1.1  # the bound is passed by at most 10 %


class AlternatingDrafter:
    """Drafters that take turns on one sequence: all observe, one proposes.

    So two kinds of rounds are timed side by side at the same context, and the prompt is run once. A
    drafter's round takes in what the others have committed since its last one, a row or two more
    than alone.
    """

    def __init__(self, drafters: Sequence[Drafter]):
        self.drafters = list(drafters)
        self.max_nodes = max(drafter.max_nodes for drafter in self.drafters)

    def reset(self, capacity: int) -> None:
        self._turns = cycle(self.drafters)
        for drafter in self.drafters:
            drafter.reset(capacity)

    def observe(self, features_TF: torch.Tensor, next_token_T: torch.Tensor) -> None:
        for drafter in self.drafters:
            drafter.observe(features_TF, next_token_T)

    def propose(self) -> DraftTree:
        return next(self._turns).propose()


def tokens_needed(rounds: int, *, tree_depth: int) -> int:
    """Most tokens that `rounds` pairs of a plain and a speculative round commit, with warm-up."""
    return 1 + (rounds + WARM_UP_PAIRS) * (1 + tree_depth + 1)


@dataclass(frozen=True)
class PairTimes:
    """Milliseconds of each plain and each exact round, and the tokens of the exact ones."""

    plain_ms: list[float]
    exact_ms: list[float]
    exact_tokens: list[int]

    def figures(self) -> dict[str, float]:
        plain, exact = median(self.plain_ms), median(self.exact_ms)
        return {
            "plain_round_ms": plain,
            "exact_round_ms": exact,
            "round_ratio": exact / plain,
            "tokens_per_round": sum(self.exact_tokens) / len(self.exact_tokens),
        }


def time_pairs(
    target: Target, drafter: EagleDrafter, prompt: list[int], *, rounds: int
) -> PairTimes:
    """Plain and exact rounds by turns in the decoding loop, without a clock inside.

    A round's time is that between two results of the loop: propose, verify, accept, commit, host.
    """
    turns = AlternatingDrafter([RootDrafter(), drafter])
    config = _config(tokens_needed(rounds, tree_depth=drafter.tree_config.tree_depth))
    steps = decode_rounds(target, turns, prompt, config)
    next(steps)  # prefill
    ms: tuple[list[float], list[float]] = ([], [])
    tokens: list[int] = []
    for number in range(2 * (rounds + WARM_UP_PAIRS)):
        began = synchronized_time(target.device)
        step = next(steps)
        passed = synchronized_time(target.device) - began
        if number < 2 * WARM_UP_PAIRS:
            continue
        ms[number % 2].append(1e3 * passed)
        if number % 2:
            tokens.append(len(step.acceptance.tokens))
    return PairTimes(*ms, tokens)


def loop_peak(
    target: Target, drafter: Drafter, prompt: list[int], *, new_tokens: int, level: int
) -> int:
    """Peak bytes of prefill and a few rounds, above `level`; see PeakAllocated.

    Args:
        drafter: fresh, or what it still holds is counted.
    """
    target.start(1)  # what is left of the last sequence is dropped, but for recorded graphs'
    gc.collect()
    with PeakAllocated(target.device, level=level) as memory:
        steps = decode_rounds(target, drafter, prompt, _config(new_tokens))
        for _ in islice(steps, 1 + MEMORY_ROUNDS):
            pass
    return memory.peak_bytes


def bound_parts(drafter: EagleDrafter, *, weights: int, capacity: int) -> dict[str, int]:
    """Bytes that a speculative loop may take beside the plain one.

    Args:
        weights: bytes of the head as it was loaded.
        capacity: most tokens of the sequence, prompt and budget.

    Returns:
        head: weights, with the rows that a reduced vocabulary copies out of the target's lm_head;
        cache: the head's keys and values of the sequence, one tree and the expanded nodes;
        logit_rows: the draft logits of every expanded node.
    """
    head, tree, target = drafter.head, drafter.tree_config, drafter.target
    reduced = head.config.draft_vocab_size
    head_bytes = weights
    if reduced and head.lm_head is None:
        head_bytes += reduced * target.hidden_size * target.dtype.itemsize
    rows = capacity + drafter.max_nodes + tree.num_expanded
    return {
        "head": head_bytes,
        "cache": rows * cache_row_bytes(head.config, target.dtype),
        "logit_rows": tree.num_expanded * drafter.draft_vocab_size * target.dtype.itemsize,
    }


def memory_figures(plain_peak: int, exact_peak: int, held: int, parts: dict[str, int]) -> dict:
    """Whether the speculative loop stays within its bound.

    Args:
        plain_peak, exact_peak: from loop_peak; the head was there before both.
        held: bytes of the drafter before the loop: its head and what was built from it.
        parts: from bound_parts.

    Returns:
        The given, `above_plain_bytes` = exact - plain + held, the bound (sum of parts + 10 %), and
        whether it is kept.
    """
    above = exact_peak - plain_peak + held
    bound = int(SLACK * sum(parts.values()))
    return {
        "plain_peak_bytes": plain_peak,
        "exact_peak_bytes": exact_peak,
        "drafter_bytes": held,
        "above_plain_bytes": above,
        "bound_parts_bytes": parts,
        "bound_bytes": bound,
        "within_bound": above <= bound,
    }


def _config(new_tokens: int) -> DecodeConfig:
    return DecodeConfig(AcceptConfig("exact"), stop=StopConfig(new_tokens))

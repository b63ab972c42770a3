"""Milliseconds of single forwards, measured in turn in one process.

    stock            the stock transformers model, one token, DynamicCache
    verify 1         our plain step: the root alone
    verify 8 ...     a tree of so many nodes (binary, random tokens)
    draft level      one level of the draft: head, readout, choice of the next frontier

A draft level is the difference of two whole drafts of different depth, divided by the levels
between them. Every measured step is committed, so the context grows by one token a measurement.

Axes: L context tokens, F features.
"""

import statistics
from collections.abc import Callable

import torch
from transformers import DynamicCache

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.speed.clock import synchronized_time

WIDTHS = (1, 8, 16, 24, 32, 60)
DEPTHS = (2, 6)  # of the two drafts whose difference is the cost of a level
WARM_UP = 3

Step = Callable[[], float]  # runs once; seconds


def binary_tree(width: int, vocab_size: int, device: torch.device) -> DraftTree:
    """A tree of `width` nodes in level order, each with up to two children, of random tokens."""
    generator = torch.Generator().manual_seed(width)
    tokens = torch.randint(vocab_size, (width,), generator=generator).tolist()
    return DraftTree.from_parents(
        tokens, [max(0, node - 1) // 2 for node in range(width)], device=device
    )


def context_rows(repeats: int) -> int:
    """By how many positions a measurement goes beyond its context."""
    return (repeats + WARM_UP) * len(WIDTHS) + max(WIDTHS)


@torch.inference_mode()
def measure_steps(
    target: Target, drafter: EagleDrafter | None, context: list[int], repeats: int
) -> dict[str, list[float]]:
    """Time every step `repeats` times, all in turn.

    Args:
        drafter: its head and branch_top_k give the draft level; None: no such row.
        context: prompt tokens before the first step, L.

    Returns:
        step -> seconds of every measurement, those of the warm-up left out. Two rows,
        "draft 2" and "draft 6", stand for the whole drafts from which `draft_level` is computed.
    """
    context_L = torch.tensor(context, device=target.device)
    rounds = repeats + WARM_UP
    target.start(len(context) + context_rows(repeats))
    _, features_LF = target.prefill(context_L)
    steps = {"stock": stock_step(target, context_L)}
    for width in WIDTHS:
        steps[f"verify {width}"] = verify_step(target, width)
    for depth in DEPTHS if drafter is not None else ():
        steps[f"draft {depth}"] = draft_step(drafter, depth, context_L, features_LF, rounds)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        first = number % len(names)  # rotated, so that no step always follows the same one
        for name in names[first:] + names[:first]:
            took = steps[name]()
            if number >= WARM_UP:
                seconds[name].append(took)
    target.start(1)
    return seconds


def stock_step(target: Target, context_L: torch.Tensor) -> Step:
    """One token through the stock model, its logits included."""
    assert target.has_stock, "load with keep_stock=True"
    cache = DynamicCache(config=target.model.config)
    target.model(input_ids=context_L[None], past_key_values=cache, logits_to_keep=1)
    token_11 = context_L[None, -1:]

    def step() -> float:
        began = synchronized_time(target.device)
        target.model(input_ids=token_11, past_key_values=cache)
        return synchronized_time(target.device) - began

    return step


def verify_step(target: Target, width: int) -> Step:
    """Verification of a tree; the root is committed outside the time."""
    tree = binary_tree(width, target.vocab_size, target.device)
    root_1 = torch.zeros(1, dtype=torch.int64, device=target.device)

    def step() -> float:
        began = synchronized_time(target.device)
        target.verify(tree)
        seconds = synchronized_time(target.device) - began
        target.commit(root_1)
        return seconds

    return step


def draft_step(
    drafter: EagleDrafter,
    depth: int,
    context_L: torch.Tensor,
    features_LF: torch.Tensor,
    rounds: int,
) -> Step:
    """A whole draft of so many levels, after one committed token."""
    K = drafter.tree_config.branch_top_k
    pool = TreeConfig(depth, depth, K).pool_size
    drafts = min(max(drafter.tree_config.num_draft_tokens, depth), pool)
    own = drafter.with_tree(TreeConfig(drafts, depth, K))
    own.reset(context_L.shape[0] + rounds + 1)
    own.observe(features_LF, context_L.roll(-1))
    own.propose()

    def step() -> float:
        own.observe(features_LF[-1:], context_L[-1:])
        began = synchronized_time(context_L.device)
        own.propose()
        return synchronized_time(context_L.device) - began

    return step


def draft_level(seconds: dict[str, list[float]]) -> list[float] | None:
    """Seconds of one level, from pairs of drafts that were measured in the same turn."""
    shallow, deep = (f"draft {depth}" for depth in DEPTHS)
    if shallow not in seconds:
        return None
    levels = max(DEPTHS) - min(DEPTHS)
    pairs = zip(seconds[shallow], seconds[deep], strict=True)
    return [(long - short) / levels for short, long in pairs]


def step_rows(seconds: dict[str, list[float]]) -> list[dict]:
    """Median and least milliseconds of each step, and both as a multiple of the stock step's.

    The least time of a draft level is that of the two least drafts.
    """
    stock = seconds["stock"]
    rows = [_row(name, times, stock) for name, times in seconds.items()]
    level = draft_level(seconds)
    if level is not None:
        least = (min(seconds[f"draft {DEPTHS[1]}"]) - min(seconds[f"draft {DEPTHS[0]}"])) / (
            DEPTHS[1] - DEPTHS[0]
        )
        rows.append(_row("draft level", level, stock) | _least(least, stock))
    return rows


def _row(name: str, times: list[float], stock: list[float]) -> dict:
    median = statistics.median(times)
    return {
        "step": name,
        "median_ms": 1000 * median,
        "median_vs_stock": median / statistics.median(stock),
    } | _least(min(times), stock)


def _least(seconds: float, stock: list[float]) -> dict:
    return {"min_ms": 1000 * seconds, "min_vs_stock": seconds / min(stock)}

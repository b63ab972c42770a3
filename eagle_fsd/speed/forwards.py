"""Single forwards, measured in turn in one process: what a round is made of.

    stock            the stock transformers model, one token, DynamicCache
    verify 1         our plain step: the root alone
    verify 8 ...     a tree of so many nodes (binary, random tokens)
    draft 2x6, 6x6   a whole draft of so many levels, branch_top_k 6
    draft level x6   the difference of the two, by the levels between them

A verified root is committed outside the time, so the context grows by a token a measurement.

Axes: L context tokens, F features.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pandas as pd
import torch
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.speed.clock import synchronized_time

WIDTHS = (1, 8, 16, 24, 32, 60)
SHALLOW, DEEP = 2, 6  # levels of the two drafts whose difference is the cost of a level
WARM_UP = 3  # measurements that do not count: compiling, packing, recording, first touches
OBSERVED = 2  # tokens that a drafter takes in before a measured draft, as after a mean round

Item = TypeVar("Item")
Probe = Callable[[], float]
"""Does one thing once; returns its seconds."""


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """The items from another one on every turn, so that none always follows the same one.

    Example: a b c at turn 4 is b c a.
    """
    at = turn % len(items)
    return [*items[at:], *items[:at]]


def in_turn(probes: dict[str, Probe], repeats: int, *, label: str) -> dict[str, list[float]]:
    """Seconds of `repeats` measurements of every probe, all in turn, after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in probes}
    for number in tqdm(range(WARM_UP + repeats), desc=label, leave=False):
        for name in rotated(list(probes), number):
            took = probes[name]()
            if number >= WARM_UP:
                seconds[name].append(took)
    return seconds


def rows_needed(repeats: int) -> int:
    """By how many positions the measurements of a context go beyond it."""
    return (WARM_UP + repeats) * len(WIDTHS) + max(WIDTHS)


def time_forwards(
    model: Model, context: Sequence[int], repeats: int, branches: Iterable[int] = ()
) -> dict[str, list[float]]:
    """Seconds of every measurement by forward, those of the first column of the table above.

    Args:
        model: the sequence in its target is lost.
        context: prompt tokens before the first measurement.
        repeats: measurements of every forward.
        branches: branch_top_k of the drafts; default: that of the model's own trees.
    """
    target, drafter = model.target, model.drafter
    context_L = torch.tensor(context, device=target.device)
    target.start(len(context) + rows_needed(repeats))
    _, features_LF = target.prefill(context_L)
    features_LF = features_LF.clone()  # recorded graphs hand out the same memory again
    probes = {"stock": _stock_step(target.model, context_L)} if target.has_stock else {}
    probes |= {f"verify {width}": _verification(target, width) for width in WIDTHS}
    if isinstance(drafter, EagleDrafter):
        capacity = len(context) + OBSERVED * (WARM_UP + repeats)
        for k in branches or [drafter.tree_config.branch_top_k]:
            for depth in (SHALLOW, DEEP):
                own = drafter.with_tree(_fullest(drafter.tree_config, depth, k))
                own.reset(capacity)
                own.observe(features_LF, context_L.roll(-1))
                probes[f"draft {depth}x{k}"] = _drafting(own, features_LF, context_L)
    seconds = in_turn(probes, repeats, label=f"forwards at {len(context)}")
    target.close()
    return seconds


def _timed(device: torch.device, work: Callable[[], object]) -> float:
    """The one way to time a piece of work: the device has finished before and after."""
    began = synchronized_time(device)
    work()
    return synchronized_time(device) - began


def _stock_step(model: PreTrainedModel, context_L: torch.Tensor) -> Probe:
    """One token through the stock model, its logits included."""
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=context_L[None], past_key_values=cache, logits_to_keep=1)
    token_11 = context_L[None, -1:]

    @torch.inference_mode()
    def step() -> float:
        return _timed(context_L.device, lambda: model(input_ids=token_11, past_key_values=cache))

    return step


def _verification(target: Target, width: int) -> Probe:
    """Verification of a tree in level order, each node with up to two children."""
    generator = torch.Generator().manual_seed(width)
    tokens = torch.randperm(target.vocab_size, generator=generator)[:width].tolist()
    parents = [max(0, node - 1) // 2 for node in range(width)]
    tree = DraftTree.from_parents(tokens, parents, device=target.device)
    root_1 = torch.zeros(1, dtype=torch.int64, device=target.device)

    def step() -> float:
        seconds = _timed(target.device, lambda: target.verify(tree))
        target.commit(root_1)
        return seconds

    return step


def _fullest(own: TreeConfig, depth: int, branch_top_k: int) -> TreeConfig:
    """A tree of so many levels, with as many drafts as the model's own where they fit."""
    pool = TreeConfig(depth, depth, branch_top_k).pool_size
    drafts = min(pool, max(depth, own.num_draft_tokens))
    return TreeConfig(drafts, depth, branch_top_k)


def _drafting(drafter: EagleDrafter, features_LF: torch.Tensor, context_L: torch.Tensor) -> Probe:
    """A whole draft, after the tokens that a mean round commits."""
    drafter.propose()  # takes in the context

    def step() -> float:
        drafter.observe(features_LF[-OBSERVED:], context_L[-OBSERVED:])
        return _timed(context_L.device, drafter.propose)

    return step


def forward_rows(seconds: dict[str, list[float]]) -> list[dict]:
    """Median and least milliseconds of each, and the median as a multiple of the first one's.

    A draft level's are of pairs of drafts that were measured in the same turn.
    """
    frame = 1000 * pd.DataFrame(seconds)
    for name in [name for name in frame if name.startswith(f"draft {DEEP}x")]:
        k = name.rpartition("x")[2]
        pairs = frame[name] - frame[f"draft {SHALLOW}x{k}"]
        frame[f"draft level x{k}"] = pairs / (DEEP - SHALLOW)
    table = pd.DataFrame({"median_ms": frame.median(), "min_ms": frame.min()})
    table["median_vs_first"] = table["median_ms"] / table["median_ms"].iloc[0]
    return table.rename_axis("forward").reset_index().to_dict("records")

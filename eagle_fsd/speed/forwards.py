"""Single forwards, measured in turn in one process: what a round is made of.

    stock            the stock transformers model, one token, DynamicCache
    verify 1         our plain step: the root alone
    verify 4 ...     a tree of that many nodes (binary, random tokens)
    draft 2x6, 6x6   a whole draft of that many levels, branch_top_k 6
    draft level x6   the difference of the two, by the levels between them
    text             no forward: what eagle_fsd.stream does for the text of a plain round

Axes: L context tokens, F features.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from tqdm import tqdm
from transformers import DynamicCache

from eagle_fsd.api import stream
from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.families import cache_name
from eagle_fsd.models.loaded import Model
from eagle_fsd.timing import rotated, synchronized_time

WIDTHS = (1, 4, 6, 8, 12, 16, 24, 60)  # nodes of the verifications, the root included
WIDE = 8  # of them, up to which a node's cost is taken for its price
SHALLOW_LEVELS, DEEP = 2, 6  # levels of the two drafts whose difference is the cost of a level
WARM_UP = 3  # measurements that do not count: compiling, packing, first touches
REPEATS = 20  # measurements of each that count
OBSERVED = 2  # tokens that a drafter takes in before a measured draft, as after a mean round
# positions by which the measurements of a context go beyond it
ROWS_NEEDED = (WARM_UP + REPEATS) * len(WIDTHS) + max(WIDTHS)

# what is timed, and what then makes ready for the next time
Probe = tuple[Callable[[], object], Callable[[], object]]


def in_turn(device: torch.device, probes: dict[str, Probe], label: str) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in probes}
    for number in tqdm(range(WARM_UP + REPEATS), desc=label, leave=False):
        for name in rotated(list(probes), number):
            work, prepare = probes[name]
            began = synchronized_time(device)
            work()
            seconds[name].append(synchronized_time(device) - began)
            prepare()
    return {name: taken[WARM_UP:] for name, taken in seconds.items()}


def time_forwards(model: Model, context: Sequence[int]) -> dict[str, list[float]]:
    """Seconds of every measurement behind these prompt tokens, by the names of the table above but
    for the draft level."""
    target, drafter = model.target, model.drafter
    context_L = torch.tensor(context, device=target.device)
    cache = target.begin(len(context) + ROWS_NEEDED)
    _, features_LF = target.prefill(cache, context_L)
    probes: dict[str, Probe] = {}
    if target.has_stock:
        theirs = {cache_name(target.model): DynamicCache(config=target.model.config)}
        stock = partial(target.model, **theirs)
        with torch.inference_mode():
            stock(input_ids=context_L[None], logits_to_keep=1)
        step = torch.inference_mode()(partial(stock, input_ids=context_L[None, -1:]))
        probes["stock"] = step, lambda: None
    # the root is committed, so the context grows by a token a measurement
    root_1 = torch.zeros(1, dtype=torch.int64, device=target.device)
    commit = partial(target.commit, cache, root_1)
    for width in WIDTHS:
        generator = torch.Generator().manual_seed(width)
        tokens = torch.randperm(target.vocab_size, generator=generator)[:width].tolist()
        parents = [max(0, node - 1) // 2 for node in range(width)]
        tree = DraftTree.from_parents(tokens, parents, device=target.device)
        probes[f"verify {width}"] = partial(target.verify, cache, tree), commit
    if isinstance(drafter, EagleDrafter):
        k = drafter.tree_config.branch_top_k
        for depth in (SHALLOW_LEVELS, DEEP):
            # as many drafts as the model's own tree has, where they fit
            drafts = max(depth, drafter.tree_config.num_draft_tokens)
            drafts = min(drafts, TreeConfig(depth, depth, k).pool_size)
            own = drafter.with_tree(TreeConfig(drafts, depth, k))
            own = own.begin(len(context) + OBSERVED * (1 + WARM_UP + REPEATS), context[0])
            own.observe(features_LF, [*context[1:], context[0]])
            own.propose()  # takes in the context
            observe = partial(own.observe, features_LF[-OBSERVED:], context[-OBSERVED:])
            observe()
            probes[f"draft {depth}x{k}"] = own.propose, observe
    seconds = in_turn(target.device, probes, f"forwards at {len(context)}")
    return seconds | {"text": text_seconds(model)}


def text_seconds(model: Model) -> list[float]:
    """What a round takes in eagle_fsd.stream beside decoding: no arm's tokens a second have it."""
    decoded, seconds = [], []

    def watch(_: object) -> None:
        decoded.append(synchronized_time(model.target.device))

    answer = stream(model, "Tell me a story.", arm="plain", max_new_tokens=REPEATS, watch=watch)
    for _ in answer:
        seconds.append(synchronized_time(model.target.device) - decoded[-1])
    return seconds


def forward_rows(seconds: dict[str, list[float]]) -> list[dict]:
    """Milliseconds; a draft level's are of pairs of drafts that were measured in the same turn."""
    ms = {name: 1000 * np.array(taken) for name, taken in seconds.items()}
    for name in [name for name in ms if name.startswith(f"draft {DEEP}x")]:
        k = name.rpartition("x")[2]
        pairs = ms[name] - ms[f"draft {SHALLOW_LEVELS}x{k}"]
        ms[f"draft level x{k}"] = pairs / (DEEP - SHALLOW_LEVELS)
    first = np.median(next(iter(ms.values())))
    return [
        {
            "forward": name,
            "median_ms": float(np.median(taken)),
            "min_ms": float(taken.min()),
            "median_vs_first": float(np.median(taken) / first),
        }
        for name, taken in ms.items()
    ]

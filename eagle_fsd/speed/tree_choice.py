"""The draft tree that is fastest on this machine: measured costs times what every tree accepts.

    tokens/s = E[tokens per round] / (propose + verify)

Costs are single forwards (forwards.py), by levels of the draft and by width of the verification,
each width by itself: on a processor they go in steps, since rows are multiplied in blocks. Settling
a round costs the same with every tree, and little. Acceptance is replayed (drafters/walk.py):
calibration prompts are answered by the plain loop, and what each tree accepts of the answers is
what exact greedy decoding accepts with it. Other rules and sampling are not looked at.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice

import pandas as pd
import torch
from tqdm import tqdm

from eagle_fsd.config import BadInput, TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.settings import EagleSettings, HybridSettings
from eagle_fsd.drafters.walk import TOKENS_BEYOND_END, PlainText, cut
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.speed.forwards import (
    SHALLOW_LEVELS,
    forward_rows,
    rows_needed,
    time_forwards,
)

# the values that a tree's drafts, levels and top-k may have
DRAFTS = (1, 2, 3, 5, 7, 9, 11, 15, 19, 23, 31, 43, 59)
LEVELS = (1, 2, 3, 4, 5, 6, 8)
BRANCHES = (1, 3, 4, 6, 10)
WIDTHS = (1, *(1 + drafts for drafts in DRAFTS))
REPEATS, CONTEXT = 7, 200  # of the costs
# None is from a test set, so that nothing is chosen on what it is measured by.
PROMPTS = (
    "Explain to a twelve-year-old why the moon seems to change its shape during a month.",
    "List eight things to check before a long bicycle trip, with half a sentence on each.",
    "Write a Python function that counts how often each word occurs in a text file, ignoring "
    "case, and prints the ten most frequent words.",
    "A shop sells pens at 3 for 2 euros and notebooks at 4 euros each. How much do 12 pens and "
    "5 notebooks cost together? Show the steps.",
    "Tell a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Rewrite this more politely: You sent me the wrong parts again. I want my money back today, "
    "and I will never buy anything from you again.",
    "Compare trains and buses for travel between two cities. Which would you choose, and why?",
)


def neighbours(tree: TreeConfig, draft_vocab_size: int) -> Iterator[TreeConfig]:
    """The trees of which one value is the next smaller or larger one; all that are possible."""
    shape = tree.num_draft_tokens, tree.tree_depth, tree.branch_top_k
    for place, values in enumerate((DRAFTS, LEVELS, BRANCHES)):
        near = [max((v for v in values if v < shape[place]), default=None)]
        near += [min((v for v in values if v > shape[place]), default=None)]
        for value in filter(None, near):
            drafts, depth, branch = (*shape[:place], value, *shape[place + 1 :])
            fits = branch <= draft_vocab_size and depth <= drafts
            if fits and drafts <= TreeConfig(depth, depth, branch).pool_size:
                yield TreeConfig(drafts, depth, branch)


def choose_tree(
    model: Model, drafter: EagleSettings | HybridSettings, *, max_new_tokens: int = 64
) -> pd.DataFrame:
    """The trees for a drafter on this machine, see `choose`; the sequence in the model's target is
    lost.

    Raises:
        BadInput: the model has no draft head, or its target too few positions to measure in.
    """
    if not isinstance(model.drafter, EagleDrafter):
        raise BadInput("there is no tree to choose without a draft head: name one with --head")
    prompts = [model.prompt_ids(prompt) for prompt in PROMPTS]
    needed = max(map(len, prompts)) + max_new_tokens + TOKENS_BEYOND_END
    widths = sorted({1 + model.drafter.tree_config.num_draft_tokens, *WIDTHS})
    needed = max(CONTEXT + rows_needed(REPEATS, widths), needed)
    if needed > model.target.max_positions:
        raise BadInput(
            f"the target's {model.target.max_positions} positions are too few to choose a tree in, "
            f"{needed} are needed: name the tree, such as 7x3x4"
        )
    plain = DecodeConfig(Policy(Exact()), StopConfig(max_new_tokens + TOKENS_BEYOND_END))
    texts = []
    for prompt in tqdm(prompts, desc="plain answers", unit="prompt", leave=False):
        greedy = decode(model.target, RootDrafter(), prompt, plain).tokens
        text = cut(prompt, greedy, model.stop(max_new_tokens))
        texts.append((text, text.states(model.target)[1]))
    own, size = model.drafter.tree_config, model.drafter.draft_vocab_size
    branches = {own.branch_top_k, *(k for k in BRANCHES if k <= size)}
    context = list(islice(cycle(chain(*prompts)), CONTEXT))
    rows = forward_rows(time_forwards(model, context, REPEATS, branches, widths))
    costs = {row["forward"]: row["median_ms"] for row in rows}
    counts, waiting = pd.DataFrame(), [own]
    while waiting:
        found = [
            count_acceptance(model, drafter, tree, texts)
            for tree in tqdm(waiting, "trees", leave=False)
        ]
        counts = pd.concat([counts, pd.DataFrame(found, index=map(tree_name, waiting))])
        table = choose(counts, costs)
        best = parse_tree(table.tree[0])
        waiting = [t for t in neighbours(best, size) if tree_name(t) not in counts.index]
    return table


def count_acceptance(
    model: Model,
    drafter: EagleSettings | HybridSettings,
    tree: TreeConfig,
    texts: Sequence[tuple[PlainText, torch.Tensor]],
) -> dict[str, int]:
    """What exact accepts of a drafter's trees on plain answers, each with its features: rounds and
    their tokens; BadInput if none of the answers is longer than one token."""
    built = replace(drafter, tree=tree_name(tree)).build(model)
    rounds = [tokens for text, features in texts for tokens in text.rounds(built, features)]
    if not rounds:
        raise BadInput("no calibration prompt was answered by more than one token: name the tree")
    return {"rounds": len(rounds), "tokens": sum(rounds)}


def choose(counts: pd.DataFrame, costs: Mapping[str, float]) -> pd.DataFrame:
    """All candidates, the one to take first: the fastest, of equals the smallest.

    Args:
        costs: median milliseconds of single forwards, by name.

    Returns:
        Rows with tree; tokens_per_round, the next token included; propose, verify and ms_per_round
        in milliseconds; speedup, tokens a second over those of plain decoding.
    """
    trees = [parse_tree(name) for name in counts.index]
    table = pd.DataFrame(index=counts.index)
    table["tokens_per_round"] = counts["tokens"] / counts["rounds"]
    table["propose"] = [_propose_ms(costs, tree) for tree in trees]
    table["verify"] = [costs[f"verify {1 + tree.num_draft_tokens}"] for tree in trees]
    table["ms_per_round"] = table["propose"] + table["verify"]
    table["speedup"] = table["tokens_per_round"] * costs["verify 1"] / table["ms_per_round"]
    table = table.sort_values("speedup", ascending=False, kind="stable")
    return table.reset_index(names="tree")


def _propose_ms(costs: Mapping[str, float], tree: TreeConfig) -> float:
    """A draft of a few levels, and what each further one takes."""
    level = max(0.0, costs[f"draft level x{tree.branch_top_k}"])
    shallow = costs[f"draft {SHALLOW_LEVELS}x{tree.branch_top_k}"]
    return max(0.0, shallow + (tree.tree_depth - SHALLOW_LEVELS) * level)


def explain(table: pd.DataFrame) -> str:
    """The choice in a line: what it costs and brings."""
    best = table.iloc[0]
    slow = ", the least slow one" if best.speedup <= 1 else ""
    return (
        f"tree {best.tree}{slow}: {best.speedup:.2f} times plain's speed is expected, with "
        f"{best.tokens_per_round:.2f} tokens per round in {best.ms_per_round:.1f} ms; the best of "
        f"{len(table)} trees"
    )

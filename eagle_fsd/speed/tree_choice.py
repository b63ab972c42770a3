"""The draft tree that is fastest on this machine: measured costs times what every tree accepts.

    tokens/s = E[tokens per round] / (propose + verify)

Costs are single forwards (forwards.py), by width of the verification and by levels of the draft;
settling a round costs the same with every tree, and little. Acceptance is replayed
(evaluation/offline/): calibration prompts are answered by the plain loop, and what each tree
accepts of the answers is what real greedy decoding by the exact rule accepts with it.

So the tree is chosen by the exact rule, whatever rule will use it: by tokens/s under a loose rule a
chain wins, whose fuzzy share is far higher at the same T. For `fsd` a tree is also refused whose
share of fuzzy tokens, predicted to first order (walks that end where D passes), exceeds that of the
model's own tree by more than `hold_fuzzy_share`. Sampling is not looked at.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, cycle, islice

import numpy as np
import pandas as pd
from tqdm import tqdm

from eagle_fsd.config import BadInput, TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.evaluation.offline.replay import ReplayPlan, replay_text
from eagle_fsd.evaluation.offline.texts import BEYOND, cut
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.speed.forwards import SHALLOW, WIDTHS, forward_rows, rows_needed, time_forwards

DRAFTS = (*range(1, 17), 19, 23, 27, 31, 39, 47, 59)
LEVELS = 8
BRANCHES = (1, 2, 3, 4, 6, 8, 10)
# A tree with more drafts a level than this is never the best, and would have to be verified.
DRAFTS_PER_LEVEL = 12
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


def candidate_trees(draft_vocab_size: int) -> list[TreeConfig]:
    """All shapes that are looked at, the smallest first; the draft vocabulary bounds top-k."""
    shapes = [
        (drafts, depth, branch)
        for drafts in DRAFTS
        for depth in range(1, LEVELS + 1)
        for branch in BRANCHES
        if depth <= drafts <= DRAFTS_PER_LEVEL * depth and branch <= draft_vocab_size
    ]
    return [TreeConfig(*s) for s in shapes if s[0] <= TreeConfig(s[1], s[1], s[2]).pool_size]


def choose_tree(
    model: Model, arm: Arm, *, hold_fuzzy_share: float = 0.01, max_new_tokens: int = 64
) -> pd.DataFrame:
    """The trees for an arm's rule on this machine, see `choose`; takes about a minute on two CPU
    cores, and the sequence in the model's target is lost.

    Raises:
        BadInput: the model has no draft head, or its target too few positions to measure in.
    """
    if not isinstance(model.drafter, EagleDrafter):
        raise BadInput("there is no tree to choose without a draft head: name one with --head")
    prompts = [model.prompt_ids(prompt) for prompt in PROMPTS]
    needed = max(map(len, prompts)) + max_new_tokens + BEYOND
    needed = max(CONTEXT + rows_needed(REPEATS), needed)
    if needed > model.target.max_positions:
        raise BadInput(
            f"the target's {model.target.max_positions} positions are too few to choose a tree in, "
            f"{needed} are needed: name the tree, such as 7x3x4"
        )
    # what a replay can follow
    judged = type(arm.rule) is Fsd and arm.rule.logits == "raw"
    trees = tuple(candidate_trees(model.drafter.draft_vocab_size))
    plan = ReplayPlan(trees, {arm.text: arm.rule} if judged else {})
    counts = count_acceptance(model, prompts, plan, max_new_tokens)
    context = list(islice(cycle(chain(*prompts)), CONTEXT))
    branches = {tree.branch_top_k for tree in trees}
    rows = forward_rows(time_forwards(model, context, REPEATS, branches))
    costs = {row["forward"]: row["median_ms"] for row in rows}
    own = tree_name(model.drafter.tree_config)
    return choose(counts, costs, own, hold=hold_fuzzy_share)


def count_acceptance(
    model: Model, prompts: Sequence[list[int]], plan: ReplayPlan, max_new_tokens: int
) -> pd.DataFrame:
    """What every tree accepts on the calibration prompts: a row a tree with its rounds, accepted
    drafts, and with a rule to judge the rounds that end in a fuzzy token; BadInput if no prompt was
    answered by more than one token."""
    config = DecodeConfig(Policy(Exact()), StopConfig(max_new_tokens + BEYOND))
    rows = []
    for prompt in tqdm(prompts, desc="acceptance by tree", unit="prompt", leave=False):
        greedy = decode(model.target, RootDrafter(), prompt, config).tokens
        text = cut(prompt, greedy, model.stop(max_new_tokens))
        for name, row in replay_text(model.drafter, text, plan)["trees"].items():
            sums = {"rounds": len(row["accepted"]), "accepted": sum(row["accepted"])}
            for judged in row["rules"].values():
                sums["fuzzy"] = judged["fuzzy"]
            rows.append({"tree": name} | sums)
    counts = pd.DataFrame(rows).groupby("tree", sort=False).sum()
    if not counts["rounds"].all():
        raise BadInput("no calibration prompt was answered by more than one token: name the tree")
    return counts


def choose(
    counts: pd.DataFrame, costs: Mapping[str, float], own: str, *, hold: float
) -> pd.DataFrame:
    """All candidates, the one to take first: the fastest that is held, of equals the smallest.

    Args:
        costs: median milliseconds of single forwards, by name.
        own: the tree that is taken without a choice; where it is no candidate (a small draft
            vocabulary), or no fuzzy tokens are counted, nothing is refused.

    Returns:
        Rows with tree; tokens_per_round under the exact rule, the next token included;
        fuzzy_share, predicted; propose, verify and ms_per_round in milliseconds; speedup, tokens a
        second over those of plain decoding; held, whether it keeps to hold_fuzzy_share.
    """
    trees = [parse_tree(name) for name in counts.index]
    verify = [costs[f"verify {width}"] for width in WIDTHS]
    table = pd.DataFrame(index=counts.index)
    table["tokens_per_round"] = 1 + counts["accepted"] / counts["rounds"]
    emitted = counts["rounds"] + counts["accepted"]
    table["fuzzy_share"] = counts.get("fuzzy", math.nan) / emitted
    table["propose"] = [_propose_ms(costs, tree) for tree in trees]
    table["verify"] = np.interp([1 + tree.num_draft_tokens for tree in trees], WIDTHS, verify)
    table["ms_per_round"] = table["propose"] + table["verify"]
    table["speedup"] = table["tokens_per_round"] * costs["verify 1"] / table["ms_per_round"]
    # without a share the bound is NaN, which nothing exceeds
    bound = table["fuzzy_share"].get(own, math.nan) + hold
    table["held"] = ~(table["fuzzy_share"] > bound)
    table = table.sort_values(["held", "speedup"], ascending=False, kind="stable")
    return table.reset_index(names="tree")


def _propose_ms(costs: Mapping[str, float], tree: TreeConfig) -> float:
    """A draft of a few levels, and what each further one takes."""
    level = max(0.0, costs[f"draft level x{tree.branch_top_k}"])
    shallow = costs[f"draft {SHALLOW}x{tree.branch_top_k}"]
    return max(0.0, shallow + (tree.tree_depth - SHALLOW) * level)


def explain(table: pd.DataFrame) -> str:
    """The choice in a line: what it costs and brings, and how many trees were refused."""
    best = table.iloc[0]
    slow = ", the least slow one" if best.speedup <= 1 else ""
    return (
        f"tree {best.tree}{slow}: {best.speedup:.2f}x plain expected under the exact rule, "
        f"{best.tokens_per_round:.2f} tokens a round in {best.ms_per_round:.1f} ms; "
        f"{(~table['held']).sum()} of {len(table)} refused for their fuzzy share"
    )

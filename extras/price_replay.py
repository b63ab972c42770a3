"""What trees by price would gain: fixed and priced trees replayed on plain answers at given costs.

    .venv/bin/python extras/price_replay.py --question_file question.jsonl --questions 40

Greedy exact decoding emits the target's own text whatever is drafted, so one large tree behind
every token of that text tells what a smaller one would have accepted there. A tree by price is a
part of the large one, and a tree of a narrower shape nearly is: its likeliest nodes are taken for
it. A round costs

    base + node * nodes               of the target, the root among its nodes
    draft + level * levels            of the drafter; nothing where no level is drafted

milliseconds; the defaults were measured for results/speed_float32. Kept in --output are the scores
of the large trees, a question a line, so that the same command goes on where it was, and other
costs take seconds.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate
from tqdm import tqdm

from eagle_fsd.cli import run_command
from eagle_fsd.config import SamplingConfig, TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.models.loaded import Model, load
from eagle_fsd.models.walk import accepted_path
from eagle_fsd.options import option
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.runs.jsonl import append_lines, read_lines

LARGE = TreeConfig(31, 6, 6)  # of which the others are parts
GRID = itertools.product((0.05, 0.08, 0.1, 0.12, 0.15, 0.2), (0.3, 0.35, 0.4, 0.45, 0.5, 0.6))


@dataclass
class ReplayOptions:
    question_file: str = option("", "A question.jsonl in FastChat's format. Empty: MT-Bench's.")
    questions: int | None = option(None, "The number of questions, of which the first turn counts.")
    max_new_tokens: int = option(112, "The most tokens of an answer.")
    output: str = option("runs/price_replay", "The folder of the large trees.")
    trees: list[str] = option(
        ["5x3x4", "3x2x3", "2x2x2", "12x6x4,keep=0.1,deepen=0.4"], "The trees to compare."
    )
    base: float = option(17.5, "Milliseconds of a verification beside its nodes.")
    node: float = option(1.85, "Milliseconds of a node of it.")
    draft: float = option(2.5, "Milliseconds of a draft beside its levels.")
    level: float = option(1.9, "Milliseconds of a level of it.")


@torch.inference_mode()
def large_trees(model: Model, turn: str, budget: int) -> list[dict]:
    """Behind every token of the plain answer: the large tree, and its accepted path."""
    prompt, stop = model.prompt_ids(turn), model.stop(budget)
    config = DecodeConfig(Policy(Exact()), StopConfig(budget + LARGE.tree_depth + 1))
    text = prompt + decode(model.target, RootDrafter(), prompt, config).tokens
    answer, _ = stop.trim([], text[len(prompt) :])
    _, features_1LF = model.target.hidden_and_features(torch.tensor([text]), use_cache=False)
    drafter, seen, places = model.drafter, 0, []
    drafter.reset(len(text), text[0], SamplingConfig())
    for root in range(len(prompt), len(prompt) + len(answer) - 1):
        drafter.observe(features_1LF[0, seen:root], text[seen + 1 : root + 1])
        seen, tree = root, drafter.propose()
        table = {"score": tree.score_N, "parent": tree.parent_N, "depth": tree.depth_N}
        place = {name: values.tolist() for name, values in table.items()}
        places.append(place | {"path": accepted_path(tree, text[root + 1 :], stop.token_ids)})
    return places


def part_of(place: dict, tree: TreeConfig) -> tuple[set[int], int]:
    """The large tree's nodes that a tree of this shape and these prices has, and its levels."""
    score, parent, depth = place["score"], place["parent"], place["depth"]
    levels, nodes, children = tree.tree_depth, {0}, dict.fromkeys(range(len(score)), 0)
    if tree.deepen:
        for level in range(1, tree.tree_depth):
            best = max((s for s, d in zip(score, depth, strict=True) if d == level), default=-99)
            if math.exp(best) < tree.deepen:
                levels = level
                break
    for node in range(1, len(score)):
        up = parent[node]
        if up in nodes and depth[node] <= levels and children[up] < tree.branch_top_k:
            children[up] += 1
            nodes.add(node)
    likely = sorted(nodes - {0}, key=lambda node: -score[node])[: tree.num_draft_tokens]
    return {node for node in likely if math.exp(score[node]) >= tree.keep}, levels


def replayed(places: list[dict], tree: TreeConfig, ms: Callable[[int, int], float]) -> np.ndarray:
    """Tokens, rounds, drafts, levels and milliseconds of an answer."""
    sums, at = np.zeros(5), 0
    while at < len(places):
        nodes, levels = part_of(places[at], tree)
        drafts = itertools.takewhile(nodes.__contains__, places[at]["path"][1:])
        emitted = 1 + sum(1 for _ in drafts)
        sums += emitted, 1, len(nodes), levels, ms(len(nodes), levels)
        at += emitted
    return sums


def run_replay(options: ReplayOptions) -> None:
    questions = spread(read_questions(options.question_file), options.questions)
    path = Path(options.output) / f"trees_{tree_name(LARGE)}_{options.max_new_tokens}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read_lines(path, repair=True) if path.is_file() else []
    stored = {row["question_id"]: row["places"] for row in rows}
    missing = [question for question in questions if question.question_id not in stored]
    if missing:
        model = load(dtype="float32", tree=LARGE)
        for question in tqdm(missing, unit="question", desc="large trees"):
            places = large_trees(model, question.turns[0], options.max_new_tokens)
            stored[question.question_id] = places
            append_lines(path, [{"question_id": question.question_id, "places": places}])

    def ms(nodes: int, levels: int) -> float:
        drafted = options.draft + options.level * levels if levels else 0.0
        return options.base + options.node * (1 + nodes) + drafted

    answers = [stored[question.question_id] for question in questions]
    rng, table = np.random.default_rng(0), []
    for name in options.trees:
        sums_QS = np.array([replayed(places, parse_tree(name), ms) for places in answers])
        tokens, rounds, drafts, levels, spent = sums_QS.sum(0)
        gain_Q = sums_QS[:, 0] * ms(0, 0) / sums_QS[:, 4]
        drawn_RQ = rng.integers(0, len(answers), (2000, len(answers)))
        sums_RS = sums_QS[drawn_RQ].sum(1)
        low, high = np.percentile(sums_RS[:, 0] * ms(0, 0) / sums_RS[:, 4], [2.5, 97.5])
        gain = f"{tokens * ms(0, 0) / spent:.3f} [{low:.3f}, {high:.3f}]"
        means = (f"{total / rounds:.2f}" for total in (tokens, drafts, levels))
        table.append([name, *means, gain, f"{gain_Q.min():.2f}", f"{(gain_Q < 1).sum()}"])
    heads = ["tree", "tokens/round", "drafts", "levels", "over plain", "worst question", "below 1"]
    print(tabulate(table, heads, "github", disable_numparse=True))
    caps, gains = TreeConfig(12, 6, 4), {}
    for keep, deepen in tqdm(list(GRID), desc="prices"):
        tree = replace(caps, keep=keep, deepen=deepen)
        total = sum(replayed(places, tree, ms) for places in answers)
        gains[tree_name(tree)] = total[0] * ms(0, 0) / total[4]
    best = max(gains, key=gains.get)
    token = ms(0, 0) / gains[best]
    print(f"\nbest of {len(gains)} pairs of prices: {best}, {gains[best]:.3f} of plain")
    print(
        f"the law there: keep {options.node / token:.3f}, and a level while best times the chance"
    )
    print(f"of its first child is at least {(options.level + options.node) / token:.3f}")


def main(arguments: list[str] | None = None) -> None:
    run_command(run_replay, [ReplayOptions], arguments)


if __name__ == "__main__":
    main()

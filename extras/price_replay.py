"""What trees by price would gain: fixed and priced trees replayed on plain answers at given costs.

    .venv/bin/python extras/price_replay.py --question_file question.jsonl --questions 40

Greedy exact decoding emits the target's own text whatever is drafted, so one large tree of the head
behind every token of that text tells what a smaller one would have accepted there: a tree by price
is a part of the large one, and a tree of a narrower shape nearly is, its likeliest nodes. A hybrid
grafts the text's continuations onto that part by the library's own code. A round costs

    base + node * nodes               of the target, the root among its nodes
    draft + level * levels            of the drafter

milliseconds; evaluate/speed.py measures them. Kept in --output are the large trees, a question a
line, so that the same command goes on where it was, and other costs take seconds. The last lines
are of the head's probabilities calibrated on every second question, for the others.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate
from tqdm import tqdm

from eagle_fsd.cli import run_command
from eagle_fsd.config import SamplingConfig, TreeConfig, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.hybrid import HybridDrafter
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.models.loaded import Model, load
from eagle_fsd.models.walk import accepted_path
from eagle_fsd.options import option
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.runs.jsonl import append_lines, read_lines

LARGE = TreeConfig(31, 6, 6)  # of which the others are parts
GRID = list(itertools.product((0.05, 0.08, 0.1, 0.12, 0.15, 0.2), (0.2, 0.3, 0.35, 0.4, 0.5, 0.6)))


@dataclass
class ReplayOptions:
    question_file: str = option("", "A question.jsonl in FastChat's format. Empty: MT-Bench's.")
    questions: int | None = option(None, "The number of questions, of which the first turn counts.")
    max_new_tokens: int = option(112, "The most tokens of an answer.")
    output: str = option("runs/price_replay", "The folder of the large trees.")
    trees: list[str] = option(
        ["5x3x4", "3x2x3", "12x6x4,keep=0.1,deepen=0.4"], "The trees to compare."
    )
    base: float = option(17.5, "Milliseconds of a verification beside its nodes.")
    node: float = option(1.85, "Milliseconds of a node of it.")
    draft: float = option(2.5, "Milliseconds of a draft beside its levels.")
    level: float = option(1.9, "Milliseconds of a level of it.")


@torch.inference_mode()
def large_trees(model: Model, turn: str, budget: int) -> dict:
    """The plain answer's text, and the head's large tree behind every token of it."""
    prompt, stop = model.prompt_ids(turn), model.stop(budget)
    config = DecodeConfig(Policy(Exact()), StopConfig(budget + LARGE.tree_depth + 1))
    text = prompt + decode(model.target, RootDrafter(), prompt, config).tokens
    answer, _ = stop.trim([], text[len(prompt) :])
    _, features_1LF = model.target.hidden_and_features(torch.tensor([text]), use_cache=False)
    drafter, seen, trees = model.drafter, 0, []
    drafter.reset(len(text), text[0], SamplingConfig())
    for root in range(len(prompt), len(prompt) + len(answer) - 1):
        drafter.observe(features_1LF[0, seen:root], text[seen + 1 : root + 1])
        seen, tree = root, drafter.propose()
        said_N = (tree.score_N - tree.score_N[tree.parent_N]).exp()
        trees.append([tree.token_N.tolist(), tree.parent_N.tolist(), said_N.tolist()])
    stops = list(stop.token_ids)
    return {"turn": turn, "text": text, "prompt": len(prompt), "trees": trees, "stop": stops}


class StoredHead:
    """In the place of a head's drafter: proposes parts of the large trees of an answer.

    Args:
        tree: the shape and the prices of the parts.
        calibrate: what a probability by the head is taken for.
    """

    vocab_size, target = None, None

    def __init__(self, tree: TreeConfig, calibrate: Callable[[float], float]):
        self.tree_config, self.max_nodes = tree, 1 + tree.num_draft_tokens
        self._calibrate = calibrate
        self.large: list[list] = []  # that of this round
        self.levels = 0  # of the last proposal

    def reset(self, *_: object) -> None:
        """Nothing is kept."""

    observe = reset

    def propose(self) -> DraftTree:
        token, parent, said = self.large
        tree, probability, depth, best = self.tree_config, [1.0], [0], {}
        for node in range(1, len(token)):
            depth.append(depth[parent[node]] + 1)
            probability.append(probability[parent[node]] * self._calibrate(said[node]))
            best[depth[node]] = max(best.get(depth[node], 0.0), probability[node])
        self.levels = tree.tree_depth
        for level in range(tree.tree_depth, 0, -1):  # the first level that is not worth another
            if tree.deepen and best.get(level, 0.0) < tree.deepen:
                self.levels = level
        part, children = {0}, [0] * len(token)
        for node in range(1, len(token)):
            up = parent[node]
            if up in part and depth[node] <= self.levels and children[up] < tree.branch_top_k:
                children[up] += 1
                part.add(node)
        likely = sorted(part - {0}, key=lambda node: -probability[node])[: tree.num_draft_tokens]
        nodes = [0, *sorted(node for node in likely if probability[node] >= tree.keep)]
        place = {node: number for number, node in enumerate(nodes)}
        return DraftTree(
            torch.tensor([token[node] for node in nodes]),
            torch.tensor([place[parent[node]] for node in nodes]),
            torch.full((len(nodes),), -1),
            torch.empty(0, 0),
            max_depth=max(depth[node] for node in nodes),
            score_N=torch.tensor([probability[node] for node in nodes]).log(),
        )


def replayed(
    answer: dict,
    tree: TreeConfig,
    ms: Callable[[int, int], float],
    *,
    hybrid: bool = False,
    calibrate: Callable[[float], float] = lambda said: said,
) -> np.ndarray:
    """Tokens, rounds, drafts, levels and milliseconds of an answer."""
    text, seen, root = answer["text"], 0, answer["prompt"]
    last = root + len(answer["trees"])
    head = StoredHead(tree, calibrate)
    drafter = HybridDrafter(head) if hybrid else head
    drafter.reset(len(text), text[0])
    sums = np.zeros(5)
    while root < last:
        head.large = answer["trees"][root - answer["prompt"]]
        drafter.observe(None, text[seen + 1 : root + 1])
        seen, proposed = root, drafter.propose()
        path = accepted_path(proposed, text[root + 1 : last + 1], answer["stop"])
        drafts, emitted = proposed.size - 1, min(len(path), last - root)
        sums += emitted, 1, drafts, head.levels, ms(drafts, head.levels)
        root += emitted
    return sums


def calibration(answers: list[dict]) -> tuple[float, float]:
    """By logistic regression, the log odds that a draft of the head below accepted text is right:
    the factor of the log odds by the head, and what is added."""
    rows = []
    for answer in answers:
        text = answer["text"]
        for place, (token, parent, said) in enumerate(answer["trees"]):
            following, at = iter(text[answer["prompt"] + place + 1 :]), 0
            while at is not None:  # down the path that is right
                children, at = [node for node in range(1, len(token)) if parent[node] == at], None
                right = next(following, None) if children else None
                for node in children if right is not None else ():
                    rows.append((said[node], token[node] == right))
                    at = node if token[node] == right else at
    said, right = np.array(rows, dtype=float).T
    odds = np.log(np.clip(said, 1e-6, None) / np.clip(1 - said, 1e-6, None))
    columns, fit = np.stack([odds, np.ones_like(odds)], axis=1), np.array([1.0, 0.0])
    for _ in range(20):  # Newton's steps
        chance = 1 / (1 + np.exp(-columns @ fit))
        hessian = (columns * (chance * (1 - chance))[:, None]).T @ columns
        fit += np.linalg.solve(hessian, columns.T @ (right - chance))
    return tuple(fit)


def run_replay(options: ReplayOptions) -> None:
    questions = spread(read_questions(options.question_file), options.questions)
    path = Path(options.output) / f"texts_{tree_name(LARGE)}_{options.max_new_tokens}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = read_lines(path, key=itemgetter("turn"), repair=True) if path.is_file() else []
    stored = {row["turn"]: row for row in rows}
    missing = [question for question in questions if question.turns[0] not in stored]
    if missing:
        model = load(dtype="float32", tree=LARGE)
        for question in tqdm(missing, unit="question", desc="large trees"):
            answer = large_trees(model, question.turns[0], options.max_new_tokens)
            stored[question.turns[0]] = answer
            append_lines(path, [answer])

    def ms(drafts: int, levels: int) -> float:
        drafted = options.draft + options.level * levels if levels else 0.0
        return options.base + options.node * (1 + drafts) + drafted

    answers = [stored[question.turns[0]] for question in questions]
    rng, table = np.random.default_rng(0), []
    for drafter, name in itertools.product(("eagle", "hybrid"), options.trees):
        tree, hybrid = parse_tree(name), drafter == "hybrid"
        sums_QS = np.array([replayed(answer, tree, ms, hybrid=hybrid) for answer in answers])
        tokens, rounds, drafts, levels, spent = sums_QS.sum(0)
        gain_Q = sums_QS[:, 0] * ms(0, 0) / sums_QS[:, 4]
        drawn_RQ = rng.integers(0, len(answers), (2000, len(answers)))
        sums_RS = sums_QS[drawn_RQ].sum(1)
        low, high = np.percentile(sums_RS[:, 0] * ms(0, 0) / sums_RS[:, 4], [2.5, 97.5])
        gain = f"{tokens * ms(0, 0) / spent:.3f} [{low:.3f}, {high:.3f}]"
        means = (f"{total / rounds:.2f}" for total in (tokens, drafts, levels))
        slower = (gain_Q < 1).sum()
        table.append([f"{drafter}:{name}", *means, gain, f"{gain_Q.min():.2f}", f"{slower}"])
    heads = ["tree", "tokens/round", "drafts", "levels", "over plain", "worst question", "below 1"]
    print(tabulate(table, heads, "github", disable_numparse=True))

    caps, fit_on = parse_tree(options.trees[-1]), answers[::2]
    factor, added = calibration(fit_on)

    def calibrated(said: float) -> float:
        said = min(max(said, 1e-6), 1 - 1e-6)
        return 1 / (1 + math.exp(-added) * ((1 - said) / said) ** factor)

    for what, part, calibrate in (
        ("all questions", answers, lambda said: said),
        ("every second question", answers[1::2], lambda said: said),
        (f"these, log odds {factor:.2f} x + {added:.2f}", answers[1::2], calibrated),
    ):
        gains = {}
        for keep, deepen in tqdm(GRID, desc=what, leave=False):
            tree = replace(caps, keep=keep, deepen=deepen)
            total = sum(replayed(answer, tree, ms, calibrate=calibrate) for answer in part)
            gains[tree_name(tree)] = total[0] * ms(0, 0) / total[4]
        best = max(gains, key=gains.get)
        token = ms(0, 0) / gains[best]
        keep, deepen = options.node / token, (options.level + options.node) / token
        print(f"{what}: best of {len(gains)} pairs {best}, {gains[best]:.3f} of plain")
        print(f"  by the law keep {keep:.3f}, and deepen {deepen:.3f} over a first child's chance")


def main(arguments: list[str] | None = None) -> None:
    run_command(run_replay, [ReplayOptions], arguments)


if __name__ == "__main__":
    main()

"""What each rule costs at the same gain: the tables of results/rule_front, and those of a score.

    python extras/rule_front.py runs/front > results/rule_front/NAME.md
    python extras/rule_front.py runs/gsm8k --score last_number > table.md

A row is a line of arms (they differ in their rule's value only) at one of the gains in tokens a
round over exact. A line begins at exact, which loses nothing. It is read as linear between two
neighbours at most WIDEST apart in gain, where it first has the gain (evaluation/curves.py); a gain
that it does not reach so has no row. The first cost is regret, above temperature 0 TV. The last
column is it less that of the line of `path`, or of another rule that is named second, with the same
drafter and guards at the same gain, question by question. A score is one that evaluate/tasks.py has
given to the run's answers.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import GAIN, WIDEST, crossing, curves, lost_at
from eagle_fsd.evaluation.metrics import Parts, exact_beside, rate_parts, shared_questions
from eagle_fsd.evaluation.record_numbers import Record
from eagle_fsd.evaluation.run_data import RunData, read_run
from eagle_fsd.evaluation.tables import markdown_table
from eagle_fsd.plugin import load_plugin
from eagle_fsd.rules import RULES
from eagle_fsd.runs.jsonl import read_lines
from eagle_fsd.stats import Interval, Statistic, interval

GAINS = (1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5)


class Cost(NamedTuple):
    """What is lost: a rate over questions, or its difference to plain's."""

    key: str  # of a row
    title: str
    form: str
    less_plain: bool
    parts: Callable[[Sequence[Record]], Parts]  # from an arm's records, one a question
    interval: bool = True  # whether one that holds is known


def metric_cost(key: str, title: str, form: str, less_plain: bool, interval: bool = True) -> Cost:
    """A metric of the library."""
    return Cost(key, title, form, less_plain, partial(rate_parts, key), interval)


REGRET = metric_cost("regret_per_token", "regret/token", ".3f", False)
TV = metric_cost("tv_per_token", "TV/token", ".3f", False)
REPETITION = metric_cost("repetition", "repetition - plain", "+.3f", True, interval=False)
COSTS = (
    metric_cost("fuzzy_share", "fuzzy share", ".3f", False),
    metric_cost("mean_logp", "log p/token - plain", "+.3f", True),
    REPETITION,
    metric_cost("looping", "looping - plain", "+.2f", True),
)


def score_cost(run: Path, score: str) -> Cost:
    """What a scorer gave to the first choice of every answer."""

    def parts(records: Sequence[Record]) -> Parts:
        arm = records[0]["arm"]
        file = run / "scores" / f"{parse_arm(arm).slug}.jsonl"
        rows = read_lines(file) if file.exists() else []
        given = {row["question_id"]: row["scores"] for row in rows if not row["choice"]}
        known = {question: scores[score] for question, scores in given.items() if score in scores}
        if missing := {record["question_id"] for record in records} - set(known):
            raise BadInput(
                f"{run} has no {score} of {arm} for {len(missing)} questions that it answered: "
                "evaluate/tasks.py --rescore makes them"
            )
        return [(known[record["question_id"]], 1) for record in records]

    return Cost(score, f"{score} - plain", "+.3f", True, parts)


class Line(NamedTuple):
    """Arms that differ in their rule's value only, from exact on."""

    name: str
    rule: str
    trees: tuple  # what two lines must share that are compared: drafter and guards
    exact: str  # the arm that gains are over
    arms: list[str]  # the line's points, exact first where the rule has it as its limit
    gains: list[float]
    values: list[float]  # of the rule; NaN of exact where that is at an infinite one


def lines_of(run: RunData) -> list[Line]:
    """Those with exact beside them."""
    lines = []
    for name, rows in curves(run.rows).items():
        arms, gains = [row["arm"] for row in rows], [row[GAIN]["value"] for row in rows]
        exact, parsed = exact_beside(arms[0], list(run.records)), parse_arm(arms[0])
        if not exact or None in gains:
            continue
        values, at_exact = [row["value"] for row in rows], RULES[parsed.kind].lossless_at
        if not math.isnan(at_exact):
            arms, gains = [exact, *arms], [1.0, *gains]
            values = [at_exact if math.isfinite(at_exact) else math.nan, *values]
        trees = (parsed.drafter, parsed.guards)
        lines.append(Line(name, parsed.kind, trees, exact, arms, gains, values))
    return lines


def at_equal_gain(
    run: RunData, costs: Sequence[Cost], rule: str, gains: Sequence[float] = GAINS
) -> list[dict]:
    """A row for every line of the run and gain that it reaches: line, GAIN, value (of the rule),
    every cost by its key, and as KEY_minus what it is less that of the rule's line."""
    shared = shared_questions(run.records)
    if PLAIN not in shared:
        raise BadInput(f"{run.name} has no arm plain to compare with")
    lines = lines_of(run)
    if not any(line.rule == rule for line in lines):
        has = ", ".join(line.name for line in lines) or "none with exact beside it"
        raise BadInput(f"{run.name} has no line of {rule!r} to compare with; it has {has}")

    def parts(line: Line, cost: Cost) -> np.ndarray:
        """[Q, 2, A, 2]: of questions, and of plain, exact and the points of the line, the sums of
        tokens a round and of the cost."""
        names = (PLAIN, line.exact, *line.arms)
        sides = [[shared[name][question] for question in shared[PLAIN]] for name in names]
        tokens = [rate_parts("tokens_per_round", side) for side in sides]
        lost = [cost.parts(side) for side in sides]
        return np.array([tokens, lost], dtype=np.float64).transpose(2, 0, 1, 3)

    def measured(cost: Cost, part_Q2A2: np.ndarray, lost: Statistic) -> Interval | float | None:
        """The value alone where no interval of it is known that holds."""
        found = interval(part_Q2A2, lost)
        return found if cost.interval else found["value"]

    found = []
    for line in lines:
        # of several lines of the rule the plainest
        alike = [other for other in lines if other.rule == rule and other.trees == line.trees]
        other = min(alike, key=lambda line: len(line.name), default=line)
        mine, theirs = ({cost: parts(x, cost) for cost in costs} for x in (line, other))
        for gain in gains:
            place = crossing(line.gains, range(len(line.arms)), gain)  # 1.5: half way to the third
            if math.isnan(place):
                continue
            if abs(line.gains[math.ceil(place)] - line.gains[math.floor(place)]) > WIDEST:
                continue
            value = crossing(line.gains, line.values, gain)
            row = {"line": line.name, GAIN: gain, "value": None if math.isnan(value) else value}
            for cost in costs:
                lost = partial(lost_at, gain=gain, less_plain=cost.less_plain)
                row[cost.key] = measured(cost, mine[cost], lost)
                row[f"{cost.key}_minus"] = None
                if other is not line:
                    both = np.concatenate([mine[cost], theirs[cost]], axis=2)
                    less = partial(less_other, lost=lost, size=len(line.arms))
                    row[f"{cost.key}_minus"] = measured(cost, both, less)
            found.append(row)
    return found


def less_other(sums_X2A2: np.ndarray, *, lost: Statistic, size: int) -> np.ndarray:
    """What the first of two lines has lost, less what the second has, from the sums of plain, exact
    and the points of both; the first line has `size` of them."""
    first, second = np.split(sums_X2A2, [size + 2], axis=-2)
    return lost(first) - lost(second)


def front(folder: Path, rule: str, score: str = "", plugin: str = "") -> None:
    """Print the table of a run."""
    if plugin:
        load_plugin(plugin)
    run = read_run(folder)
    costs = (score_cost(folder, score),) if score else (TV if run.sampled else REGRET, *COSTS)
    rows = at_equal_gain(run, costs, rule)
    shared = shared_questions(run.records)
    solved = ""
    if score:
        found = [value for value, _ in costs[0].parts(list(shared[PLAIN].values()))]
        solved = f", {score} of plain {np.mean(found):.3f}"
    shown = [("line", "line", "s"), ("gain", GAIN, ".2f"), ("value", "value", ".3g")]
    shown += [(cost.title, cost.key, cost.form) for cost in costs]
    shown.append((f"{costs[0].title}, less that of {rule}", f"{costs[0].key}_minus", "+.3f"))
    print(f"{len(shared[PLAIN])} questions{solved}; intervals of 95 %\n")
    print(markdown_table(rows, shown))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="A run with the arms plain and exact.")
    parser.add_argument("rule", nargs="?", default="path", help="The rule to compare with.")
    parser.add_argument("--score", default="", help="A score in place of what the records hold.")
    parser.add_argument("--plugin", default="", help="The one that the run was made with, if any.")
    ended_by(lambda: front(**vars(parser.parse_args())))

"""What each rule costs at the same gain: the tables of results/rule_front.

    python scripts/analysis/rule_front.py runs/front [path@hybrid] > results/rule_front/NAME.md

A row is a line of arms (they differ in their rule's value only) at one of the gains in tokens a
round over exact, read where the line first has the gain (evaluation/curves.py). The last column is
the regret less that of the line named second (`path`), at the same gain, question by question.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np

from eagle_fsd.arms import PLAIN
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import crossing, curves, from_exact, lost_at
from eagle_fsd.evaluation.metrics import (
    exact_beside,
    rate_parts,
    shared_questions,
    summarize,
)
from eagle_fsd.evaluation.report.read_runs import read_run
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.stats import interval

GAINS = (1.1, 1.2, 1.3, 1.4)
# what is lost: whether it is less plain's, its form
LOSSES = {"regret_per_token": (False, ".3f"), "fuzzy_share": (False, ".3f")}
LOSSES |= {"mean_logp": (True, "+.3f"), "repetition": (True, "+.3f"), "looping": (True, "+.2f")}


def parts(found: dict, names: list[str], key: str) -> np.ndarray:
    """[Q, 2, A, 2]: of every question and arm, the sums of tokens a round and of a loss."""
    questions = list(found[PLAIN])
    sums = [
        [rate_parts(rate, [found[name][q] for q in questions]) for name in names]
        for rate in ("tokens_per_round", key)
    ]
    return np.array(sums).transpose(2, 0, 1, 3)


def front(run: Path, beside: str) -> None:
    """Print the table of a run; beside: the line that regrets are compared with."""
    records = read_run(run).records
    if PLAIN not in records:
        raise BadInput(f"{run} has no arm plain to compare with")
    found, lines = shared_questions(records), curves(summarize(records))
    lines = {line: arms for line, arms in lines.items() if exact_beside(arms[0]["arm"], records)}
    if beside not in lines:
        raise BadInput(f"{run} has no line {beside!r} to compare with; it has {', '.join(lines)}")
    named = {}
    for line, arms in lines.items():
        names = [arm["arm"] for arm in arms]
        named[line] = [PLAIN, exact_beside(names[0], list(records)), *names]
    print(f"{len(found[PLAIN])} questions; intervals of 95 %\n")
    print("| line | gain | value | regret/token | fuzzy share | log p/token - plain |", end="")
    print(f" repetition - plain | looping - plain | regret less `{beside}`'s |")
    print("|---" * 9 + "|")
    for line, names in named.items():
        regrets = [parts(found, some, "regret_per_token") for some in (names, named[beside])]
        both, middle = np.concatenate(regrets, axis=2), len(names)
        gains, values = from_exact(lines[line])
        points = len(gains), len(from_exact(lines[beside])[0])
        for gain in GAINS:
            cells = []
            for key, (less, form) in LOSSES.items():
                of = partial(lost_at, gain=gain, points=points[0], less_plain=less)
                loss = interval(parts(found, names, key), of)
                cells.append(cell_text(loss if key != "repetition" else loss["value"], form))
            if cells[0] == "-":
                continue
            gap = interval(both, partial(less_other, middle=middle, points=points, gain=gain))
            cells.append("" if line == beside else cell_text(gap, "+.3f"))
            value = crossing(gains, values, gain)
            value = "-" if np.isnan(value) else f"{value:.2f}"
            print(f"| `{line}` | {gain:.1f} | {value} |", *(f"{cell} |" for cell in cells))


def less_other(
    sums_X2A2: np.ndarray, middle: int, points: tuple[int, int], gain: float
) -> np.ndarray:
    """The regret of the first `middle` arms' line, less that of the others'."""
    mine, others = (
        lost_at(sums, gain=gain, points=count, less_plain=False)
        for sums, count in zip(np.split(sums_X2A2, [middle], axis=-2), points, strict=True)
    )
    return mine - others


if __name__ == "__main__":
    run, beside = [*sys.argv[1:], "path"][:2] if len(sys.argv) > 1 else ("runs/front", "path")
    ended_by(lambda: front(Path(run), beside))

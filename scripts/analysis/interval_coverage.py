"""How often 95 % intervals hold the truth: the table of results/intervals, of a run's records.

    python scripts/analysis/interval_coverage.py runs/a

The run's questions are taken as all there are. Their number is drawn of them, with replacement,
5,000 times, and every metric's interval is checked against the metric over all questions.
"""

import sys
from pathlib import Path

import numpy as np

from eagle_fsd.evaluation.metrics import (
    EXACT,
    METRICS,
    Metric,
    exact_beside,
    measured,
    rate_parts,
    shared_questions,
)
from eagle_fsd.evaluation.report.read_runs import read_run

DRAWS, SIZES = 5000, (5, 8, 16, 40)


def coverage(run: Path) -> None:
    """Print a row for every arm and metric: its value, and for every number of questions the share
    of intervals that hold it, with the share of draws that have one where these are not all."""
    arms = shared_questions(read_run(run).records)
    draw = np.random.default_rng(0)
    questions = len(next(iter(arms.values())))
    drawn = {size: draw.integers(questions, size=(DRAWS, size)) for size in SIZES}
    print("| arm | metric | value |", *(f"{size} |" for size in SIZES))
    print("|---" * (3 + len(SIZES)) + "|")
    for arm, mine in arms.items():
        others = {"": arm, EXACT: exact_beside(arm, list(arms))}
        for key, metric in METRICS.items():
            baseline = metric.over or metric.minus
            theirs = arms.get(others.get(baseline, baseline))
            if theirs is None or baseline and theirs is mine:
                continue
            sides = [rate_parts(key, [side[q] for q in mine]) for side in (mine, theirs)]
            truth = measured(metric, *sides)["value"]
            if truth is None:
                continue
            cells = [held(metric, sides, drawn[size], truth) for size in SIZES]
            if set(cells) == {"-"}:  # questions all alike
                continue
            print(f"| {arm} | {metric.label} | {truth:.3f} |", *(f"{cell} |" for cell in cells))


def held(metric: Metric, sides: list, index_XQ: np.ndarray, truth: float) -> str:
    """A row of the index is a draw; "-" without intervals."""
    found = [measured(metric, *([side[q] for q in row] for side in sides)) for row in index_XQ]
    given = [interval for interval in found if interval["low"] is not None]
    if not given:
        return "-"
    share = np.mean([interval["low"] <= truth <= interval["high"] for interval in given])
    return f"{share:.3f}" + (f" ({len(given) / len(found):.2f})" if len(given) < len(found) else "")


if __name__ == "__main__":
    coverage(Path(sys.argv[1]))

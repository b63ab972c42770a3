"""What each rule loses of a task's score at the same gain, which results/made_problems shows.

    python scripts/analysis/score_front.py runs/test last_number [path@eagle] > table.md

The run is one of evaluate/tasks.py, with arm plain and exact. A row is a line of arms (they differ
in their rule's value only) at one of the gains in tokens a round over exact, read where the line
first has the gain (evaluation/curves.py). Losses are plain's score less the line's, question by
question; the last column is that of the line named third (`path`) less the line's own.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import crossing, curves, from_exact, lost_at
from eagle_fsd.evaluation.metrics import exact_beside, rate_parts, shared_questions, summarize
from eagle_fsd.evaluation.report.read_runs import read_run
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.runs.jsonl import read_lines
from eagle_fsd.stats import interval

GAINS = (1.1, 1.2, 1.3, 1.5)


def scores_of(run: Path, arm: str, score: str) -> dict[object, float]:
    """By question, of the arms that have the score; the first choice."""
    file = run / "scores" / f"{parse_arm(arm).slug}.jsonl"
    if not file.exists():
        raise BadInput(f"{run} has no scores of {arm}: evaluate/tasks.py --rescore makes them")
    rows = read_lines(file)
    found = {row["question_id"]: row["scores"].get(score) for row in rows if not row["choice"]}
    if None in found.values():
        raise BadInput(f"{run}: not all answers of {arm} have the score {score!r}")
    return found


def lost(sums_X2A2: np.ndarray, sizes: tuple[tuple[int, int], ...], gain: float) -> np.ndarray:
    """What the first line loses of plain's score, less what the second does if there are two.

    Args:
        sums_X2A2: plain, exact and its arms, for every line.
        sizes: of every line, its arms, and the points that it is read on: these and, unless no
            value of the rule is exact, exact.
    """
    ends = np.cumsum([arms + 2 for arms, _ in sizes])[:-1]
    first, *second = (
        -lost_at(sums, gain=gain, points=points, less_plain=True)
        for sums, (_, points) in zip(np.split(sums_X2A2, ends, axis=-2), sizes, strict=True)
    )
    return first - second[0] if second else first


def front(run: Path, score: str, beside: str) -> None:
    """Print the table of a run; beside: the line that losses are compared with."""
    records = read_run(run).records
    if PLAIN not in records:
        raise BadInput(f"{run} has no arm plain to compare with")
    found = shared_questions(records)
    lines = curves(summarize(records))
    lines = {line: arms for line, arms in lines.items() if exact_beside(arms[0]["arm"], records)}
    lines = {line: arms for line, arms in lines.items() if not np.isnan(from_exact(arms)[0]).any()}
    if beside not in lines:
        raise BadInput(f"{run} has no line {beside!r} to compare with; it has {', '.join(lines)}")
    scores = {arm: scores_of(run, arm, score) for arm in records}
    questions = list(found[PLAIN])
    for arm, of in scores.items():
        if missing := set(questions) - set(of):
            raise BadInput(
                f"{run} has no scores of {arm} on {len(missing)} questions that it answered: "
                "evaluate/tasks.py --rescore makes them"
            )
    sizes = {line: (len(arms), len(from_exact(arms)[0])) for line, arms in lines.items()}

    def parts(line: str) -> np.ndarray:
        """[Q, 2, A, 2]: of every question and arm, the sums of tokens a round and of the score."""
        names = [arm["arm"] for arm in lines[line]]
        names = [PLAIN, exact_beside(names[0], list(records)), *names]
        sums = [
            [rate_parts("tokens_per_round", [found[name][q] for q in questions]) for name in names],
            [[(scores[name][q], 1) for q in questions] for name in names],
        ]
        return np.array(sums, dtype=np.float64).transpose(2, 0, 1, 3)

    plain = np.mean([scores[PLAIN][q] for q in questions])
    print(f"{len(questions)} questions, of which plain solves {plain:.3f}; intervals of 95 %\n")
    print(f"| line | gain | value | score lost | lost by `{beside}` less lost by this |")
    print("|---" * 5 + "|")
    for line, arms in lines.items():
        gains, values = from_exact(arms)
        for gain in GAINS:
            value = crossing(gains, values, gain)
            if np.isnan(crossing(gains, gains, gain)):
                continue
            loss = interval(parts(line), partial(lost, sizes=(sizes[line],), gain=gain))
            cells = ["-" if np.isnan(value) else f"{value:.3g}", cell_text(loss, "+.3f")]
            both = np.concatenate([parts(beside), parts(line)], axis=2)
            gap = interval(both, partial(lost, sizes=(sizes[beside], sizes[line]), gain=gain))
            cells.append("" if line == beside else cell_text(gap, "+.3f"))
            print(f"| `{line}` | {gain:.1f} |", *(f"{cell} |" for cell in cells))


if __name__ == "__main__":
    given = [*sys.argv[1:], *("", "", "path")[len(sys.argv) - 1 :]]
    ended_by(lambda: front(Path(given[0]), given[1], given[2]))

"""What each rule costs at the same gain: the tables of results/rule_front, and those of a score.

    python extras/rule_front.py runs/front [path@hybrid] > results/rule_front/NAME.md
    python extras/rule_front.py runs/gsm8k --score last_number > table.md

A row is a line of arms (they differ in their rule's value only) at one of the gains in tokens a
round over exact, read between two arms, where the line first has the gain (evaluation/curves.py);
a gain that lies between no two of its arms has no row. The last column is the first loss, less
that of the line named second (`path`), at the same gain, question by question. A score is one that
evaluate/tasks.py has given to the run's answers.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from eagle_fsd.arms import PLAIN, parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import GAIN, crossing, curves, lost_at
from eagle_fsd.evaluation.metrics import exact_beside, rate_parts, shared_questions, summarize
from eagle_fsd.evaluation.report.run_data import read_run
from eagle_fsd.evaluation.tables import cell_text
from eagle_fsd.runs.jsonl import read_lines
from eagle_fsd.stats import interval

GAINS = (1.1, 1.2, 1.3, 1.4, 1.5)
# what is lost, by its column of a record: the title, whether it is less plain's, its form
LOSSES = {
    "regret_per_token": ("regret/token", False, ".3f"),
    "fuzzy_share": ("fuzzy share", False, ".3f"),
    "mean_logp": ("log p/token - plain", True, "+.3f"),
    "repetition": ("repetition - plain", True, "+.3f"),
    "looping": ("looping - plain", True, "+.2f"),
}


def scores_of(run: Path, arm: str, score: str, questions: list) -> dict[object, float]:
    """An arm's scores by question, of the first choice."""
    file = run / "scores" / f"{parse_arm(arm).slug}.jsonl"
    rows = read_lines(file) if file.exists() else []
    scores = {row["question_id"]: row["scores"] for row in rows if not row["choice"]}
    found = {question: given[score] for question, given in scores.items() if score in given}
    if missing := set(questions) - set(found):
        raise BadInput(
            f"{run} has no {score} of {arm} for {len(missing)} questions that it answered: "
            "evaluate/tasks.py --rescore makes them"
        )
    return found


def less_other(sums_X2A2: np.ndarray, *, size: int, gain: float, less_plain: bool) -> np.ndarray:
    """What the first of two lines loses, less what the second does, from the sums of plain, exact
    and the arms of both lines; the first line has `size` of them."""
    first, second = (
        lost_at(sums_X2A2, gain=gain, less_plain=less_plain)
        for sums_X2A2 in np.split(sums_X2A2, [size + 2], axis=-2)
    )
    return first - second


def front(run: Path, beside: str, score: str = "") -> None:
    """Print the table of a run; beside: the line that losses are compared with."""
    records = read_run(run).records
    if PLAIN not in records:
        raise BadInput(f"{run} has no arm plain to compare with")
    lines = curves(summarize(records))
    lines = {
        line: arms
        for line, arms in lines.items()
        if exact_beside(arms[0]["arm"], records)
        and all(row[GAIN]["value"] is not None for row in arms)
    }
    if beside not in lines:
        raise BadInput(f"{run} has no line {beside!r} to compare with; it has {', '.join(lines)}")
    found = shared_questions(records)
    questions = list(found[PLAIN])
    scores = {arm: scores_of(run, arm, score, questions) for arm in records} if score else {}
    losses = {score: (f"{score} - plain", True, "+.3f")} if score else LOSSES

    def parts(line: str, key: str) -> np.ndarray:
        """[Q, 2, A, 2]: of every question and arm, the sums of tokens a round and of a loss."""
        names = [arm["arm"] for arm in lines[line]]
        names = [PLAIN, exact_beside(names[0], list(records)), *names]
        rates = [rate_parts("tokens_per_round", [found[n][q] for q in questions]) for n in names]
        if score:
            lost = [[(scores[name][q], 1) for q in questions] for name in names]
        else:
            lost = [rate_parts(key, [found[name][q] for q in questions]) for name in names]
        return np.array([rates, lost], dtype=np.float64).transpose(2, 0, 1, 3)

    solved = f", {score} of plain {np.mean(list(scores[PLAIN].values())):.3f}" if score else ""
    print(f"{len(questions)} questions{solved}; intervals of 95 %\n")
    titles = [title for title, _, _ in losses.values()]
    compared = f"{titles[0]}, less that of `{beside}`"
    print("| line | gain | value |", *(f"{title} |" for title in [*titles, compared]))
    print("|---" * (4 + len(losses)) + "|")
    for line, arms in lines.items():
        gains, values = [row[GAIN]["value"] for row in arms], [row["value"] for row in arms]
        for gain in GAINS:
            value = crossing(gains, values, gain)
            if np.isnan(value):
                continue
            cells = [f"{value:.3g}"]
            for key, (_, less, form) in losses.items():
                lost = partial(lost_at, gain=gain, less_plain=less)
                loss = interval(parts(line, key), lost)
                cells.append(cell_text(loss if key != "repetition" else loss["value"], form))
            first, (_, less, _) = next(iter(losses.items()))
            both = np.concatenate([parts(line, first), parts(beside, first)], axis=2)
            gap = interval(both, partial(less_other, size=len(arms), gain=gain, less_plain=less))
            cells.append("" if line == beside else cell_text(gap, "+.3f"))
            print(f"| `{line}` | {gain:.1f} |", *(f"{cell} |" for cell in cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="The folder of a run with the arms plain and exact.")
    parser.add_argument("beside", nargs="?", default="path", help="The line to compare with.")
    parser.add_argument("--score", default="", help="A score in place of what the records hold.")
    options = parser.parse_args()
    ended_by(lambda: front(options.run, options.beside, options.score))

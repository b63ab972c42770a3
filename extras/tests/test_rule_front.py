"""extras/rule_front.py: what rules and scores lose at the same gain."""

import random

import numpy as np
import pytest
from commands import load_command
from hand_records import made_run, write_run

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import GAIN, crossing, equal_gain
from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.tasks.task_scores import score_run

FRONT = load_command("extras/rule_front.py")


def test_the_front_of_a_run(tmp_path, capsys):
    """It is what the report's equal-gain table has; what cannot be read off is told."""
    records = made_run(16)
    FRONT.front(write_run(tmp_path / "run", records), "fsd")
    (row,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("| `fsd` | 1.1 "))
    rows = equal_gain(records, summarize(records))
    (wanted,) = (x for x in rows if (x["line"], x[GAIN]) == ("fsd", 1.1))
    cells = f" | {wanted['regret_per_token']['value']:.3f} ["
    assert cells in row
    for lacking, told in {"plain": "no arm plain", "exact": "no line 'fsd'"}.items():
        less = {arm: rows for arm, rows in records.items() if arm != lacking}
        with pytest.raises(BadInput, match=told):
            FRONT.front(write_run(tmp_path / lacking, less), "fsd")


def test_the_front_of_a_score(tmp_path, capsys):
    """It is what a hand interpolates between two values."""
    draw, records = random.Random(5), made_run(16)
    for arm, rows in records.items():
        for row in rows:
            right = draw.random() < (0.9 if arm in ("plain", "exact") else 0.5)
            row["turns"][0]["text"] += f"The answer is {18 if right else 17}."
    run = write_run(tmp_path / "run", records)
    questions = [Question(i, "", ["?"], ["18"]) for i in range(16)]
    _, compared = score_run(records, questions, "last_number", run)
    FRONT.front(run, "fsd", "last_number")
    printed = capsys.readouterr().out
    solved = {row["arm"]: row["mean"]["value"] for row in compared if row["score"] == "last_number"}
    arms = [row for row in summarize(records) if row["line"] == "fsd"]
    gains = [row[GAIN]["value"] for row in arms]
    at = crossing(gains, [solved[row["arm"]] for row in arms], 1.1)
    assert f"last_number of plain {solved['plain']:.3f};" in printed
    (row,) = (line for line in printed.splitlines() if line.startswith("| `fsd` | 1.1 "))
    assert f"| {at - solved['plain']:+.3f} [" in row and row.endswith("|  |")
    rows = [line for line in printed.splitlines() if line.startswith("| `random` | ")]
    assert rows and not any(row.endswith("|  |") for row in rows)
    some = {arm: rows[:9] for arm, rows in records.items()}
    score_run(some, questions, "last_number", run)
    with pytest.raises(BadInput, match="no last_number of plain for 7 questions"):
        FRONT.front(run, "fsd", "last_number")


def test_two_lines_are_compared_at_the_same_gain():
    """Gains 1.15, 1.05 and 1.25: 1.1 is first had half way between the first two; the other line,
    without the first arm, has it a quarter of the way between its two."""
    tokens, scores = [1.0, 2.0, 2.3, 2.1, 2.5], [0.8, 0.8, 0.5, 0.7, 0.1]
    line = np.array([[(value, 1) for value in row] for row in (tokens, scores)])
    both = np.concatenate([line, line[:, [0, 1, 3, 4]]], axis=1)
    lost = FRONT.less_other(both, size=3, gain=1.1, less_plain=True)
    assert lost == pytest.approx((0.6 - 0.8) - (0.55 - 0.8))

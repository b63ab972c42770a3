"""extras/rule_front.py: what rules and scores lose at the same gain."""

import random
from functools import partial

import numpy as np
import pytest
from commands import load_command
from hand_records import made_run, write_run

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import GAIN, crossing, equal_gain, lost_at
from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.evaluation.run_data import read_run
from eagle_fsd.tasks.task_scores import score_run

FRONT = load_command("extras/rule_front.py")


def table(printed: str) -> dict[tuple[str, str], list[str]]:
    """The cells of every row, by its line and gain."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines()]
    return {tuple(cells[:2]): cells[2:] for cells in rows if cells}


def test_the_front_of_a_run(tmp_path, capsys):
    """Between two arms it is what the report's equal-gain table has, and half way from exact to the
    first arm half of what that has lost; what cannot be read off is told."""
    records = made_run(16)
    run = write_run(tmp_path / "run", records)
    FRONT.front(run, "fsd")
    printed, rows = table(capsys.readouterr().out), summarize(records)
    (wanted,) = (x for x in equal_gain(records, rows) if (x["line"], x[GAIN]) == ("fsd", 1.1))
    assert printed["fsd", "1.10"][1].startswith(f"{wanted['regret_per_token']['value']:.3f} [")
    first = next(row for row in rows if row["arm"] == "fsd:0.2")
    half = (1 + first[GAIN]["value"]) / 2
    front = FRONT.at_equal_gain(read_run(run), [FRONT.REGRET], "random", [half])
    (row,) = (row for row in front if row["line"] == "fsd")
    assert row["value"] == pytest.approx(0.1)
    assert row["regret_per_token"]["value"] == pytest.approx(first["regret_per_token"]["value"] / 2)
    other = next(row for row in front if row["line"] == "random")
    gap = row["regret_per_token"]["value"] - other["regret_per_token"]["value"]
    assert row["regret_per_token_minus"]["value"] == pytest.approx(gap)
    assert other["regret_per_token_minus"] is None
    for lacking, told in {"plain": "no arm plain", "exact": "no line of 'fsd'"}.items():
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
    rows = table(printed)
    assert rows["fsd", "1.10"][1].startswith(f"{at - solved['plain']:+.3f} [")
    assert rows["fsd", "1.10"][-1] == "-" and rows["random", "1.10"][-1] != "-"
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
    lost = partial(lost_at, gain=1.1, less_plain=True)
    assert FRONT.less_other(both, lost=lost, size=3) == pytest.approx((0.6 - 0.8) - (0.55 - 0.8))

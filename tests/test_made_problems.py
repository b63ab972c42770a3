"""The made problems of scripts/analysis: what they look like, and how their answers are scored."""

import json
import random
import re
import subprocess
import sys

import pytest
from commands import ROOT, load_command, write_rows

MADE = load_command("scripts/analysis/made_problems.py")


def some_problems(count: int) -> list[tuple[str, str, str, int]]:
    """Kind, question, answer, number."""
    made = MADE.problems(random.Random(3))
    return [(name.split()[0], *problem) for name, problem in (next(made) for _ in range(count))]


def test_the_working_of_a_made_answer_is_right_and_that_of_a_changed_one_is_not():
    """Any other digit before the last sentence; another last sentence changes nothing."""
    kinds = set()
    for kind, question, answer, number in some_problems(180):
        steps = MADE.working(kind, question, number)
        assert steps and all(step in f" {answer}" for step in steps), (question, answer)
        assert int(re.findall(r"\d+", answer)[-1]) == number
        working = answer[: answer.rindex(".", 0, -1)]
        for place, char in enumerate(working):
            if char.isdigit():
                other = answer[:place] + str((int(char) + 1) % 10) + answer[place + 1 :]
                assert not all(step in f" {other}" for step in steps), (question, other)
        assert all(step in f" {working}. Well, {number}." for step in steps)
        kinds.add(kind)
    assert kinds == {"sums", "sorting", "counting"}


@pytest.mark.processes
def test_scores_get_one_of_the_working(tmp_path):
    """Of three answers one has the number alone; one that lacks the number is wrong whatever it
    works out."""
    question = {"question_id": 1, "category": "counting 1", "reference": ["2"]}
    question |= {"turns": ["How often does lamp stand in: lamp spoon lamp?"]}
    texts = ["One by one: lamp 1, lamp 2. In all: 2.", "One by one: spoon 1, lamp 2. In all: 2."]
    texts += ["One by one: lamp 1, lamp 2. In all: 3."]
    questions = write_rows(tmp_path / "test.jsonl", question)
    choices = [{"index": i, "turns": [text]} for i, text in enumerate(texts)]
    (tmp_path / "answers").mkdir()
    (tmp_path / "scores").mkdir()
    write_rows(tmp_path / "answers" / "plain.jsonl", {"question_id": 1, "choices": choices})
    rows = [
        {"question_id": 1, "choice": i, "scores": {"last_number": right}}
        for i, right in enumerate((1.0, 1.0, 0.0))
    ]
    file = write_rows(tmp_path / "scores" / "plain.jsonl", *rows)
    script = ROOT / "scripts" / "analysis" / "made_workings.py"
    subprocess.run([sys.executable, script, tmp_path, questions], check=True)
    found = [json.loads(line)["scores"]["with_working"] for line in file.read_text().splitlines()]
    assert found == [1.0, 0.0, 0.0]

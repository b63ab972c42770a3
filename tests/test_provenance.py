"""How a run was made, without the machine's paths."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from eagle_fsd.config import BadInput
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.folder import Run
from eagle_fsd.runs.provenance import describe_run

ROOT = Path(__file__).parent.parent


def without_machine_paths(described: dict) -> str:
    """What is published, as text."""
    return described["command"]


@pytest.mark.parametrize("form", ["{}/runs/a", "--output={}/runs/a", "{}"])
def test_no_path_of_the_checkout_is_published(monkeypatch, form):
    """Options given as one word or two, or the checkout itself: relative in command and options."""
    argument = form.format(ROOT)
    monkeypatch.setattr(sys, "argv", [f"{ROOT}/train/train_head.py", "--x", argument])
    described = describe_run("cpu")
    assert str(ROOT) + os.sep not in json.dumps(described)
    assert str(ROOT) not in without_machine_paths(described)
    assert shlex.split(described["command"])[:2] == ["python", "train/train_head.py"]
    options = without_checkout({"output": f"{ROOT}/runs/a", "steps": 3, "names": ["a"]})
    assert options == {"output": "runs/a", "steps": 3, "names": ["a"]}
    assert described["versions"].keys() >= {"torch", "transformers", "python"}


def test_a_run_of_paths_inside_the_checkout_can_be_continued(tmp_path):
    """Settings are recorded with relative paths: the same command again was refused for them."""
    settings = {"head": f"{ROOT}/checkpoints/some-head", "device": "cpu", "questions": 2}
    other = settings | {"head": f"{ROOT}/checkpoints/other-head"}
    record = {"question_id": 1, "arm": "plain", "answer_id": "a", "tstamp": 0.0, "turns": []}

    def answered(settings: dict, question_id: int) -> Run:
        extendable = frozenset({"questions"})
        run = Run(tmp_path / "run", settings, extendable=extendable, arms={"plain": "plain"})
        run.begin_session(timed=True, warnings=[])
        run.add("plain", record | {"question_id": question_id})
        return run

    answered(settings, 1)
    run = answered(settings | {"questions": 3}, 2)
    assert run.records["plain"][1, 0] == record | {"session": "1"}
    assert [session["session"] for session in run.sessions] == ["1", "2"]
    rows = {arm: list(rows.values()) for arm, rows in run.records.items()}
    assert run.origin(rows)[1] == 0
    rows["exact"] = [record | {"question_id": 2, "session": "1"}]
    assert run.origin(rows)[1] == 1, "question 2 was answered in two sessions"
    del run  # the folder is free again
    with pytest.raises(BadInput, match="other-head"):
        answered(other, 3)

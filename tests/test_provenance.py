"""How a run was made, without the machine's paths."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from eagle_fsd.runs.checkout import without_checkout
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

"""evaluate/replay.py on a tiny target: tables, extending a run, and what it refuses."""

import json
import shutil

import pytest
from commands import QUESTIONS, change, rows, write_rows
from tiny_folder import write_random_head

COMMAND = "evaluate/replay.py"


@pytest.fixture
def options(models, tmp_path):
    path = write_rows(tmp_path / "question.jsonl", *QUESTIONS)
    target, head = models
    return [
        *("--target", target, "--heads", head, "--question_file", path, "--max_new_tokens", 11),
        *("--arms", "exact@eagle:7x3x4", "exact@hybrid:4x4x1", "fsd:0.2"),
        *("--texts", tmp_path / "texts", "--output", tmp_path / "run", "--device", "cpu"),
    ]


def test_command_writes_tables_and_is_extended(call, options, models, tmp_path):
    """A row per head and arm; a second run replays only what was added, a head of other weights
    under the same name being another one."""
    folder = tmp_path / "run"
    assert "| exact@eagle:7x3x4 " in call(COMMAND, *options, "--questions", 2)
    replay = json.loads((folder / "replay.json").read_text())
    arms = ["exact@eagle:7x3x4", "exact@hybrid:4x4x1", "fsd:0.2"]
    assert [row["arm"] for row in replay["arms"]] == arms
    assert replay["arms"][0]["tokens_per_round"]["value"] >= 1
    assert len(replay["levels"]) == 6
    (path,) = (folder / "records").iterdir()
    before = path.read_text()
    other = write_random_head(tmp_path / "other")
    more = [*options, "--questions", 3, "--heads", models[1], other]
    call(COMMAND, *more)
    after = path.read_text()
    assert after.startswith(before) and after.count("\n") == before.count("\n") + 1
    replay = json.loads((folder / "replay.json").read_text())
    heads = [str(models[1]), str(other)]
    found = [(row["head"], row["arm"], row["questions"]) for row in replay["arms"]]
    assert found == [(head, arm, 3) for head in heads for arm in arms]
    assert len(rows(tmp_path / "texts/records/texts.jsonl")) == 3
    write_random_head(other, seed=8)
    call(COMMAND, *more)
    assert path.read_text() == after
    assert len(list((folder / "records").glob("other-*"))) == 2


def test_texts_of_a_target_that_changed_are_refused(call, options, models, tmp_path):
    """Under the same path. Bug held down: its heads were replayed on the texts of the old one; and
    a finished replay took no notice of a question's new text."""
    target = shutil.copytree(models[0], tmp_path / "target")
    options += ["--target", target]
    assert "| exact@eagle:7x3x4 " in call(COMMAND, *options)
    write_rows(tmp_path / "question.jsonl", *(q | {"turns": ["Else?"]} for q in QUESTIONS))
    assert "was answered with another text" in call(COMMAND, *options)
    write_rows(tmp_path / "question.jsonl", *QUESTIONS)
    change(target / "model.safetensors")
    for more in ([], ["--texts", tmp_path / "more"], ["--output", tmp_path / "more"]):
        told = call(COMMAND, *options, *more)
        assert "other settings (there, here): {'target/model.safetensors': (" in told

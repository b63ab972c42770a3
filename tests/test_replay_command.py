"""evaluate/replay.py on a tiny target: tables, extending a run, and what it refuses."""

import json

import pytest
from commands import load_command
from tiny_folder import write_random_head, write_target

pytestmark = pytest.mark.processes  # whole commands


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target"), write_random_head(folder / "head")


@pytest.fixture
def options(models, tmp_path):
    path = tmp_path / "question.jsonl"
    questions = [
        {"question_id": i, "category": "ab"[i % 2], "turns": [f"Say {i}."]} for i in range(4)
    ]
    path.write_text("".join(json.dumps(q) + "\n" for q in questions))
    target, head = models
    return [
        *("--target", target, "--heads", head, "--question_file", path, "--max_new_tokens", 11),
        *(
            "--trees",
            "7x3x4",
            "4x4x1",
            "--arms",
            "fsd:0.2",
            "fsd-paper:0.2",
            "--true_features",
            "True",
        ),
        *("--texts", tmp_path / "texts", "--output", tmp_path / "run", "--device", "cpu"),
    ]


COMMAND = load_command("evaluate/replay.py")


def call(options: list) -> None:
    COMMAND.main(list(map(str, options)))


def test_command_writes_tables_and_is_extended(options, models, tmp_path, capsys):
    """A row per head and tree; a second run replays only what was added."""
    call([*options, "--questions", 2])
    assert "| 7x3x4 " in capsys.readouterr().out
    replay = json.loads((tmp_path / "run" / "replay.json").read_text())
    assert [row["tree"] for row in replay["heads"][0]["trees"]] == ["7x3x4", "4x4x1"]
    assert replay["heads"][0]["trees"][0]["tokens_per_round"]["value"] >= 1
    before = (tmp_path / "run" / "records" / "head.jsonl").read_text()
    other = write_random_head(tmp_path / "other")
    call([*options, "--questions", 4, "--heads", models[1], other])
    after = (tmp_path / "run" / "records" / "head.jsonl").read_text()
    assert after.startswith(before) and after.count("\n") == before.count("\n") + 2
    replay = json.loads((tmp_path / "run" / "replay.json").read_text())
    assert [(h["head"], h["trees"][0]["questions"]) for h in replay["heads"]] == [
        ("head", 4),
        ("other", 4),
    ]
    assert len((tmp_path / "texts/records/texts.jsonl").read_text().splitlines()) == 4


def test_command_proves_itself_by_decoding(options, tmp_path, capsys):
    """--decoded 2: the first two questions are decoded; all rounds and texts agree."""
    call([*options, "--questions", 3, "--decoded", 2])
    assert "same rounds" in capsys.readouterr().out
    replay = json.loads((tmp_path / "run" / "replay.json").read_text())
    for row in replay["heads"][0]["decoded"]:
        assert (row["questions"], row["equal"], row["same_text"]) == (2, 2, 2)
        assert row["decoded_tokens_per_round"] == row["replayed_tokens_per_round"]
    assert [row["tree"] for row in replay["heads"][0]["decoded"]] == ["7x3x4", "4x4x1"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--trees", "15-4-6"], "a tree is DRAFTSxLEVELSxTOPK, such as 15x4x6; got '15-4-6'"),
        (["--trees", "99x2x3"], "num_draft_tokens 99 is more than the 12 candidates"),
        (["--trees", "17x17x1"], "tree 17x17x1 is deeper than the 16 of replay"),
        (["--arms", "exact"], "arm 'exact': replay follows fsd and fsd-paper"),
        (["--arms", "fsd:-1"], "threshold must be 0 or above, got -1.0"),
        (["--arms", "fsd:0.2,divergence=jsd"], "unknown divergence 'jsd'"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
        (["--max_new_tokens", "0"], "max_new_tokens must be at least 1"),
        (["--heads", "nowhere/head"], "nowhere/head"),
        (["--questions", "9"], "--questions must be in 1..4, got 9"),
    ],
)
def test_bad_options_are_told_in_one_line(options, changed, message):
    with pytest.raises(SystemExit) as exit:
        call([*options, *changed])
    told = str(exit.value)
    assert told.startswith("error: ") and message in told and "\n" not in told


def test_records_of_other_settings_are_refused(options, models, tmp_path):
    """Also of a head whose weights have changed since."""
    call([*options, "--questions", 1])
    with pytest.raises(SystemExit, match="other settings.*max_new_tokens"):
        call([*options, "--questions", 1, "--max_new_tokens", 12])

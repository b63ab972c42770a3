"""evaluate/replay.py on a tiny target: tables, extending a run, and what it refuses."""

import json

import pytest
from commands import load_command
from tiny_folder import write_random_head, write_target

COMMAND = load_command("evaluate/replay.py")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target", layers=2), write_random_head(folder / "head")


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
        *("--trees", "7x3x4", "4x4x1", "--arms", "fsd:0.2", "fsd-paper:0.2"),
        *("--texts", tmp_path / "texts", "--output", tmp_path / "run", "--device", "cpu"),
    ]


def call(options: list) -> None:
    COMMAND.main(list(map(str, options)))


def test_command_writes_tables_and_is_extended(options, models, tmp_path, capsys):
    """A row per head and tree; a second run replays only what was added, a head of other weights
    under the same name being another one."""
    call([*options, "--questions", 2])
    assert "| 7x3x4 " in capsys.readouterr().out
    replay = json.loads((tmp_path / "run" / "replay.json").read_text())
    assert [row["tree"] for row in replay["trees"]] == ["7x3x4", "4x4x1"]
    assert replay["trees"][0]["tokens_per_round"]["value"] >= 1
    assert len(replay["levels"]) == 4 and len(replay["rules"]) == 4
    (path,) = (tmp_path / "run" / "records").iterdir()
    before = path.read_text()
    other = write_random_head(tmp_path / "other")
    call([*options, "--questions", 4, "--heads", models[1], other])
    after = path.read_text()
    assert after.startswith(before) and after.count("\n") == before.count("\n") + 2
    replay = json.loads((tmp_path / "run" / "replay.json").read_text())
    found = [(row["head"], row["tree"], row["questions"]) for row in replay["trees"]]
    assert found == [(h, t, 4) for h in ("head", "other") for t in ("7x3x4", "4x4x1")]
    assert len((tmp_path / "texts/records/texts.jsonl").read_text().splitlines()) == 4
    write_random_head(other, seed=8)
    call([*options, "--questions", 4, "--heads", models[1], other])
    assert path.read_text() == after
    assert len(list((tmp_path / "run" / "records").glob("other-*"))) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--trees", "15-4-6"], "a tree is DRAFTSxLEVELSxTOPK, such as 15x4x6; got '15-4-6'"),
        (["--trees", "17x17x1"], "tree 17x17x1 is deeper than the 16 of replay"),
        (["--arms", "exact"], "arm 'exact': replay follows fsd, and fsd-paper"),
        (["--arms", "fsd-paper:0.2,child=target"], "with child draft"),
        (["--arms", "fsd:-1"], "threshold must be 0 or above, got -1.0"),
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

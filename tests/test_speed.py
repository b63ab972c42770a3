"""evaluate/speed.py on a tiny target: what it writes, resuming, counting, and what it refuses."""

import json
import subprocess

import pytest
from test_commands import ROOT, load_command
from tiny_folder import write_random_head, write_target

pytestmark = pytest.mark.processes  # minutes together: not in the fast suite

QUESTIONS = [{"question_id": i, "category": "ab"[i % 2], "turns": [f"Say {i}."]} for i in range(3)]
COMMAND = load_command("evaluate/speed.py")
NAMES = ["generate", "plain", "exact", "exact_5x2x3", "fsd_js_T0.3", "fsd_js_T0.3_5x2x3", "lookup"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target"), write_random_head(folder / "head")


def speed_options(models, folder) -> list:
    path = folder / "question.jsonl"
    path.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    target, head = models
    return [
        *("--target", target, "--head", head, "--question_file", path, "--dtype", "float32"),
        *("--num_draft_tokens", 7, "--tree_depth", 3, "--branch_top_k", 3, "--device", "cpu"),
        *("--arms", "generate", "plain", "exact", "fsd", "lookup", "--thresholds", 0.3),
        *("--trees", "", "5x2x3", "--prompts", 2, "--repeats", 2, "--max_new_tokens", 9),
        *("--profile_prompts", 1, "--context", 40, "--step_repeats", 2),
        *("--reference_tokens_per_second", "elsewhere=100", "--output", folder / "run"),
    ]


def call(options: list) -> None:
    COMMAND.main(list(map(str, options)))


def files(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.jsonl")}


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    options = speed_options(models, folder)
    call(options)
    return options, folder / "run"


def test_writes_table_json_and_picture(finished):
    """Every arm in every part, in order; the reference is marked as not measured."""
    _, run = finished
    text = (run / "speed.md").read_text()
    assert "elsewhere: 100 tokens/s (published, not measured here)" in text
    assert "| draft level " in text and "| verify 60 " in text
    assert (run / "speed.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((run / "speed.json").read_text())
    assert [row["arm"] for row in found["arms"]] == NAMES
    assert [row["arm"] for row in found["rounds"]] == NAMES * 2
    trees = {row["arm"]: row["tree"] for row in found["arms"]}
    assert (trees["exact"], trees["exact_5x2x3"]) == ("7x3x3", "5x2x3")
    assert trees["plain"] is trees["lookup"] is None
    assert found["sessions"][0]["first_call_seconds"].keys() == set(NAMES)
    assert found["sessions"][0]["machine"]["threads"] >= 1


def test_arms_are_counted_alike(finished):
    """In float32 all lossless arms give the same tokens in all repeats, so the same count."""
    _, run = finished
    tokens = {}
    for name in NAMES:
        for repeat in (1, 2):
            lines = (run / "records" / f"repeat_{repeat}" / f"{name}.jsonl").read_text()
            rows = [json.loads(line) for line in lines.splitlines()[1:]]
            assert len(rows) == 2
            tokens[name, repeat] = {r["question_id"]: r["turns"][0]["token_ids"] for r in rows}
    for name in NAMES:
        assert tokens[name, 1] == tokens[name, 2]
        if "fsd" not in name:
            assert tokens[name, 1] == tokens["plain", 1]
    arms = json.loads((run / "speed.json").read_text())["arms"]
    for row in arms:
        assert row["speed_vs_references"]["elsewhere"] == row["tokens_per_second"] / 100
        assert len(row["speed_vs_plain_by_repeat"]) == 2
    assert arms[1]["speed_vs_plain_by_repeat"] == [1, 1]


def test_phases_lie_within_the_answer(finished):
    """A clocked answer's phases sum to no more than its wall time, and shares to 1."""
    _, run = finished
    for name in NAMES:
        for line in (run / "profile" / f"{name}.jsonl").read_text().splitlines()[1:]:
            row = json.loads(line)
            if name == "generate":
                assert row["phases"] is None
                continue
            total = sum(row["phases"].values())
            assert 0 < total <= row["seconds"]
            assert row["synchronizations_per_round"] is None
    for row in json.loads((run / "speed.json").read_text())["rounds"]:
        if row["phase_share"] is not None:
            assert sum(row["phase_share"].values()) == pytest.approx(1)
            assert sum(row["phase_ms"].values()) == pytest.approx(row["ms_per_round"])


def test_a_finished_run_is_only_reported_again(finished, capsys):
    """No row is added; the report comes without loading the model."""
    options, run = finished
    before = files(run)
    call(options)
    assert files(run) == before
    assert "loading" not in capsys.readouterr().err.lower()


def test_a_killed_run_goes_on(finished, models, tmp_path):
    """With rows missing and one torn, only those are made; more repeats add to what is there."""
    options = speed_options(models, tmp_path)
    options[options.index("--arms") + 1 : options.index("--thresholds")] = ["plain", "exact"]
    call(options)
    run = tmp_path / "run"
    path = run / "records" / "repeat_2" / "exact.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1] + lines[2][:30])
    other = files(run)
    call([*options, "--repeats", 3])
    after = files(run)
    changed = {name for name, text in after.items() if other.get(name) != text}
    assert changed == {
        *("sessions.jsonl", "records/repeat_2/exact.jsonl"),
        *("records/repeat_3/plain.jsonl", "records/repeat_3/exact.jsonl"),
        "records/repeat_3/exact_5x2x3.jsonl",
    }
    assert after["records/repeat_2/exact.jsonl"].startswith(lines[0] + lines[1])
    assert after["records/repeat_2/exact.jsonl"].count("\n") == 3
    assert "timed in more than one process" in (run / "speed.md").read_text()


def test_other_settings_are_refused(finished):
    options, _ = finished
    with pytest.raises(SystemExit, match="other settings.*max_new_tokens"):
        call([*options, "--max_new_tokens", 5])


def test_one_of_several_processes_is_refused(models, tmp_path, monkeypatch):
    """A launcher's processes would time each other: told before anything is written."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="error: 2 processes.*without a launcher"):
        call(speed_options(models, tmp_path))
    assert not (tmp_path / "run").exists()


BAD = {
    "unknown arm": (["--arms", "fsdd"], "fsdd"),
    "malformed tree": (["--trees", "15-4-6"], "15-4-6"),
    "impossible tree": (["--trees", "99x2x3"], "99"),
    "too many prompts": (["--prompts", "4"], "1..3"),
    "no repeat": (["--repeats", "0"], "--repeats must be at least 1, got 0"),
    "more profiled than asked": (["--profile_prompts", "3"], "--profile_prompts 3"),
    "no context": (["--context", "0"], "--context must be at least 1"),
    "context beyond positions": (["--context", "2040"], "2048"),
    "negative T": (["--thresholds", "-1"], "-1"),
    "no drafts to look up": (["--lookup_drafts", "0"], "num_draft_tokens must be at least 1"),
    "reference without number": (["--reference_tokens_per_second", "a=b"], "'a=b'"),
    "reference without name": (["--reference_tokens_per_second", "100"], "'100'"),
    "no budget": (["--max_new_tokens", "0"], "max_new_tokens"),
    "no such target": (["--target", "nowhere/at-all"], "nowhere/at-all"),
    "output not writable": (["--output", "/proc/run"], "/proc/run"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_options_are_told(models, tmp_path, capsys, fault):
    """Before weights load, naming the value."""
    extra, told = BAD[fault]
    with pytest.raises(SystemExit) as exit:
        call([*speed_options(models, tmp_path), *extra])
    text = str(exit.value)
    assert text.startswith("error: ") and told in text
    assert "loading" not in capsys.readouterr().err.lower()


def test_an_arm_that_cannot_be_compiled_is_left_out(models, tmp_path, monkeypatch, capsys):
    """Without a C++ compiler the others go on, and the reason is told."""
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    monkeypatch.setattr("torch._inductor.config.force_disable_caches", True)
    options = speed_options(models, tmp_path)
    options[options.index("--arms") + 1 : options.index("--thresholds")] = [
        "plain",
        "generate_compiled",
    ]
    call(options)
    assert "generate_compiled is left out" in capsys.readouterr().err
    found = json.loads((tmp_path / "run" / "speed.json").read_text())
    assert "ompiler" in found["skipped"]["generate_compiled"]
    assert [row["arm"] for row in found["arms"]] == ["plain"]


@pytest.mark.embedded
def test_script_runs_with_compiled_and_automatic_trees(models, tmp_path):
    """The script sets up and runs; generate_compiled compiles; `auto` names a tree."""
    options = speed_options(models, tmp_path)
    options[options.index("--arms") + 1 : options.index("--thresholds")] = [
        *("plain", "generate_compiled", "exact"),
    ]
    options[options.index("--trees") + 1 : options.index("--prompts")] = ["auto"]
    command = ["bash", str(ROOT / "scripts" / "speed_cpu.sh"), *map(str, options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "speed.json").read_text())
    rows = {row["arm"]: row for row in found["arms"]}
    assert rows.keys() | found["skipped"].keys() == {"plain", "generate_compiled", "exact_auto"}
    assert rows["exact_auto"]["tree"].count("x") == 2

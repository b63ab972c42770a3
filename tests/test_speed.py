"""evaluate/speed.py on a tiny target: what it writes, resuming, counting, and what it refuses."""

import json
import runpy
import subprocess
from pathlib import Path

import pytest
from tiny_folder import write_random_head, write_target
from transformers import LlamaConfig

pytestmark = pytest.mark.processes  # minutes together: not in the fast suite

QUESTIONS = [{"question_id": i, "category": "ab"[i % 2], "turns": [f"Say {i}."]} for i in range(3)]
ROOT = Path(__file__).parent.parent
MAIN = runpy.run_path(str(ROOT / "evaluate" / "speed.py"))["main"]
DRAFTING = [
    *("exact@eagle:7x3x3", "exact@eagle:5x2x3"),
    *("fsd:0.3@eagle:7x3x3", "fsd:0.3@eagle:5x2x3", "exact@lookup:10"),
]
NAMES = ["generate", "plain", *DRAFTING]


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
        *("--device", "cpu", "--prompts", 2, "--repeats", 2, "--max_new_tokens", 9),
        *("--profile_prompts", 1, "--context", 40, "--step_repeats", 2),
        *("--reference_tokens_per_second", "elsewhere=100", "--output", folder / "run"),
        *("--arms", *NAMES),
    ]


def call(options: list) -> None:
    MAIN(list(map(str, options)))


def files(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.jsonl")}


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    options = speed_options(models, folder)
    call(options)
    return options, folder / "run"


def found(run) -> dict:
    return json.loads((run / "speed.json").read_text())


def test_writes_table_json_and_plot(finished):
    """Every arm in every part, in order; the reference is marked as not measured."""
    _, run = finished
    text = (run / "speed.md").read_text()
    assert "elsewhere: 100 tokens/s (published, not measured here)" in text
    assert "| draft level " in text and "| verify 60 " in text
    assert "<svg" in (run / "speed.svg").read_text() and (run / "speed.pdf").stat().st_size > 999
    assert [row["arm"] for row in found(run)["arms"]] == NAMES
    assert [row["arm"] for row in found(run)["rounds"]] == NAMES * 2
    trees = {row["arm"]: row["tree"] for row in found(run)["arms"]}
    assert trees["exact@eagle:5x2x3"] == "5x2x3"
    assert not trees["plain"] and not trees["exact@lookup:10"]
    (machine,) = found(run)["machines"]
    assert machine["first_answer_seconds"].keys() == set(NAMES)
    assert machine["threads"] >= 1 and machine["bandwidth"] > 0


def test_arms_are_counted_alike(finished):
    """In float32 all lossless arms give the same tokens in all repeats, so the same count."""
    _, run = finished
    tokens = {}
    for path in (run / "records").glob("*_*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            if row["choice"] >= 0 and row["turns"]:
                key = row["question_id"], row["choice"]
                tokens.setdefault(row["arm"], {})[key] = row["turns"][0]["token_ids"]
    plain = (run / "records" / "plain.jsonl").read_text().splitlines()
    plain = {
        row["question_id"]: row["turns"][0]["token_ids"]
        for row in map(json.loads, plain)
        if row["turns"]
    }
    assert set(tokens) == set(DRAFTING)
    for arm, answers in tokens.items():
        assert {choice for key, choice in answers if key != "context 40"} == {0, 1}
        if "fsd" not in arm:
            assert all(answer == plain[key] for (key, _), answer in answers.items())
    for row in found(run)["arms"]:
        assert row["speed_vs_references"]["elsewhere"] == row["tokens_per_second"]["value"] / 100
        assert len(row["speed_vs_plain_by_repeat"]) == 2
        if "exact" in row["arm"]:
            assert row["speed_vs_exact"]["value"] == 1
    assert found(run)["arms"][1]["speed_vs_plain_by_repeat"] == [1, 1]


def test_rounds_and_their_phases(finished):
    """Phases sum to the clocked round; the first round is no part of the others."""
    _, run = finished
    for row in found(run)["rounds"]:
        assert row["peak_mebibytes"] > 0
        if row["arm"] == "generate":
            assert row["phase_ms"] is None
            continue
        assert sum(row["phase_ms"].values()) == pytest.approx(row["clocked_ms_per_round"])
        assert row["synchronizations"] is None
        assert 0 < row["roofline_of_round"] and row["gigabytes_read"] > 0
        assert (row["drafter_mebibytes"] is not None) == ("eagle" in row["arm"])
    for line in (run / "records" / "plain.jsonl").read_text().splitlines():
        if profile := json.loads(line).get("profile"):
            assert profile["start_seconds"] > 0 and profile["round_seconds"] > 0
            assert profile["rounds"] == profile["round_tokens"] == 9 - 2  # prefill, first round


def test_a_finished_run_is_only_reported_again(finished, capsys):
    """No row is added; the report comes without loading the model."""
    options, run = finished
    before = files(run)
    call(options)
    assert files(run) == before
    assert "loading" not in capsys.readouterr().err.lower()


def test_a_killed_run_goes_on(models, tmp_path):
    """With records missing and one torn, only those are made; more repeats add to what is there."""
    options = [*speed_options(models, tmp_path)]
    options[options.index("--arms") + 1 :] = ["plain", "exact@eagle:7x3x3"]
    call(options)
    run = tmp_path / "run"
    path = run / "records" / "exact__eagle_7x3x3.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]) + lines[3][:30])
    other = files(run)
    call([*options, "--repeats", 3])
    after = files(run)
    changed = {name for name, text in after.items() if other.get(name) != text}
    assert changed >= {"records/exact__eagle_7x3x3.jsonl", "records/machine.jsonl"}
    assert "records/forwards.jsonl" not in changed
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    keys = [(row["question_id"], row["choice"]) for row in rows]
    assert len(keys) == len(set(keys)) == len(lines) + 2
    assert path.read_text().startswith("".join(lines[:3]))
    assert "timed in more than one process" in (run / "speed.md").read_text()


def test_other_settings_are_refused(finished):
    options, _ = finished
    with pytest.raises(SystemExit, match="other settings.*max_new_tokens"):
        call([*options, "--max_new_tokens", 5])


def test_one_of_several_processes_is_refused(models, tmp_path, monkeypatch):
    """A launcher's processes would time each other: told before anything is measured."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="error: 2 processes.*without a launcher"):
        call(speed_options(models, tmp_path))
    assert not (tmp_path / "run" / "run.json").exists()


BAD = {
    "unknown arm": (["--arms", "fsdd"], "fsdd"),
    "malformed tree": (["--arms", "exact@eagle:15-4-6"], "15-4-6"),
    "impossible tree": (["--arms", "exact@eagle:99x2x3"], "99"),
    "an arm twice": (["--arms", "fsd:0.3", "fsd:.3"], "are the same"),
    "too many prompts": (["--prompts", "4"], "1..3"),
    "no repeat": (["--repeats", "0"], "--repeats must be at least 1, got 0"),
    "more profiled than asked": (["--profile_prompts", "3"], "--profile_prompts 3"),
    "no context": (["--context", "1"], "--context must be at least 2"),
    "context beyond positions": (["--context", "2040"], "2048"),
    "negative T": (["--arms", "fsd:-1"], "-1"),
    "negative pattern": (["--accepted", "1", "-1"], "--accepted"),
    "nothing to look up": (["--arms", "exact@lookup:0"], "num_draft_tokens must be at least 1"),
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
    call([*speed_options(models, tmp_path), "--arms", "plain", "generate_compiled"])
    assert "generate_compiled is left out" in capsys.readouterr().err
    assert "ompiler" in found(tmp_path / "run")["skipped"]["generate_compiled"]
    assert [row["arm"] for row in found(tmp_path / "run")["arms"]] == ["plain"]


def test_random_weights_accept_what_the_pattern_says(models, tmp_path):
    """The rules' own work is done, by a head that reads three layers of the target."""
    LlamaConfig(
        vocab_size=307, hidden_size=32, intermediate_size=44, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2,
    ).save_pretrained(tmp_path)  # fmt: skip
    options = [*speed_options(models, tmp_path), "--target", f"random:{tmp_path / 'config.json'}"]
    options += ["--head", "random:eagle3:149", "--max_new_tokens", 31]
    call([*options, "--arms", "plain", "fsd:1@eagle:7x3x3", "exact@eagle:7x3x3"])
    plain, *rows = found(tmp_path / "run")["arms"]
    assert plain["tokens_per_round"]["value"] == 1
    assert [row["tokens_per_round"]["value"] for row in rows] == [
        2.5,
        2.5,
    ]  # 30 tokens in 3 patterns
    text = (tmp_path / "run" / "speed.md").read_text()
    assert "engine time, no quality: accepted drafts 0 1 2 3" in text
    assert "fuzzy share" not in text


@pytest.mark.embedded
def test_script_runs_with_compiled_and_automatic_trees(models, tmp_path):
    """The script sets up and runs; generate_compiled compiles; `auto` names a tree."""
    arms = ["plain", "generate_compiled", "exact@eagle:auto"]
    options = [*speed_options(models, tmp_path), "--arms", *arms]
    command = ["bash", str(ROOT / "scripts" / "speed_cpu.sh"), *map(str, options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {row["arm"]: row for row in found(tmp_path / "run")["arms"]}
    assert rows.keys() | found(tmp_path / "run")["skipped"].keys() == set(arms)
    assert rows["exact@eagle:auto"]["tree"].count("x") == 2

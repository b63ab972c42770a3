"""Bench runs on a tiny model: shards, choices, temperatures, traces, what may be added."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import ROOT, bench_options, load_command, rows
from tiny_folder import write_random_head, write_target

from eagle_fsd.evaluation.questions import answer_seed

pytestmark = pytest.mark.processes  # whole commands

COMMANDS = {name: load_command(f"evaluate/{name}.py") for name in ("mt_bench", "tasks")}
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch"]
LAUNCH += ["--config_file", str(ROOT / "scripts/accelerate/ddp.yaml")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target"), write_random_head(folder / "head")


@pytest.fixture
def call(capsys, monkeypatch):
    """Runs a command in this process and returns what it printed; a refusal as its text."""

    def run(name: str, *options: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        capsys.readouterr()
        try:
            COMMANDS[name].main()
        except SystemExit as exit:
            return str(exit.code)
        out = capsys.readouterr()
        return out.out + out.err

    return run


def launch(options: list) -> subprocess.Popen:
    command = [*LAUNCH, str(ROOT / "evaluate/mt_bench.py"), *map(str, options)]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def answers(folder: Path) -> dict:
    """arm -> (question, choice) -> token ids of all turns."""
    return {
        path.stem: {
            (row["question_id"], row["choice"]): [turn["token_ids"] for turn in row["turns"]]
            for row in rows(path)
        }
        for path in sorted((folder / "records").iterdir())
    }


SAMPLED = ["--questions", 5, "--temperature", 1, "--arms", "plain", "exact", "fsd:0.4"]
SAMPLED += ["path:0.5", "random:0.05"]


@pytest.mark.processes
def test_two_processes_answer_as_one(call, models, tmp_path):
    """Sampled answers equal those of one process; each is merged once; no speed is given."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    call("mt_bench", *bench_options(models, tmp_path / "one"), *SAMPLED)
    process = launch([*bench_options(models, tmp_path / "two"), *SAMPLED])
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert "seconds are not timings" in out and out.count("written to") == 1
    one, two = tmp_path / "one" / "run", tmp_path / "two" / "run"
    assert answers(one) == answers(two)
    assert all(len(rows(path)) == 5 for path in (two / "records").iterdir())
    assert not (two / "shards").exists()
    (session,) = json.loads((two / "run.json").read_text())["sessions"]
    assert session["processes"] == 2
    summary = json.loads((two / "summary.json").read_text())
    assert all(row["tokens_per_second"]["value"] is None for row in summary["rows"])


@pytest.mark.processes
def test_a_killed_worker_is_made_up_for(call, models, tmp_path):
    """kill -9 of one of two processes: the launch ends, what both wrote is kept, the next launch
    (of one process) answers the rest; the whole equals an unbroken run."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    long = ["--max_new_tokens", 60, "--questions", 5, "--arms", "plain", "exact", "fsd:0.4"]
    call("mt_bench", *bench_options(models, tmp_path / "whole"), *long)
    options = [*bench_options(models, tmp_path / "broken"), *long]
    process = launch(options)
    shard = tmp_path / "broken" / "run" / "shards" / "1.1" / "plain.jsonl"
    deadline = time.monotonic() + 120
    while not shard.is_file():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    workers = sorted(map(int, found.stdout.split()))
    os.kill(workers[-1], signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    assert process.returncode != 0, out
    kept = rows(shard)
    assert kept
    call("mt_bench", *options)
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    assert answers(whole) == answers(broken)
    merged = {row["answer_id"] for row in rows(broken / "records" / "plain.jsonl")}
    assert {row["answer_id"] for row in kept} <= merged and len(merged) == 5


def test_choices_have_seeds_of_their_own(call, models, tmp_path):
    """num_choices: a record each, one FastChat answer a question; they may be added later."""
    options = [*bench_options(models, tmp_path), "--questions", 2, "--temperature", 1]
    options += ["--arms", "plain", "exact"]
    call("mt_bench", *options)
    before = answers(tmp_path / "run")
    call("mt_bench", *options, "--num_choices", 3)
    after = answers(tmp_path / "run")
    for arm in ("plain", "exact"):
        assert len(after[arm]) == 6
        assert {key: after[arm][key] for key in before[arm]} == before[arm]
        texts = [str(after[arm][0, choice]) for choice in range(3)]
        assert len(set(texts)) == 3
        for row in rows(tmp_path / "run" / "answers" / f"{arm}.jsonl"):
            assert [choice["index"] for choice in row["choices"]] == [0, 1, 2]
    assert answer_seed(0, 5, 1) != answer_seed(0, 5, 1, 1) != answer_seed(0, 5, 0, 1)


def test_temperature_by_category(call, models, tmp_path):
    """FastChat's table: math is greedy, writing is sampled at 0.7, others too."""
    questions = [
        {"question_id": i, "category": category, "turns": ["Go on."]}
        for i, category in enumerate(["math", "writing", "stem", "new"])
    ]
    options = bench_options(models, tmp_path, questions)
    options += ["--questions", 4, "--category_temperatures", "--arms", "plain", "exact"]
    assert "temperature 0, 0.1, 0.7, " in call("mt_bench", *options)
    found = {
        row["category"]: row["temperature"] for row in rows(tmp_path / "run/records/plain.jsonl")
    }
    assert found == {"math": 0.0, "writing": 0.7, "stem": 0.1, "new": 0.7}
    told = call("mt_bench", *options, "--arms", "fsd:0.4,child=sample", "--output", tmp_path / "b")
    assert "needs temperature > 0" in told


def test_generate_may_answer_fewer(call, models, tmp_path):
    """The other arms' metrics stay over all questions; the ratio is over those both have."""
    options = [*bench_options(models, tmp_path), "--questions", 5, "--generate_questions", 2]
    call("mt_bench", *options)
    found = {
        row["arm"]: row for row in json.loads((tmp_path / "run/summary.json").read_text())["rows"]
    }
    assert found["generate"]["questions"] == 2 and found["exact"]["questions"] == 5
    assert found["exact"]["speed_vs_generate"]["value"] > 0
    told = call("mt_bench", *options, "--generate_questions", 6)
    assert "--generate_questions must be in 0..5, got 6" in told


def test_generate_may_answer_none(call, models, tmp_path):
    """Bugs held down: generate_compiled stayed without answers; no arm left was a division by 0."""
    options = [*bench_options(models, tmp_path), "--questions", 1, "--generate_questions", 0]
    call("mt_bench", *options, "--arms", "plain", "generate", "generate_compiled")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert [row["arm"] for row in summary["rows"]] == ["plain"]
    told = call("mt_bench", *options, "--arms", "generate")
    assert "--generate_questions 0 leaves no arm" in told


def test_traces_tell_where_tokens_came_from(call, models, tmp_path):
    """A trace repeats its record; sources, path and probabilities agree with its rounds."""
    options = [*bench_options(models, tmp_path), "--questions", 3, "--arms", "generate", "plain"]
    options += ["exact", "fsd:0.6"]
    call("mt_bench", *options)
    call("mt_bench", *options, "--traces", 2)
    call("mt_bench", *options, "--traces", 2)  # nothing is traced twice
    folder = tmp_path / "run"
    assert not (folder / "traces" / "generate.jsonl").exists()
    fuzzy = 0
    for arm in ("plain", "exact", "fsd_0.6"):
        traces, records = (
            rows(folder / f"traces/{arm}.jsonl"),
            rows(folder / f"records/{arm}.jsonl"),
        )
        assert len(traces) == 2
        by_id = {row["question_id"]: row for row in records}
        for trace in traces:
            turns = by_id[trace["question_id"]]["turns"]
            for turn, done in zip(trace["turns"], turns, strict=True):
                assert turn["same_as_record"]
                assert [[e["token"] for e in r["emitted"]] for r in turn["rounds"]] == [
                    r["tokens"] for r in done["rounds"]
                ]
                for round_, recorded in zip(turn["rounds"], done["rounds"], strict=True):
                    sources = [e["source"] for e in round_["emitted"]]
                    assert [int(s == "fuzzy") for s in sources] == recorded["fuzzy"]
                    assert sources[-1] == "target" and "target" not in sources[:-1]
                    fuzzy += sources.count("fuzzy")
                    nodes = round_["nodes"]
                    assert len(nodes) == (1 if arm == "plain" else 8)
                    assert nodes[0]["parent"] == -1 and nodes[0]["target_prob"] is None
                    for parent, child in zip(round_["path"], round_["path"][1:], strict=False):
                        assert nodes[child]["parent"] == parent
                    accepted = [nodes[node]["token"] for node in round_["path"][1:]]
                    assert accepted == [e["token"] for e in round_["emitted"][:-1]]
                    for node in nodes[1:]:
                        assert 0 <= node["target_prob"] <= 1 and 0 < node["draft_prob"] <= 1
    assert fuzzy > 0


def test_arms_are_added_to_a_run(call, models, tmp_path):
    """An ablation is a run with more arms: a further one answers only its own."""
    options = [*bench_options(models, tmp_path), "--questions", 3]
    arms = ["plain", "exact", "exact@eagle:4x2x2", "fsd:0.4,child=target", "path:0.5,gate=0.4"]
    call("mt_bench", *options, "--arms", *arms)
    folder = tmp_path / "run" / "records"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {
        "plain.jsonl",
        "exact.jsonl",
        "exact__eagle_4x2x2.jsonl",
        "fsd_0.4_child-target.jsonl",
        "path_0.5_gate-0.4.jsonl",
    }
    trees = {row["arm"]: row["tree"] for name in before for row in rows(folder / name)}
    assert trees["exact"] == "7x3x3" and trees["exact@eagle:4x2x2"] == "4x2x2"
    assert trees["plain"] is None
    call("mt_bench", *options, "--arms", "fsd:0.5", "exact")
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(after) - set(before) == {"fsd_0.5.jsonl"}
    assert all(after[name] == before[name] for name in before)


def test_a_run_is_continued_with_its_own_questions_only(call, models, tmp_path):
    """Another command, another text of an answered question, equal arms: told, nothing changed."""
    options = [*bench_options(models, tmp_path), "--questions", 2, "--arms", "plain", "exact"]
    call("mt_bench", *options)
    kept = (tmp_path / "run/records/plain.jsonl").read_bytes()
    path = tmp_path / "question.jsonl"
    task = ["--task", path, "--scorer", "contains", "--turns", 1]
    task += [option for option in options if option not in ("--question_file", path)]
    path.write_text(path.read_text().replace('"turns"', '"reference": ["yes"], "turns"'))
    assert "'command': ('mt_bench', 'tasks')" in call("tasks", *task)
    path.write_text(path.read_text().replace('"reference": ["yes"], "turns"', '"turns"'))
    path.write_text(path.read_text().replace("Say 0.", "Say nothing."))
    assert "question 0 was answered with another text" in call("mt_bench", *options)
    path.write_text(path.read_text().replace("Say nothing.", "Say 0."))
    call("mt_bench", *options)
    assert (tmp_path / "run/records/plain.jsonl").read_bytes() == kept

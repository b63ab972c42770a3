"""Runs of train/make_data.py that go on: after an end, after kill -9, and in several processes.

Greedy in float32, so that runs can be compared dialogue by dialogue.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_make_data import content, lines, main, options, write_talks
from tiny_folder import write_target

COMMAND = Path(__file__).parent.parent / "train" / "make_data.py"


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_talks(tmp_path_factory.mktemp("data"))


def test_the_record_is_of_all_runs(tmp_path, target):
    """A finished job run again leaves it as it was; a larger budget adds its time and tokens."""
    output = tmp_path / "data.jsonl"
    record = output.with_suffix(".json")
    main(options(target, output, "--dialogues", "4"))
    first = record.read_text()
    main(options(target, output, "--dialogues", "4"))
    assert record.read_text() == first
    main(options(target, output, "--dialogues", "8"))
    first, second = json.loads(first), json.loads(record.read_text())
    assert second["seconds"] > first["seconds"] > 0
    assert second["tokens_per_s"] == second["answer_tokens"] / second["seconds"]
    assert lines(output)[-1]["seconds"] >= round(first["seconds"], 1)


def test_another_run_is_not_continued(tmp_path, target):
    """Options that differ are named; a file that is not ours is left alone."""
    output = tmp_path / "data.jsonl"
    main(options(target, output, "--dialogues", "2"))
    before = output.read_bytes()
    with pytest.raises(SystemExit, match=r"other options .*'seed': \(0, 5\)"):
        main(options(target, output, "--dialogues", "2", "--seed", "5"))
    other = tmp_path / "other.jsonl"
    other.write_text("mine\n")
    with pytest.raises(SystemExit, match="exists and is no output of this command"):
        main(options(target, other, "--dialogues", "2"))
    assert output.read_bytes() == before and other.read_text() == "mine\n"


def test_features_of_several_processes_are_refused(tmp_path, target, monkeypatch):
    """Before the processes look for each other."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    more = ("--dialogues", "2", "--features", str(tmp_path / "features"))
    with pytest.raises(SystemExit, match="EAGLE-1 and -2 features and needs one process"):
        main(options(target, tmp_path / "data.jsonl", *more))


@pytest.mark.processes
def test_killed_three_times(tmp_path, target, data):
    """kill -9 at random moments, then the same command: the unbroken run's dialogues, each once."""
    sources = ("self=0.6", f"{data}=0.4")
    limit = ("--dialogues", "45")
    main(options(target, tmp_path / "unbroken.jsonl", *limit, sources=sources))
    output = tmp_path / "data.jsonl"
    command = [sys.executable, str(COMMAND), *options(target, output, *limit, sources=sources)]
    rng = random.Random(0)
    kills = 0
    while kills < 3:
        wanted = 1 + kills * 12 + rng.randrange(8)
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and not (
            output.is_file() and output.read_bytes().count(b"\n") >= wanted
        ):
            time.sleep(0.002)
        time.sleep(rng.random() * 0.02)
        assert process.poll() is None, "the run ended before it was killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    with output.open("ab") as file:
        file.write(b'{"id": 9999, "source": "se')  # torn as by a kill within the write
    main(options(target, output, *limit, sources=sources))
    assert content(output) == content(tmp_path / "unbroken.jsonl")
    dropped = [lines(p) for p in sorted(tmp_path.glob("*.dropped.jsonl"))]
    assert sorted(map(str, dropped[0])) == sorted(map(str, dropped[1]))


@pytest.mark.processes
def test_two_processes(tmp_path, target, data):
    """torchrun: each makes its share, the first puts them together; nothing twice."""
    output = tmp_path / "data.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command = [*torchrun, "--master_port", "29731", str(COMMAND)]
    command += options(target, output, "--dialogues", "12", sources=("self", str(data)))
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = lines(output)
    assert len(rows) in (11, 12) and [row["id"] for row in rows] == sorted(content(output))
    assert len({row["user"] for row in rows}) == len(rows)
    for i in range(2):
        part = tmp_path / f"data.part{i}.jsonl"
        assert len(lines(part)) == 6 and all(row["id"] % 2 == i for row in lines(part))
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["dialogues"] == len(rows)
    assert record["tokens_per_s"] == record["answer_tokens"] / record["seconds"] > 0
    with pytest.raises(SystemExit, match="processes"):
        main(options(target, output, "--dialogues", "12", sources=("self", str(data))))

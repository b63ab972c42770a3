"""train/train_head.py killed, resumed, and run by several processes: the run is the same one."""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from commands import ROOT
from training_runs import RECIPE, log_rows, refused, same, weights
from training_runs import head_options as options
from training_runs import train_head as main

from eagle_fsd.runs.jsonl import write_json

SCRIPT = str(ROOT / "train/train_head.py")
# the command, which saves after every step
SAVING = f"""
import runpy
from eagle_fsd.training import trainer
trainer.SAVE_MINUTES = 0
runpy.run_path({SCRIPT!r}, run_name="__main__")
"""
pytestmark = pytest.mark.processes
STEPS = 60
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
FAST = {"steps": STEPS, "dtype": "float32", "recipe": RECIPE + ",unroll_steps=2,optimizer=muon"}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As the processes that are started: sums over more are rounded otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def started(*command: str) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        env=ENVIRONMENT | {"ACCELERATE_USE_CPU": "true"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def kill(process: subprocess.Popen) -> None:
    """With SIGKILL, the workers of a launcher too (they are in sessions of their own)."""
    if process.poll() is None:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.kill()
        process.communicate()


def saved_step(output: Path) -> int:
    """Of the last complete state, wherever in a save a kill fell; -1: none."""
    path = output / "progress.json"
    return json.loads(path.read_text())["step"] if path.is_file() else -1


def kill_behind(process: subprocess.Popen, output: Path, *, step: int, delay: float) -> None:
    """Wait for a save at `step` or later and a moment more, and kill."""
    try:
        deadline = time.monotonic() + 120
        while saved_step(output) < step:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        assert process.poll() is None, "the run ended before it was killed"
    finally:
        kill(process)
    assert saved_step(output) >= step


@pytest.fixture
def saving(tmp_path) -> str:
    path = tmp_path / "train_head.py"
    path.write_text(SAVING)
    return str(path)


@pytest.fixture(scope="module")
def unbroken(target, data, tmp_path_factory):
    """A finished run."""
    output = tmp_path_factory.mktemp("run") / "head"
    main(options(target, data, output, **FAST))
    return output


def test_killed_it_is_as_if_never_killed(unbroken, saving, target, data, tmp_path):
    """SIGKILL at a random moment, the same command again: losses and weights bit for bit. It saves
    after every step, so that many kills fall into a save; no step saved is ever lost."""
    output = tmp_path / "head"
    arguments = options(target, data, output, **FAST, features=unbroken / "features")
    rng = random.Random(time.time_ns())  # another one every time that the test runs
    process = started(sys.executable, saving, *arguments)
    kill_behind(process, output, step=rng.randint(1, 28), delay=rng.uniform(0, 0.05))
    assert not (output / "training.json").exists()
    main(arguments)
    assert log_rows(output) == log_rows(unbroken)
    assert same(weights(output), weights(unbroken))


def test_interrupted_it_saves_and_goes_on(unbroken, target, data, tmp_path, capfd):
    """Ctrl-C long before the first save lost everything, with a traceback; and the resumed run
    claimed to have started at random."""
    output = tmp_path / "head"
    arguments = options(target, data, output, **FAST, features=unbroken / "features")
    process = started(sys.executable, SCRIPT, *arguments)
    while not (output / "records" / "log.jsonl").is_file():
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in told
    assert "the same command goes on" in told
    step = saved_step(output)
    assert 0 < step < STEPS and not (output / "model.safetensors").exists()
    # what a kill within a save and one within a line of the log leave does no harm
    (output / f"state-{step + 7}").mkdir()
    with (output / "records" / "log.jsonl").open("a") as log:
        log.write('{"step": 20, "session": "1"}\n{"step":')
    told = refused(*arguments, "--seed", "3")
    assert "seed" in told and "3" in told
    progress = json.loads((output / "progress.json").read_text())
    write_json(output / "progress.json", progress | {"seconds": 1000.0})
    main(arguments)
    assert json.loads((output / "progress.json").read_text())["seconds"] > 1000  # what was used
    told, shown = capfd.readouterr()
    assert f"goes on after step {step}" in told and "at random" not in told
    bars = [line for line in re.split("[\r\n]", shown) if line.startswith("training:")]
    assert f"step={step}" in bars[0] and f"{100 * step / STEPS:3.0f}%|" in bars[0]
    assert "step=60" in bars[-1] and "100%|" in bars[-1]
    assert log_rows(output) == log_rows(unbroken) and same(weights(output), weights(unbroken))
    assert {path.name for path in output.glob("state-*")} == {f"state-{STEPS}"}
    main(arguments)
    assert "already trained" in capfd.readouterr().out


def test_a_head_without_its_measurement_is_measured(unbroken, target, data, tmp_path, capfd):
    """A kill between the head and what it does on held-out answers leaves the head without a
    record; the same command then measures it. Bugs held down: a run whose head was gone was
    "already trained"; where nothing was left to train a bar showed 100 % and an unknown time."""
    whole = json.loads((unbroken / "training.json").read_text())
    for lost in ("training.json", "model.safetensors"):
        output = shutil.copytree(unbroken, tmp_path / lost)
        (output / lost).unlink()
        main(options(target, data, output, **FAST))
        assert "training:" not in capfd.readouterr().err
        assert same(weights(output), weights(unbroken))
        assert json.loads((output / "training.json").read_text()) == whole


@pytest.mark.parametrize("damage", ["progress.json", f"state-{STEPS}/optimizer.bin"])
def test_what_a_training_goes_on_from_is_checked(unbroken, target, data, tmp_path, damage):
    """Empty files are named. Bugs held down: tracebacks of json and pickle."""
    output = shutil.copytree(unbroken, tmp_path / "head")
    (output / "training.json").unlink()
    (output / damage).write_bytes(b"")
    told = refused(*options(target, data, output, **FAST))
    assert damage.partition("/")[0] in told and "damaged" in told


def launch(script: str, arguments: list[str]) -> subprocess.Popen:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    command += [str(ROOT / "scripts/accelerate/ddp.yaml"), "--main_process_port", port]
    return started(*command, script, *arguments)


def test_two_processes_are_one_with_twice_the_batch(saving, target, data, tmp_path):
    """As accelerate launches them: losses, gradient norms and head up to rounding, one log. Both go
    on from one state behind a kill.

    Positions of the batches differ, so a mean of the processes' means would show."""
    changes = FAST | {"steps": 21, "batches_per_step": 2}
    one, two = tmp_path / "one", tmp_path / "two"
    main(options(target, data, one, **changes))
    pair = options(target, data, two, **changes)
    kill_behind(launch(saving, pair), two, step=2, delay=0.0)
    process = launch(saving, pair)
    try:
        _, told = process.communicate(timeout=150)
    finally:
        kill(process)
    assert process.returncode == 0, told
    rows = log_rows(one), log_rows(two)
    assert [row["step"] for row in rows[1]] == [1, 20, 21]
    for single, pair in zip(*rows, strict=True):
        assert pair == pytest.approx(single, rel=1e-5 if single["step"] == 1 else 1e-3)
    pairs = zip(weights(one).values(), weights(two).values(), strict=True)
    assert max((a.float() - b.float()).abs().max() for a, b in pairs) < 1e-2

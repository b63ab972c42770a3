"""train/train_head.py on a tiny target: a head that loads, learns, repeats, resumes, refuses."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_commands import load_command
from tiny import FAMILIES
from tiny_folder import write_target

from eagle_fsd.loading import load_head, load_target_config

ROOT = Path(__file__).parent.parent
COMMAND = load_command("train/train_head.py")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "data.jsonl.gz")


def write_data(path: Path, *, count: int = 40, vocabulary: int = 20) -> Path:
    """Dialogues of random tokens out of the first few, of very different lengths."""
    rng = random.Random(0)
    with gzip.open(path, "wt") as file:
        for _ in range(count):
            lengths = rng.randint(2, 9), rng.randint(3, 40)
            parts = [[rng.randrange(2, vocabulary) for _ in range(n)] for n in lengths]
            file.write(
                json.dumps(dict(zip(("prompt_ids", "answer_ids"), parts, strict=True))) + "\n"
            )
    return path


def options(target, data, output, /, **changes) -> list[str]:
    """A run of about 150 steps unless told otherwise."""
    chosen = {"target": target, "data": data, "output": output, "held_out": 5, "epochs": 12}
    chosen |= {
        "tokens_per_step": 100,
        "validate_depth": 2,
        "learning_rate": 1e-2,
        "noise": 0.01,
    } | changes
    return [part for key, value in chosen.items() for part in (f"--{key}", str(value))]


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model.safetensors")


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def log_rows(output: Path) -> list[dict]:
    rows = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def assert_falls(rows: list[dict], key: str, *, by: float) -> None:
    """The mean of the last two logged losses against the first's."""
    assert (rows[-1][key] + rows[-2][key]) / 2 < by * rows[0][key], [row[key] for row in rows]


def refused(*arguments: str) -> str:
    """The one line that a command ends with; a traceback fails the test by its own error."""
    with pytest.raises(SystemExit) as exit:
        COMMAND.main(list(arguments))
    message = str(exit.value.code)
    assert message.startswith("error: ") and "\n" not in message
    return message


@pytest.fixture(scope="module")
def unbroken(target, data, tmp_path_factory):
    """A finished run."""
    output = tmp_path_factory.mktemp("run") / "head"
    COMMAND.main(options(target, data, output))
    return output


def test_writes_a_head_that_loads_and_has_learnt(unbroken, target):
    """Loads against the target; both losses fall; the record says what was done."""
    head = load_head(unbroken, load_target_config(str(target)))
    assert head.fc.weight.dtype == torch.bfloat16
    assert all(torch.isfinite(p).all() for p in head.parameters())
    rows = log_rows(unbroken)
    assert [row["step"] for row in rows][:3] == [20, 40, 60]
    assert_falls(rows, "feature", by=0.75)
    assert_falls(rows, "entropy", by=0.97)
    record = json.loads((unbroken / "training.json").read_text())
    assert record["options"]["learning_rate"] == 1e-2
    assert record["answer_tokens_seen"] == rows[-1]["tokens"]
    held_out = record["held_out"]
    assert len(held_out["top1"]) == len(held_out["top8"]) == 2
    assert all(0 <= a <= b <= 1 for a, b in zip(held_out["top1"], held_out["top8"], strict=True))
    assert held_out["positions"][0] > held_out["positions"][1] > 0


def test_one_seed_gives_one_head(unbroken, target, data, tmp_path):
    """Bit for bit, with the features computed anew; another seed gives another."""
    COMMAND.main(options(target, data, tmp_path / "again"))
    assert same(weights(tmp_path / "again"), weights(unbroken))
    assert log_rows(tmp_path / "again") == log_rows(unbroken)
    features = unbroken / "features"
    COMMAND.main(options(target, data, tmp_path / "other", seed=1, epochs=1, features=features))
    assert not same(weights(tmp_path / "other"), weights(unbroken))


@pytest.fixture(scope="module")
def killed(unbroken, target, data, tmp_path_factory):
    """The same run, saved after every step and killed in the middle."""
    output = tmp_path_factory.mktemp("killed") / "head"
    changes = {"save_minutes": 1e-6, "features": unbroken / "features"}
    kill_behind(options(target, data, output, **changes), output, step=23)
    assert not (output / "training.json").exists(), "the run ended before it was killed"
    return output


def kill_behind(arguments: list[str], output: Path, *, step: int) -> None:
    """Run in a process and kill it once it has saved at `step` or later."""
    command = [sys.executable, str(ROOT / "train/train_head.py"), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while saved_step(output) < step:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # a plain case, wherever in a save the kill fell; the others are made by hand below
    if not (output / "state").is_dir():
        (output / "state.old").rename(output / "state")
    for left_over in ("state.old", "state.new"):
        shutil.rmtree(output / left_over, ignore_errors=True)


def saved_step(output: Path) -> int:
    try:
        return json.loads((output / "state" / "progress.json").read_text())["step"]
    except (OSError, ValueError):  # none yet, or between two renames
        return -1


def copied(output: Path, to: Path) -> Path:
    """A run in another place, as if it had been made there."""
    shutil.copytree(output, to)
    text = (to / "options.json").read_text().replace(str(output), str(to))
    (to / "options.json").write_text(text)
    return to


def test_killed_and_resumed_is_as_if_never_killed(unbroken, killed, target, data, tmp_path):
    """SIGKILL in the middle, the same command again: same weights and losses bit for bit."""
    output = copied(killed, tmp_path / "head")
    arguments = options(target, data, output, features=unbroken / "features")
    COMMAND.main(arguments)
    assert same(weights(output), weights(unbroken))
    assert log_rows(output) == log_rows(unbroken)
    COMMAND.main(arguments)  # of a finished run: no step more
    assert same(weights(output), weights(unbroken))
    assert log_rows(output) == log_rows(unbroken)


def test_the_log_has_every_step_once(unbroken, target, data, tmp_path):
    """Killed between a log row and the first save: the resumed run must not log it once more."""
    output = copied(unbroken, tmp_path / "head")
    shutil.rmtree(output / "state")
    log = (output / "log.jsonl").read_text().splitlines(keepends=True)
    (output / "log.jsonl").write_text(log[0] + log[1][:20])
    COMMAND.main(options(target, data, output))
    assert log_rows(output) == log_rows(unbroken)
    assert same(weights(output), weights(unbroken))


@pytest.mark.parametrize("left_over", ["state.old", "state.new", "only state.old"])
def test_a_kill_in_the_middle_of_a_save_does_no_harm(
    unbroken, killed, target, data, tmp_path, left_over
):
    """What a killed save leaves beside the good state does not stop the next saves.

    (Killed before state.old was removed, the next save failed: the name was taken.)
    """
    output = copied(killed, tmp_path / "head")
    if left_over == "only state.old":  # killed between the two renames
        (output / "state").rename(output / "state.old")
    else:
        (output / left_over).mkdir(exist_ok=True)
        (output / left_over / "model.safetensors").write_bytes(b"torn")
    COMMAND.main(options(target, data, output, features=unbroken / "features"))
    assert same(weights(output), weights(unbroken))


def test_an_existing_output_of_other_options_is_refused(unbroken, target, data):
    """What differs is named with both values; how often to save may differ."""
    before = weights(unbroken)
    told = refused(*options(target, data, unbroken, learning_rate=2e-3))
    assert "learning_rate" in told and "0.002" in told and "0.01" in told
    COMMAND.main(options(target, data, unbroken, save_minutes=3))
    assert same(weights(unbroken), before)


BAD = {
    "no data": ({"data": "gone.jsonl"}, "gone.jsonl"),
    "held_out too large": ({"held_out": 40}, "40"),
    "no held_out": ({"held_out": 0}, "held_out"),
    "no epochs": ({"epochs": 0}, "epochs"),
    "negative rate": ({"learning_rate": -1}, "learning_rate"),
    "no unrolled step": ({"unroll_steps": 0}, "unroll_steps"),
    "nothing fits": ({"max_length": 2}, "max_length"),
    "negative loss_vocab": ({"loss_vocab": -1}, "loss_vocab"),
    "no validation": ({"validate_depth": 0}, "validate_depth"),
    "unknown target": ({"target": "/nowhere/at-all"}, "/nowhere/at-all"),
    "output not writable": ({"output": "/proc/head"}, "/proc/head"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_clear_line(target, data, tmp_path, fault):
    """It names the option or its value; nothing is trained."""
    changes, told = BAD[fault]
    message = refused(*options(target, data, tmp_path / "head", **changes))
    assert told in message or (fault == "nothing fits" and "2 tokens" in message)
    assert not (tmp_path / "head" / "model.safetensors").exists()


def test_a_broken_line_is_told_by_its_number(target, tmp_path):
    """Before the target's weights load."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt_ids": [2, 3], "answer_ids": [4, 5, 6]}\n{"prompt_ids": [2,\n')
    assert "line 2" in refused(*options(target, path, tmp_path / "head", held_out=1))


@pytest.mark.parametrize("token", [258, -1])
def test_tokens_of_another_vocabulary_are_told(target, tmp_path, token):
    """Data of another target: told with the token, not an IndexError out of the embedding."""
    path = tmp_path / "data.jsonl"
    row = {"prompt_ids": [2, 3], "answer_ids": [4, token, 5]}
    path.write_text(2 * (json.dumps(row) + "\n"))
    assert str(token) in refused(*options(target, path, tmp_path / "head", held_out=1))


def test_unrolling_and_a_part_of_the_vocabulary(unbroken, target, data, tmp_path):
    """Two steps, entropy over 50 tokens: other weights, a smaller entropy, and it learns."""
    shared = {"features": unbroken / "features"}
    COMMAND.main(options(target, data, tmp_path / "two", unroll_steps=2, **shared))
    COMMAND.main(options(target, data, tmp_path / "part", loss_vocab=50, **shared))
    for name in ("two", "part"):
        rows = log_rows(tmp_path / name)
        assert_falls(rows, "feature", by=0.85)
        assert_falls(rows, "entropy", by=0.97)
        assert not same(weights(tmp_path / name), weights(unbroken))
    # its own features are worse than the target's, so two steps lose more than one
    assert log_rows(tmp_path / "two")[-1]["feature"] > log_rows(unbroken)[-1]["feature"]
    assert log_rows(tmp_path / "part")[-1]["entropy"] < log_rows(unbroken)[-1]["entropy"]


def test_answers_shorter_than_the_unrolling_do_no_harm(target, tmp_path):
    """A batch whose positions all lie before the last step's first root has nothing to learn."""
    path = tmp_path / "data.jsonl"
    row = {"prompt_ids": [2], "answer_ids": [4, 5]}
    path.write_text(8 * (json.dumps(row) + "\n"))
    output = tmp_path / "head"
    changes = {"held_out": 1, "unroll_steps": 3, "tokens_per_step": 3}
    COMMAND.main(options(target, path, output, **changes))
    assert all(torch.isfinite(tensor).all() for tensor in weights(output).values())
    assert all(row["feature"] == row["feature"] for row in log_rows(output)), "NaN was logged"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_a_head_config(family):
    """Of the target's shape, with its rope base (Gemma 3 has one per kind of layer)."""
    config = FAMILIES[family]()
    head = COMMAND.head_config_for(config)
    assert head.hidden_size == config.hidden_size and head.vocab_size == config.vocab_size
    assert head.rope_theta >= 10_000


def test_two_processes_train_one_head(unbroken, target, data, tmp_path):
    """As accelerate launches them: half the steps, one head, one log, features computed once."""
    # `accelerate launch --cpu` starts one process whatever --num_processes says
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", str(ROOT / "train/train_head.py")]
    output = tmp_path / "head"
    command += options(target, data, output)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, told = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the workers too
    assert process.returncode == 0, told
    load_head(output, load_target_config(str(target)))
    rows = log_rows(output)
    assert len({row["step"] for row in rows}) == len(rows)
    assert rows[-1]["step"] == (log_rows(unbroken)[-1]["step"] + 1) // 2
    features = [(run / "features" / "features.bin").read_bytes() for run in (unbroken, output)]
    assert features[0] == features[1]
    assert_falls(rows, "feature", by=0.95)

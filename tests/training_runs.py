"""Runs of the commands of train/ in this process, and what they wrote."""

import gzip
import json
import random
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from commands import load_command, rows, write_rows
from safetensors.torch import load_file

from eagle_fsd.cli import run_command
from eagle_fsd.runs.folder import record_files

TALKS = 12
RECIPE = "unrolled,learning_rate=1e-2,noise=0.01"


def make_data(arguments: list[str]) -> None:
    command = load_command("train/make_data.py")
    run_command(command.make_data, [command.DataOptions], arguments)


def train_head(arguments: list[str]) -> None:
    # accelerate keeps a process's first settings; every run is a process of its own here
    AcceleratorState._reset_state(reset_partial_state=True)
    command = load_command("train/train_head.py")
    run_command(command.train, [command.TrainOptions], arguments)


def convert(*arguments: object) -> None:
    command = load_command("train/convert_head.py")
    run_command(command.run, [command.ConvertOptions], list(map(str, arguments)))


# --- make_data.py ---------------------------------------------------------------------------------


def write_talks(folder: Path) -> Path:
    """Conversations of one to three turns; number 3 repeats number 2, 4 is malformed, 5 long."""
    talks = []
    for i in range(TALKS):
        turns = [{"from": "human", "value": f"Question {i}?"}, {"from": "gpt", "value": "So."}]
        for more in range(i % 3):
            turns += [{"from": "human", "value": f"And {more}?"}, {"from": "gpt", "value": "Yes!"}]
        talks.append({"conversations": turns, "tools": "[]"})
    talks[3] = talks[2]
    talks[4] = {"conversations": talks[4]["conversations"][1:]}
    talks[5] = {"conversations": [{"from": "human", "value": "long " * 300}]}
    return write_rows(folder / "talks.jsonl", *talks)


def data_options(target, output, *more: str, sources: tuple[str, ...] = ("self",)) -> list[str]:
    fixed = "--temperatures 0 --dtype float32 --device cpu --batch_size 32"
    limits = "--max_new_tokens 20"
    names = ["--target", str(target), "--output", str(output), "--sources", *sources]
    return [*names, *fixed.split(), *limits.split(), *more]


def made(output: Path) -> list[dict]:
    return [row for path in record_files(output, "dialogues") for row in rows(path)]


def content(output: Path) -> dict[tuple[int, int], tuple]:
    """What tells rows apart, by the numbers of dialogue and row: none of them twice."""
    found = made(output)
    assert len({row["id"] for row in found}) == len({row["user"] for row in found})
    rows = {place(row): (row["source"], row["input_ids"], row["loss_mask"]) for row in found}
    assert len(rows) == len(found)
    return rows


def place(row: dict) -> tuple[int, int]:
    return row["id"], row["part"]


# --- train_head.py --------------------------------------------------------------------------------


def write_data(path: Path) -> Path:
    """40 dialogues of random tokens out of the first 20, of very different lengths."""
    rng = random.Random(0)
    with gzip.open(path, "wt") as file:
        for _ in range(40):
            prompt, answer = rng.randint(2, 9), rng.randint(3, 40)
            ids = [rng.randrange(2, 20) for _ in range(prompt + answer)]
            row = {"input_ids": ids, "loss_mask": [0] * prompt + [1] * answer}
            file.write(json.dumps(row) + "\n")
    return path


def head_options(target, data, output, /, **changes) -> list[str]:
    """A run of 41 steps unless told otherwise; None leaves an option out."""
    chosen = {"target": target, "data": data, "output": output, "held_out": 2, "steps": 41}
    chosen |= {"tokens_per_batch": 100, "recipe": RECIPE} | changes
    given = {key: value for key, value in chosen.items() if value is not None}
    return [part for key, value in given.items() for part in (f"--{key}", str(value))]


def train(*args, **changes) -> Path:
    train_head(head_options(*args, **changes))
    return Path(args[2])


def refused(*arguments: str) -> str:
    """The one line that train_head.py ends with; a traceback fails the test by its own error."""
    with pytest.raises(SystemExit) as exit:
        train_head(list(arguments))
    message = str(exit.value.code)
    del exit  # its frames hold the lock of the folder
    assert message.startswith("error: ") and "\n" not in message
    return message


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model.safetensors")


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def log_rows(output: Path) -> list[dict]:
    """What is logged, but for the clock and the session; of a step that was redone the last."""
    logged = rows(output / "records" / "log.jsonl")
    told = [{k: v for k, v in row.items() if k not in ("seconds", "session")} for row in logged]
    return sorted({row["step"]: row for row in told}.values(), key=lambda row: row["step"])

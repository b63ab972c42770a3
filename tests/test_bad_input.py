"""Bad input to every command: each row of bad_input.txt ends in one plain line that names the value
and the remedy, with nothing written; and drawn values for every option."""

import contextlib
import os
import re
import runpy
import shlex
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState
from commands import ROOT, check_shown, option_classes
from hand_records import made_run, write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_folder import write_random_head
from transformers import HfArgumentParser

from eagle_fsd.cli import parse
from eagle_fsd.config import BadInput

pytestmark = pytest.mark.processes  # whole commands
TABLE = Path(__file__).with_name("bad_input.txt")

# where whole commands would end well
NOWHERE = {"evaluate/report.py": ["nowhere"], "train/convert_head.py": ["--head", "nowhere"]}


def unescaped(text: str) -> str:
    """With \\n, \\u escapes and the like as Python reads them."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def read_table() -> tuple[dict[str, bytes], list[tuple[str, str, list[str]]]]:
    """The files, by name; and every row's command, arguments and what its message must say."""
    files, table, command = {}, [], ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            command = line.strip("[]")
        elif line and not line.startswith("#"):
            left, right = map(str.strip, line.split(" => " if command else " = ", 1))
            if command:
                table.append((command, left, right.split(" | ")))
            else:
                files[left] = unescaped(right).encode("utf-8", "surrogateescape")
    return files, table


FILES, TABLE_ROWS = read_table()


def end_of(command: str, fixed: list[str], arguments: list[str]) -> str | int:
    """What a command in this process ends with; a traceback fails the test by its own error. First
    of its arguments may stand words for the environment, NAME=VALUE."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", os.environ.get("OPENAI_API_KEY", "key"))
        while arguments and re.match("[A-Z_]+=", arguments[0]):
            patch.setenv(*arguments.pop(0).split("=", 1))
        patch.setattr(sys, "argv", [command, *fixed, *arguments])
        AcceleratorState._reset_state(reset_partial_state=True)  # a process's first settings stay
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / command), run_name="__main__")
    code = end.value.code
    del end  # its frames hold the lock of the folder
    return code


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.fixture(scope="session")
def place(models, tmp_path_factory) -> Path:
    """The files of the table; targets and heads, good and broken; runs."""
    place = tmp_path_factory.mktemp("bad")
    shutil.copytree(models[0], place / "whole")
    shutil.copytree(models[1], place / "head")
    left_out = {"target": "*.safetensors", "no_template": "*.jinja", "no_tokenizer": "token*"}
    for name, pattern in left_out.items():
        shutil.copytree(models[0], place / name, ignore=shutil.ignore_patterns(pattern))
    write_random_head(place / "wide_head", hidden_size=48)
    write_random_head(place / "few_head", draft_vocab_size=49)
    tensors = load_file(models[1] / "model.safetensors")
    tensors["fc.bias"][3] = float("nan")
    shutil.copytree(models[1], place / "nan_head")
    save_file(tensors, place / "nan_head" / "model.safetensors")
    shutil.copytree(models[1], place / "cut_head")
    os.truncate(place / "cut_head" / "model.safetensors", 999)
    for name, content in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    write_run(place / "run", made_run())
    write_run(place / "larger_run", made_run(1), target="larger")
    return place


@pytest.mark.parametrize(("command", "arguments", "pieces"), TABLE_ROWS)
def test_bad_input(place, monkeypatch, capsys, command, arguments, pieces):
    monkeypatch.chdir(place)
    before = contents(place)
    file, *fixed = command.split()
    code = end_of(file, fixed, shlex.split(unescaped(arguments)))
    # argparse ends with 2 and a usage before its line, we with the line itself, which Python prints
    message, *more = capsys.readouterr().err.splitlines()[-1:] if code == 2 else code.splitlines()
    assert code == 2 or message.startswith("error: ")
    assert not more  # it adds what became of the answers
    assert "secret" not in str(code)  # a key
    assert not [piece for piece in pieces if piece not in message], message
    check_shown(file, [*fixed, *shlex.split(unescaped(arguments))], message)
    assert contents(place) == before


EXTREME = ["", "nan", "-inf", "1e400", "9" * 5000, "\ud83d", "a\0b", "\u0663", "x" * 9999, "7x3x4"]
VALUES = st.integers().map(str) | st.floats().map(repr) | st.text(max_size=30)
COMMANDS = dict.fromkeys(command for command, *_ in TABLE_ROWS)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_drawn_values(place, monkeypatch, command):
    """Every option takes a value or ends in an error of BadInput's or argparse's; so do whole
    commands, whose target has no weights. And each of them says what it is."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("OPENAI_API_KEY", "")  # the judge asks nobody
    file, *fixed = command.split()
    kinds = option_classes(file)
    parser = HfArgumentParser(kinds)
    names = st.sampled_from(sorted({field.name for kind in kinds for field in fields(kind)}))

    @settings(derandomize=True, deadline=None, database=None, max_examples=60)
    @given(names, VALUES | st.sampled_from(EXTREME))
    def parsed(name: str, value: str) -> None:
        with contextlib.suppress(BadInput, SystemExit):
            parse(parser, [*fixed, f"--{name}={value}"])

    @settings(derandomize=True, deadline=None, database=None, max_examples=4)
    @given(names, VALUES | st.sampled_from(EXTREME))
    def ended(name: str, value: str) -> None:
        end_of(file, [*fixed, *NOWHERE.get(file, [])], [f"--{name}={value}"])

    parsed()
    ended()
    with pytest.raises(SystemExit):
        parse(parser, ["--help"])
    assert all(action.help for action in parser._actions)

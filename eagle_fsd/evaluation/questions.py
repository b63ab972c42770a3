"""Question files: FastChat's question.jsonl, and other forms in which people keep prompts."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase

from eagle_fsd.config import BadInput
from eagle_fsd.messages import ROLES, SYSTEM, Message, text_of
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.options import QuestionOptions
from eagle_fsd.runs.jsonl import read_records
from eagle_fsd.thoughts import answer_of

# Where a row has its prompt, its id, what stands before the prompt, what is to be chosen from, and
# what is right. Of several names the first counts, but all contexts do.
PROMPTS = ("turns", "prompt", "question", "text", "instruction", "messages", "conversations")
IDS = ("question_id", "prompt_id", "id", "uid")
CONTEXTS = ("context", "passage")
CHOICES = ("choices", "options")
ANSWERS = ("reference", "answer", "answerKey")


@dataclass(frozen=True)
class Question:
    """A question: turns are the user's messages; reference (right answers) and extra (other fields
    of its set) are as the scorer of its set expects them; system is the system message before its
    first turn, "" that of the run; unread are the names of its row's other fields. ValueError: of
    other types."""

    question_id: int | str
    category: str
    turns: list[str]
    reference: list = field(default_factory=list)
    extra: dict = field(default_factory=dict)
    system: str = ""
    unread: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self):
        if type(self.question_id) not in (int, str):  # True is an int too
            raise ValueError(f"question_id is {self.question_id!r}: give a whole number or a text")
        if not isinstance(self.category, str):
            raise ValueError(f"category is {self.category!r}: give a text, or leave it out")
        turns = self.turns if isinstance(self.turns, list) else []
        if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise ValueError(f"turns is {self.turns!r:.60}: give a list of texts, none empty")
        if any(map(_is_null, self.reference)):
            raise ValueError("reference holds null: leave it out")

    def messages(self, answers: Sequence[Message] = ()) -> list[Message]:
        """The conversation up to the turn behind these answers of the assistant."""
        said = [{"role": "system", "content": self.system}] if self.system else []
        for number, turn in enumerate(self.turns[: len(answers) + 1]):
            said += [*answers[number - 1 : number], {"role": "user", "content": turn}]
        return said

    def named(self) -> dict:
        """What a record says of it, beside its turns."""
        system = {"system": self.system} if self.system else {}
        return {"question_id": self.question_id, "category": self.category} | system


def check_same_questions(
    records: Iterable[dict], questions: list[Question], *, turns: int = 0
) -> None:
    """Refuse questions that had other turns, another category or another system message when they
    were answered: old and new answers would be mixed. `turns` are those of each that count; 0:
    all."""
    known = {question.question_id: question for question in cut(questions, turns)}
    for record in records:
        question = known.get(record["question_id"])
        asked = [turn["prompt"] for turn in record["turns"]][: turns or None]
        category = record.get("category", question and question.category)
        if not question:
            continue
        now = question.turns, question.category, question.system
        if (asked, category, record.get("system", "")) != now:
            raise BadInput(
                f"question {question.question_id!r} was answered with other turns, or in another "
                f"category ({category!r}), or under another system message, than it has now: give "
                "the questions that were answered, or another --output"
            )


def _is_null(value: object) -> bool:
    """None, or NaN, as pandas writes it."""
    return value is None or value != value


def fastchat(row: dict | str, number: int) -> Question:
    """{question_id, turns, category ("all"), reference ([])}.

    Or, numbered where there is no id: a text; {prompt}, {question} or {text}; {instruction, input};
    {messages} or {conversations}, of the user alone, before which may stand the system's. A prompt
    may be a list of turns or messages. A context or passage stands before the first turn, and
    choices or options behind it, a letter and a text a line.
    Without a reference `answer` is it, of GSM8K's what stands behind ####, of choices the letter
    where it is an index; true is "yes" and "true".
    """
    row = {"prompt": row} if isinstance(row, str) else row
    form = next((name for name in PROMPTS if name in row), "")
    if not form:
        there = ", ".join(row) or "nothing"
        raise ValueError(f"it has none of {', '.join(PROMPTS)}, or null there, but {there}")
    unread = {name for name, value in row.items() if value not in ("", [], {})}
    unread -= {form, "category", *IDS}

    def first(names: Sequence[str]) -> object:
        """The value of the first of these fields that is there, which is thereby read."""
        name = next((name for name in names if name in row), "")
        unread.discard(name)
        return row.get(name, [])

    # 1. The turns, the system message before them, and what belongs to the first of them.
    turns = row[form] if isinstance(row[form], list) or form == "turns" else [row[form]]
    system = ""
    if isinstance(turns, list):
        if turns and _role(turns[0]) == "system":
            system, turns = text_of(_content(turns[0])).strip(), turns[1:]
        turns = [_said(turn) for turn in turns]
    if not system and (given := first(SYSTEM)):
        system = text_of(given).strip()
    before = [text for text in (first([name]) for name in CONTEXTS) if text]
    if not all(isinstance(text, str) for text in before):
        raise ValueError(f"its context is {before!r:.60}: give a text")
    behind = [first(["input"])] if form == "instruction" and row.get("input") else []
    if choices := _choices(first(CHOICES)):
        behind.append("\n".join(f"{letter}. {text}" for letter, text in choices.items()))
    if (before or behind) and isinstance(turns, list):
        turns = ["\n\n".join([*before, *turns[:1], *behind]), *turns[1:]]
    unnamed = None if form == "turns" else number
    question_id = next((row[name] for name in IDS if name in row), unnamed)
    # 2. What is right.
    reference = first(ANSWERS)
    reference = reference if isinstance(reference, list) else [reference]
    reference = [text for right in reference for text in _right(right, choices)]
    if "reference" not in row:
        reference = [right.rpartition("####")[2].strip() for right in reference]
    category, unread = row.get("category", "all"), frozenset(unread)
    return Question(question_id, category, turns, reference, system=system, unread=unread)


def _choices(given: object) -> dict[str, object]:
    """What is to be chosen from, by letter: of a list of texts, of texts by letter, or of ARC's
    {label, text}, two lists."""
    if isinstance(given, dict) and given.keys() >= {"label", "text"}:
        given = dict(zip(given["label"], given["text"], strict=True))
    if isinstance(given, list) and len(given) <= len(ascii_uppercase):
        given = dict(zip(ascii_uppercase, given, strict=False))
    if not isinstance(given, dict) or not all(
        len(letter) < 3 and type(text) in (str, int, float) for letter, text in given.items()
    ):
        raise ValueError(f"its choices are {given!r:.60}: give a list of at most 26 texts")
    return given


def _right(answer: object, choices: dict[str, object]) -> list:
    """The texts that are right by an answer of a row."""
    if type(answer) is bool:
        return ["yes", "true"] if answer else ["no", "false"]
    if isinstance(answer, dict | list):
        raise ValueError(f"its answer is {answer!r:.60}: give a text or a number")
    if choices and answer not in [*choices, *choices.values()]:
        # 2, 2.0 or "2" is an index; other texts may be right in other words than a choice has
        if type(answer) in (int, float) or str(answer).isdigit():
            if (index := float(answer)) not in range(len(choices)):
                raise ValueError(f"its answer is {answer!r}, and it has {len(choices)} choices")
            return [[*choices][int(index)]]
    return [str(answer) if type(answer) in (int, float) else answer]


def _role(turn: object) -> object:
    """Whose a turn is that may be a message, {role, content} or ShareGPT's {from, value}."""
    said = turn if isinstance(turn, dict) else {}
    role = said.get("role", said.get("from", "user"))
    return ROLES.get(role, role) if isinstance(role, str) else role


def _content(turn: object) -> object:
    return turn.get("content", turn.get("value")) if isinstance(turn, dict) else turn


def _said(turn: object) -> object:
    """What the user says in a turn."""
    role = _role(turn)
    if role not in ("user", "human"):
        raise ValueError(
            f"it has a message of {role!r}: give the user's turns alone, before which the system's "
            "may stand"
        )
    return _content(turn)


def read_questions(
    path: str | Path, read_row: Callable[[dict, int], Question] = fastchat
) -> list[Question]:
    """The questions of a file, by default MT-Bench's; read_row makes one from a row, of which what
    is null counts as absent, and its number, from 0."""
    questions: dict[int | str, Question] = {}
    for line, row in read_records(path or asset_dir("mt_bench") / "question.jsonl"):
        try:
            if not isinstance(row, str):
                row = {name: value for name, value in row.items() if not _is_null(value)}
            question = read_row(row, len(questions))
            if question.question_id in questions:
                raise ValueError(f"question_id {question.question_id!r} occurs twice")
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            fault = f"it lacks {error}" if isinstance(error, KeyError) else f"{error!s:.300}"
            raise BadInput(
                f"{path}, line {line} is no row of {read_row.__name__}: {fault}; got {row!r:.200}"
            ) from error
        questions[question.question_id] = question
    if not questions:
        raise BadInput(f"{path} holds no question")
    unread = Counter(name for question in questions.values() for name in question.unread)
    if told := [f"{name} (of {count})" for name, count in sorted(unread.items())]:
        told = ", ".join(told)
        print(f"eagle_fsd: fields of {path} that are not read: {told}", file=sys.stderr)
    return list(questions.values())


def spread(
    questions: list[Question], count: int | None, *, option: str = "--questions"
) -> list[Question]:
    """`count` questions (None: all), evenly over the categories: the first of each, then the
    second, ... `option` is the option that the count came from."""
    count = len(questions) if count is None else count
    if not 1 <= count <= len(questions):
        raise BadInput(f"{option} must be from 1 to {len(questions)}, got {count}")
    before: Counter[str] = Counter()  # in the same category
    ranked = []
    for number, question in enumerate(questions):
        ranked.append((before[question.category], number))
        before[question.category] += 1
    return [questions[number] for number in sorted(number for _, number in sorted(ranked)[:count])]


def asked(options: QuestionOptions, *, of_mt_bench: int | None = None) -> list[Question]:
    """The questions of a command; where no number is given, all, or so many of MT-Bench."""
    if options.questions is None and not options.question_file:
        options.questions = of_mt_bench
    return spread(read_questions(options.question_file), options.questions)


def cut(questions: list[Question], turns: int) -> list[Question]:
    """The questions, each with its first turns only; 0: with all."""
    return [replace(question, turns=question.turns[: turns or None]) for question in questions]


def fastchat_answers(records: list[dict]) -> list[dict]:
    """FastChat's model_answer rows (fastchat/llm_judge/gen_model_answer.py), one a question, with
    the texts behind thoughts."""
    rows: dict[int | str, dict] = {}
    for record in sorted(records, key=lambda record: record.get("choice", 0)):
        row = {key: record[key] for key in ("question_id", "answer_id")}
        row |= {"model_id": record["arm"], "choices": [], "tstamp": record["tstamp"]}
        turns = [answer_of(turn) for turn in record["turns"]]
        choices = rows.setdefault(record["question_id"], row)["choices"]
        choices.append({"index": record.get("choice", 0), "turns": turns})
    return list(rows.values())

"""Question files in FastChat's format: question_id, category, turns (and optional reference)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from eagle_fsd.config import BadInput
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.runs.jsonl import read_records
from eagle_fsd.thoughts import answer_of


@dataclass(frozen=True)
class Question:
    """A question: turns are the user's messages; reference (right answers) and extra (other fields
    of its set) are as the scorer of its set expects them. ValueError: of other types, without a
    turn, or with an empty one."""

    question_id: int | str
    category: str
    turns: list[str]
    reference: list = field(default_factory=list)
    extra: dict = field(default_factory=dict)

    def __post_init__(self):
        named = type(self.question_id) in (int, str) and isinstance(self.category, str)
        if not named or not isinstance(self.turns, list) or not self.turns:  # True is an int too
            raise ValueError("expected question_id and a list of turns")
        if not all(isinstance(turn, str) and turn.strip() for turn in self.turns):
            raise ValueError("a turn is empty or no text")


def check_same_questions(
    records: Iterable[dict], questions: list[Question], *, turns: int = 0
) -> None:
    """Refuse, by a BadInput, questions that had other turns or another category when they were
    answered: old and new answers would be mixed. `turns` are those of each that count; 0: all."""
    known = {question.question_id: question for question in cut(questions, turns)}
    for record in records:
        question = known.get(record["question_id"])
        if question is None:
            continue
        asked = [turn["prompt"] for turn in record["turns"]][: turns or None]
        category = record.get("category", question.category)
        change = ""
        if asked != question.turns:
            change = "with other turns than it has now"
        elif category != question.category:
            change = f"in the category {category!r}, which is {question.category!r} now"
        if change:
            raise BadInput(
                f"question {question.question_id!r} was answered {change}: give the questions that "
                "were answered, or another --output"
            )


def fastchat(row: dict, number: int) -> Question:
    """{question_id, turns, category ("all"), reference ([])}."""
    category, reference = row.get("category", "all"), row.get("reference", [])
    reference = reference if isinstance(reference, list) else [reference]
    return Question(row.get("question_id"), category, row.get("turns"), reference)


def read_questions(
    path: str | Path, read_row: Callable[[dict, int], Question] = fastchat
) -> list[Question]:
    """The questions of a file, by default MT-Bench's; read_row makes one from a row and its number,
    from 0.

    Raises:
        BadInput: see read_records; a line is no such row, an id occurs twice.
    """
    questions: dict[int | str, Question] = {}
    for line, row in read_records(path or asset_dir("mt_bench") / "question.jsonl"):
        try:
            question = read_row(row, len(questions))
            if question.question_id in questions:
                raise ValueError(f"question_id {question.question_id!r} occurs twice")
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            place = f"{path}, line {line} is no row of {read_row.__name__}"
            raise BadInput(f"{place} ({error!r:.200}), got {row!r:.200}") from error
        questions[question.question_id] = question
    if not questions:
        raise BadInput(f"{path} holds no question")
    return list(questions.values())


def spread(
    questions: list[Question], count: int | None, *, option: str = "--questions"
) -> list[Question]:
    """`count` questions (None: all), evenly over the categories: the first of each, then the
    second, ... `option` is the option that the count came from."""
    count = len(questions) if count is None else count
    if not 1 <= count <= len(questions):
        raise BadInput(f"{option} must be from 1 to {len(questions)}, got {count}")
    place = pd.DataFrame({"category": [question.category for question in questions]})
    rank = place.groupby("category").cumcount().sort_values(kind="stable")
    return [questions[number] for number in sorted(rank.index[:count])]


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

"""Question files in FastChat's format: question_id, category, turns (and optional reference)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from eagle_fsd.config import BadInput
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.runs.jsonl import read_records


@dataclass(frozen=True)
class Question:
    """A question: turns are the user's messages; reference (right answers) and extra (other fields
    of its set) are as the scorer of its set expects them."""

    question_id: int | str
    category: str
    turns: list[str]
    reference: list = field(default_factory=list)
    extra: dict = field(default_factory=dict)


def check_same_questions(records: Iterable[dict], questions: list[Question]) -> None:
    """Raise BadInput for a record whose question had another text than it has now."""
    turns = {question.question_id: question.turns for question in questions}
    for record in records:
        asked = [turn["prompt"] for turn in record["turns"]]
        now = turns.get(record["question_id"], asked)
        if any(a != b for a, b in zip(now, asked, strict=False)):  # turns may have been left out
            raise BadInput(
                f"question {record['question_id']!r} was answered with another text than it has "
                "now: give the questions that were answered, or another --output"
            )


def read_questions(path: str | Path) -> list[Question]:
    """The questions of a question.jsonl, by default MT-Bench's.

    Raises:
        BadInput: see read_records; a line lacks a key, an id occurs twice, a turn is empty.
    """
    questions: dict[int | str, Question] = {}
    for number, row in read_records(path or asset_dir("mt_bench") / "question.jsonl"):
        place, row = f"{path}, line {number}", row if isinstance(row, dict) else {}
        name, turns = row.get("question_id"), row.get("turns")
        category, reference = row.get("category", "all"), row.get("reference", [])
        named = type(name) in (int, str) and isinstance(category, str)  # True is an int too
        if not named or not isinstance(turns, list) or not turns:
            raise BadInput(f"{place}: expected question_id and a list of turns, got {row!r:.200}")
        if not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise BadInput(f"{place}: a turn is empty or no text")
        if name in questions:
            raise BadInput(f"{place}: question_id {name!r} occurs twice")
        reference = reference if isinstance(reference, list) else [reference]
        questions[name] = Question(name, category, turns, reference)
    if not questions:
        raise BadInput(f"{path} holds no question")
    return list(questions.values())


def spread(
    questions: list[Question], count: int | None, *, option: str = "--questions"
) -> list[Question]:
    """`count` questions (None: all), evenly over the categories: the first of each, then the
    second, ... `option` said the count."""
    count = len(questions) if count is None else count
    if not 1 <= count <= len(questions):
        raise BadInput(f"{option} must be in 1..{len(questions)}, got {count}")
    place = pd.DataFrame({"category": [question.category for question in questions]})
    rank = place.groupby("category").cumcount().sort_values(kind="stable")
    return [questions[number] for number in sorted(rank.index[:count])]


def fastchat_answers(records: list[dict]) -> list[dict]:
    """FastChat's model_answer rows (fastchat/llm_judge/gen_model_answer.py), one a question."""
    rows: dict[int | str, dict] = {}
    for record in sorted(records, key=lambda record: record.get("choice", 0)):
        row = {key: record[key] for key in ("question_id", "answer_id")}
        row |= {"model_id": record["arm"], "choices": [], "tstamp": record["tstamp"]}
        turns = [turn["text"] for turn in record["turns"]]
        choices = rows.setdefault(record["question_id"], row)["choices"]
        choices.append({"index": record.get("choice", 0), "turns": turns})
    return list(rows.values())

"""Scorers: an answer's text and its question in, scores from 0 to 1 out.

Pure functions in a table, except for `humaneval`, which executes the answer. Multi-turn questions
have no scorer here: a judge is for them.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.tasks.humaneval import FIELDS, pass_at_1
from eagle_fsd.tasks.ifeval import INSTRUCTIONS, follow
from eagle_fsd.tasks.sandbox import bubblewrap

Score = Callable[[str, Question], dict[str, float]]
# a sign is none behind a digit or a bracket (10-5, (3)-2); a comma parts thousands only
NUMBER = re.compile(
    r"(?:(?<![\d.,)\]])[-\u2212])?[$\u20ac\u00a3]?(\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(\.\d+)?"
)
# what a sentence and Markdown put around a word; a leading full stop may be a number's
QUOTES = "\"'`*()\\[\\]{}\u2018\u2019\u201c\u201d\u00ab\u00bb"
AROUND = re.compile(rf"^[{QUOTES}]+|[{QUOTES}.,;:!?\u2026]+$")


def exact_match(answer: str, question: Question) -> dict[str, float]:
    """{"exact_match": 1.0 if the answer is a reference, both normalised}."""
    hit = normalize(answer) in map(normalize, question.reference)
    return {"exact_match": float(hit)}


def contains(answer: str, question: Question) -> dict[str, float]:
    """{"contains": 1.0 if some reference occurs in the answer in whole words, both normalised}."""
    text = f" {normalize(answer)} "
    return {"contains": float(any(f" {normalize(r)} " in text for r in question.reference))}


def last_number(answer: str, question: Question) -> dict[str, float]:
    """{"last_number": 1.0 if the answer's last number equals that of a reference}.

    1,234 is 1234, $18.00 is 18, a full stop behind a number is none of it.
    """
    value = find_last_number(answer)
    hit = value is not None and value in map(find_last_number, question.reference)
    return {"last_number": float(hit)}


def normalize(text: str) -> str:
    """Small letters, words without articles and without quotes and full stops around them.

    Signs stay: -5 is not 5, 1.5 not 15, C++ not C.
    """
    words = unicodedata.normalize("NFKC", text).casefold().split()
    words = [AROUND.sub("", word) for word in words]
    return " ".join(word for word in words if word not in ("", "a", "an", "the"))


def find_last_number(text: str) -> Decimal | None:
    """The last number of a text, exactly; None without one."""
    value = None
    for match in NUMBER.finditer(text):
        whole, decimals = match[1] or "", match[2] or ""
        if whole or decimals:
            sign = "-" if match[0][0] in "-\u2212" else ""
            value = Decimal(sign + (whole.replace(",", "") or "0") + decimals)
    return value


@dataclass(frozen=True)
class Scorer:
    """A way to score.

    Attributes:
        score: (answer, question) -> name -> score in [0, 1].
        needs: what a question must have: "reference", right answers; or keys of `extra`.
    """

    score: Score
    needs: tuple[str, ...] = ("reference",)


SCORERS = {
    "exact_match": Scorer(exact_match),
    "contains": Scorer(contains),
    "last_number": Scorer(last_number),
    "ifeval": Scorer(follow, INSTRUCTIONS),
    "humaneval": Scorer(pass_at_1, FIELDS),
}


def check_scorable(
    questions: list[Question],
    name: str,
    *,
    execute_code: bool = False,
    without_isolation: bool = False,
) -> None:
    """Refuse what the scorer could not score, before any answer is made.

    Args:
        execute_code: `humaneval` may run what a model wrote, in bubblewrap.
        without_isolation: and where there is no bubblewrap, with limits only.

    Raises:
        BadInput: no such scorer, a question without what it needs or of several turns, or
            `humaneval` without leave.
    """
    if name not in SCORERS:
        raise BadInput(f"unknown --scorer {name!r}; known: {', '.join(SCORERS)}")
    if name == "humaneval" and not (execute_code and (bubblewrap() or without_isolation)):
        raise BadInput(
            "the scorer humaneval runs code that a model wrote: allow it with --execute_code. It "
            "runs in bubblewrap (apt-get install bubblewrap; it needs user namespaces); where that "
            "does not run, as here if --execute_code was given, it could read and change what you "
            "can: accept that with --without_isolation, on a machine to throw away"
        )
    for question in questions:
        _check_question(question, name)


def _check_question(question: Question, name: str) -> None:
    scorer, place = SCORERS[name], f"question {question.question_id!r}"
    if len(question.turns) > 1:
        raise BadInput(f"{place} has several turns, scorers look at one: give --turns 1")
    has = question.extra | {"reference": question.reference}
    lacking = [key for key in scorer.needs if not has.get(key)]
    if lacking:
        raise BadInput(
            f"{place} lacks {', '.join(lacking)}, which the scorer {name} needs: add it, or choose "
            "another scorer"
        )
    if name == "humaneval":  # would run
        return
    try:
        nothing = max(scorer.score(".", question).values())
        right = [max(scorer.score(text, question).values()) for text in question.reference]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadInput(f"{place}: the scorer {name} cannot score it ({error!r:.200})") from error
    if right and not nothing < 1 == min(right):
        raise BadInput(
            f"{place}: by the scorer {name} its reference {question.reference!r:.100} is not right "
            "itself, or an answer that says nothing is: mend it, or choose another scorer"
        )

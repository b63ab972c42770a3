"""Scorers on hand-made answers; what a scorer needs is asked for before anything is answered."""

import pytest

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.tasks.scorers import SCORERS, check_scorable, find_last_number, normalize


def question(*reference: object, **extra: object) -> Question:
    return Question(1, "x", ["?"], list(reference), extra)


def score(scorer: str, answer: str, *reference: str) -> float:
    (value,) = SCORERS[scorer].score(answer, question(*reference)).values()
    return value


NUMBERS = {
    "She makes $1,234.50 a day.": 1234.5,
    "1,234,567": 1234567,
    "3, 4": 4,
    "a, b: 1,23": 23,  # no thousands
    r"\boxed{$9{,}500}": 9500,  # bug held down: this and the next two were 500
    r"9\,500.25 dollars": 9500.25,
    "9\u202f500 francs, 1'009'500 in all": 1009500,
    "in 1999 500 people, at 5'10": 10,
    "10-5": 5,
    "it fell to -5": -5,
    "\u22127 degrees": -7,
    "-$3": -3,
    "about .5": 0.5,
    "#### 42": 42,
    "50%": 50,
    "v1.2.": 1.2,
    "": None,
    "- , . $": None,
}


def test_last_number():
    """Of a text, and compared by value."""
    for text, number in NUMBERS.items():
        value = find_last_number(text)
        assert (None if value is None else float(value)) == number, text
    assert score("last_number", "so it is $4.00.", "4") == 1
    assert score("last_number", "42 or perhaps 43", "#### 42") == 0
    assert score("last_number", "no idea", "42") == 0
    assert score("last_number", "5", "4", "5.0") == 1
    # one part in 10^20 apart: floats could not tell them
    assert score("last_number", "100000000000000000001", "100000000000000000000") == 0


@pytest.mark.parametrize("scorer", ["exact_match", "contains"])
def test_exact_match_and_contains(scorer):
    """Normalised as SQuAD does; a reference of which nothing is left is refused."""
    assert normalize("  The  \u201cCAT's\u201d\thome! (**So**.)") == "cat s home so"
    assert score(scorer, "the Eiffel Tower.", "Eiffel tower") == 1
    found = score(scorer, "It is the Eiffel Tower.", "Big Ben", "Eiffel tower")
    assert found == (scorer == "contains") == score(scorer, "a big cat", "cat")
    assert score(scorer, "a category error", "cat") == score(scorer, "cafe", "caf\u00e9") == 0
    assert score("contains", "Paris-based, or Paris/France", "France") == 1
    for reference in ("A", "+", "The"):
        with pytest.raises(BadInput, match="is not right itself"):
            check_scorable([question(reference)], scorer)


def instructions(prompt: str, **wanted: dict) -> Question:
    names = [name.replace("__", ":") for name in wanted]
    extra = {"instruction_id_list": names, "kwargs": list(wanted.values())}
    return Question("k", "ifeval", [prompt], [], extra)


@pytest.mark.processes
def test_ifeval():
    """One instruction of two; the loose form forgives a first line and asterisks. The English
    sentence model is fetched at first use. Regression: the published checker counts a random
    letter where "#" is asked for."""
    asked = instructions(
        "Answer without commas, in less than 3 sentences.",
        punctuation__no_comma={},
        length_constraints__number_sentences={"relation": "less than", "num_sentences": 3},
    )
    check_scorable([asked], "ifeval")
    follow = SCORERS["ifeval"].score
    assert set(follow("Dr. Smith is here. So am I.", asked).values()) == {1.0}
    half = follow("One, two. Three.", asked)
    assert half["instruction_strict"] == 0.5 and half["prompt_strict"] == 0
    forgiven = follow("Sure, here it is:\nOne. Two.", asked)
    assert forgiven["prompt_strict"] == 0 and forgiven["prompt_loose"] == 1
    assert set(follow("", asked).values()) == {0.0}
    wanted = {"let_relation": "at least", "letter": "#", "let_frequency": 2}
    asked = instructions("Use 2 hashtags.", keywords__letter_frequency=wanted)
    for text, right in (("eeeeaaaattttoooo ##", 1), ("eeeeaaaattttoooo #", 0)) * 5:
        assert follow(text, asked)["prompt_strict"] == right


def test_code_runs_only_where_that_is_allowed():
    problem = question(prompt="def f():\n", test="def check(f): pass", entry_point="f")
    with pytest.raises(BadInput, match="allow that with --execute_code"):
        check_scorable([problem], "humaneval")
    check_scorable([problem], "humaneval", execute_code=True)

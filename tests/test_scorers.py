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
    r"\boxed{42}": 42,
    r"so \boxed{18}. That took 3 steps.": 18,
    r"**\boxed{-\frac{3}{4}}**, by 2": -0.75,
    r"$\boxed{\text{18 dollars}}$, \boxed{\text{none}}": 18,
    r"\boxed{}, I mean 7": 7,
    r"\$18": 18,
    r"a loss of -\$3": -3,
    r"it is \(-\$1{,}234.50\)": -1234.5,
    "$-3$": -3,
    "a change of \u20135": -5,
    "\u7b54\u6848\u662f-5": -5,  # letters without spaces around
    "+5": 5,
    "pages 3\u20135": 5,
    "50%-60%": 60,
    "COVID-19": 19,
    r"18\text{ m}^2": 18,
    r"18 cm^{2}": 18,
    r"\text{18}": 18,
    r"$x = 18.$": 18,
    "it is 18...": 18,
    "18.00.": 18,
    "1 234": 1234,
    "12 345 678.5 in all": 12345678.5,
    r"1,\!234": 1234,
    "1_000_000": 1000000,
    "12,34,567 rupees": 1234567,
    "1,234 / 5": 246.8,
    "3/4 of it": 0.75,
    "-1/2": -0.5,
    "3 1/2 hours": 3.5,
    r"3\frac{1}{2}": 3.5,
    r"\dfrac{3}{4}\text{ cup}": 0.75,
    r"\frac34": 0.75,
    r"\frac{-3}{4}": -0.75,
    "2\u00bd": 2.5,
    "\u00bd": 0.5,
    "on 3/15/2024": 2024,
    "0/0, 3/0": 0,
    r"1.5 \times 10^{3}": 1500,
    "1.5e3 of 2e-1": 0.2,
    r"18\%": 18,
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
    """Normalised. Bug held down: all punctuation was dropped; a pair with a sign was equal."""
    assert normalize("  The  \u201cCAT's\u201d\thome! (**So**.)") == "cat home so"
    assert score(scorer, "the Eiffel Tower.", "Eiffel tower") == 1
    found = score(scorer, "It is the Eiffel Tower.", "Big Ben", "Eiffel tower")
    assert found == (scorer == "contains") == score(scorer, "a big cat", "cat")
    assert score(scorer, "a category error", "cat") == 0
    for mine, reference in (("5", "-5"), ("15", "1.5"), ("C", "C++"), ("5", ".5"), ("", "+")):
        assert score(scorer, mine, reference) == score(scorer, reference, mine or "x") == 0
        assert score(scorer, f"**{reference}**.", reference) == 1


# a reference; answers that contain it, and answers that do not, with a bar between
HOLDS = {
    "Paris": "Paris-based|Paris/France|_Paris_|Paris\u2019s|\u00e0 l'\u00cele: Paris.|Parisでは",
    "France": "Paris/France.|Paris\u2014France",
    "東京": "首都は東京です。",
    "パリ": "フランスの首都はパリです",
    "กรุงเทพ": "กรุงเทพมหานครเป็นเมืองหลวง",
    "서울": "수도는 서울입니다.",
    "Italie": "l'Italie",
    "18": "18%|$18|18歳|4+14=18|\uff11\uff18",
    "1918": "1914-1918|1914\u20131918",
    "-5": "\u22125|x=-5",
    "C++": "in C++, I think|C++/C",
    "O'Brien": "by O\u2019Brien",
    "D.C.": "Washington, D.C.",
    ".NET": "`.NET`|in .NET",
    "-": "-\n\nA minus",
    "Caf\u00e9": "cafe\u0301",
    "max_value": "`max_value()`",
}
LACKS = {
    "インド": "インドネシア",
    "18": "180|1.18|18.5|118|1,218|3/18|10:18|-18|118歳",
    "5": "-5|x=-5|\u22125|.5",
    "10": "1010|10.0",
    "102": "10\u00b2",
    "C": "C++|C#|C++11|Washington, D.C.",
    "B": "B-|B+",
    "D": "I'd say so|d'accord",
    "can": "I can\u2019t",
    "max": "max_value",
    "cafe": "caf\u00e9",
    "िल": "दिल्ली",  # within a word whose vowels are marks
}
# the same of references of which an article is a part
ARTICLES = {
    "A": "A|a|(A)|A.|**A**|A) Paris|The answer is A.|Option A fits|A is it",
    "(A)": "A|It is (A).",
    "An": "An|an.",
    "The": "the",
    "Vitamin A": "vitamin A",
    "The Who": "It was The Who.|**The Who**",
    "The Hague": "In Hague|the hague",
    "the moon": "moon|Moon|The Moon",
    "Lord of Rings": "The Lord of the Rings",
}
NO_ARTICLES = {
    "A": "It is a dog.|A dog. A cat.|B, a city",
    "The": "the cat",
    "The Who": "I know who did it",
    "Vitamin A": "vitamin|a vitamin",
}


def test_words_and_articles():
    """Regressions: a word was what stands between spaces, none in Japanese or in "Paris-based"; A
    was refused as a right answer, "vitamin" was right for "Vitamin A"."""
    for right, given in ((1, HOLDS), (0, LACKS), (1, ARTICLES), (0, NO_ARTICLES)):
        for reference, answers in given.items():
            assert score("exact_match", reference, reference) == 1, reference
            for answer in answers.split("|"):
                assert score("contains", answer, reference) == right, (answer, reference)
                if given in (HOLDS, LACKS):  # an article's case tells what stands before it
                    answer = f"So: {answer}!"
                    assert score("contains", answer, reference) == right, (answer, reference)
    check_scorable([question(reference) for reference in ARTICLES], "exact_match")
    assert score("exact_match", "Who", "The Who") == score("exact_match", "(a)", "A.") == 1
    assert score("exact_match", "vitamin", "Vitamin A") == score("exact_match", "The", "A") == 0


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

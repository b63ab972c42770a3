"""Benchmark prompts are found in whatever dress, and nothing else is."""

import pytest

from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.training.prompts import HASHES, Benchmarks, fingerprints

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
SHORT = "How are you, old friend?"
MIDDLE = "How are you, my old friend?"  # six words


@pytest.fixture(scope="module")
def benchmarks() -> Benchmarks:
    return Benchmarks({"long": [LONG], "short": [SHORT, "", "..."], "middle": [MIDDLE]})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # case, punctuation and white space do not hide a prompt
        ("  how ARE you -- old\n\nfriend", "short"),
        (LONG.upper().replace(" ", ",  "), "long"),
        # the first 13 words are enough, anywhere; 12 of them are not
        ("please answer: " + LONG + " thank you", "long"),
        ("zero " + " ".join(LONG.split()[:13]), "long"),
        ("zero " + " ".join(LONG.split()[:12]) + " and so on and on", None),
        (" ".join(LONG.split()[:12]), None),
        # of a shorter prompt all words, within a text if they are six, not if they are five
        (MIDDLE + " he said", "middle"),
        ("He said: " + MIDDLE, "middle"),
        (MIDDLE.removesuffix("friend?") + "man?", None),
        ("He said: " + SHORT, None),
        (SHORT + " he said", None),
        ("", None),
        ("...", None),
    ],
)
def test_a_prompt_is_found_in_whatever_dress(benchmarks, text, found):
    assert benchmarks.find(text) == found


def test_the_shipped_hashes_know_mt_bench(benchmarks):
    """Both turns of all 80 questions, and a GSM8K test question known from its paper's figure."""
    questions = read_questions(asset_dir("mt_bench") / "question.jsonl")
    turns = [turn for question in questions for turn in question.turns]
    assert all(benchmarks.find(turn) == "mt_bench" for turn in turns)
    shipped = HASHES.read_text().splitlines()
    made = [f"{count} {digits}" for count, digits in sorted(fingerprints(turns))]
    assert made == shipped[1 : shipped.index("# humaneval")]
    ducks = (
        "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes "
        "muffins for her friends every day with four."
    )
    assert benchmarks.find(ducks) == "gsm8k_test"
    assert benchmarks.find("Why is the sky blue?") is None
    names = [line[2:] for line in shipped if line.startswith("#")]
    assert names == ["mt_bench", "humaneval", "gsm8k_test", "ifeval"]

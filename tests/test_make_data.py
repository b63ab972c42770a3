"""train/make_data.py on a tiny target, greedy in float32: what it writes, refuses, goes on with."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_folder import write_target
from training_runs import ROOT, TALKS, content, lines, write_talks
from training_runs import data_options as options
from training_runs import make_data as main
from transformers import LlamaForCausalLM

from eagle_fsd.models.chat import prompt_ids
from eagle_fsd.models.load import load_target
from eagle_fsd.training.data import read_dialogues

COMMAND = str(ROOT / "train/make_data.py")
pytestmark = pytest.mark.processes  # whole commands


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_talks(tmp_path_factory.mktemp("data"))


def spoken(row: dict) -> list[list[int]]:
    """Runs of tokens that the assistant wrote."""
    runs, before = [], 0
    for token, m in zip(row["input_ids"], row["loss_mask"], strict=True):
        if m and not before:
            runs.append([])
        if m:
            runs[-1].append(token)
        before = m
    return runs


def test_own_turns_and_answers(tmp_path, target, capsys):
    """Every dialogue is the prompt of its user turn and the target's greedy answer to it."""
    output = tmp_path / "data.jsonl"
    main(options(target, output, "--dialogues", "6"))
    model, tokenizer = load_target(str(target), dtype="float32")
    rows = lines(output)
    assert len(rows) == 6 == len(read_dialogues(output, max_length=1000))
    for row in rows:
        prompt = prompt_ids(tokenizer, [{"role": "user", "content": row["user"]}])
        (answer,) = spoken(row)
        assert row["input_ids"] == prompt + answer
        wanted = model.model.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=1
        )
        assert answer == wanted[0, len(prompt) :].tolist()
        assert row["finished"] == (answer[-1] == 1) and row["temperature"] == 0
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["dialogues"] == 6 and record["by_source"] == {"self": 6}
    assert record["answer_tokens"] == sum(sum(row["loss_mask"]) for row in rows)
    assert record["options"]["seed"] == 0 and record["run"]["commit"]
    dropped = len(lines(tmp_path / "data.dropped.jsonl"))
    assert dropped == sum(record["dropped"].values()) > 0
    told = capsys.readouterr().out
    assert "dropped, unfinished turn" in told
    assert re.search(r"dropped as benchmark prompts +0\n", told)


def test_conversations_are_rewritten_turn_by_turn(tmp_path, target, data):
    """The users' turns are the data's, the answers the target's, each after its own past; a
    dialogue goes on only behind a finished answer. What is dropped is counted by reason."""
    output = tmp_path / "data.jsonl"
    main(options(target, output, "--max_new_tokens", "300", sources=(str(data),)))
    _, tokenizer = load_target(str(target), dtype="float32")
    rows = lines(output)
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["dropped"] == {"duplicate": 1, "malformed": 1, "prompt too long": 1}
    assert len(rows) == TALKS - 3
    assert max(row["answers"] for row in rows) > 1
    for row in rows:
        runs = spoken(row)
        assert len(runs) == row["answers"]
        assert all(run[-1] == 1 for run in runs[:-1])
        asked = tokenizer.decode(
            [t for t, m in zip(row["input_ids"], row["loss_mask"], strict=True) if not m]
        )
        wanted = f"<s>user\n{row['user']}</s><s>assistant\n"
        for more in range(row["answers"] - 1):
            wanted += f"<s>user\nAnd {more}?</s><s>assistant\n"
        assert asked == wanted


def test_given_answers_are_only_tokenised(tmp_path, target, data):
    output = tmp_path / "data.jsonl"
    main(options(target, output, "--answers", "given", sources=(str(data),)))
    _, tokenizer = load_target(str(target), dtype="float32")
    rows = {row["user"]: row for row in lines(output)}
    said = [tokenizer.decode(run) for run in spoken(rows["Question 8?"])]
    assert said == ["So.</s>", "Yes!</s>", "Yes!</s>"]
    assert "Question 5?" not in rows and "Question 4?" not in rows


def test_benchmark_prompts_are_dropped_by_name(tmp_path, target, capsys):
    """A question of MT-Bench, one of --exclude, and one that may stay; later turns count too."""
    prompts = [
        "Implement a program to find the common elements in two arrays without using any extra "
        "data structures.",
        "SECRET question!",
        "An open question.",
        {"turns": ["Another open question.", "secret   QUESTION"]},
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "Secret question"}) + "\n")
    exclude = ("--exclude", str(tmp_path / "mine.jsonl"))
    output = tmp_path / "data.jsonl"
    main(options(target, output, *exclude, sources=(str(tmp_path / "prompts.jsonl"),)))
    assert [row["user"] for row in lines(output)] == ["An open question."]
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["dropped"] == {"in mine.jsonl": 2, "in mt_bench": 1}
    told = capsys.readouterr().out
    assert "dropped, in mt_bench" in told
    assert re.search(r"dropped as benchmark prompts +3\n", told)


def test_what_the_template_refuses_is_dropped(tmp_path, target):
    """System messages, or a later turn; the others go on. The same with given answers."""
    strict = Path(shutil.copytree(target, tmp_path / "strict"))
    template = strict / "chat_template.jinja"
    refusal = (
        "{% if messages[0]['role'] == 'system' or 'NO' in messages[-1]['content'] %}"
        "{{ raise_exception('refused') }}{% endif %}"
    )
    template.write_text(refusal + template.read_text())
    talks = [["Be kind.", f"Question {i}?", "So."] for i in range(2)]
    talks += [[f"Question {i}?", "So.", "NO more?", "Yes."] for i in range(2, 10)]
    talks += [["Question 10?", "So."]]
    roles = {2: ["user"], 3: ["system", "user"], 4: ["user", "assistant", "user"]}
    path = tmp_path / "talks.jsonl"
    with path.open("w") as file:
        for talk in talks:
            pairs = zip([*roles[len(talk)], "assistant"], talk, strict=True)
            print(
                json.dumps({"messages": [{"role": r, "content": c} for r, c in pairs]}), file=file
            )
    for answers in ("given", "rewritten"):
        output = tmp_path / f"{answers}.jsonl"
        limit = ("--max_new_tokens", "300", "--answers", answers)
        main(options(strict, output, *limit, sources=(str(path),)))
        kept = {row["user"]: row["finished"] for row in lines(output)}
        record = json.loads(output.with_suffix(".json").read_text())
        assert record["dropped"] == {"template refuses it": len(talks) - len(kept)}
        assert kept.pop("Question 10?") in (True, False)
        if answers == "given":
            assert not kept
        else:  # a later turn is asked only behind a finished answer
            assert 0 < len(kept) < 8 and not any(kept.values())


def test_budgets(tmp_path, target):
    """Tokens: near what was asked, and a larger budget goes on."""
    output = tmp_path / "data.jsonl"
    main(options(target, output, "--answer_tokens", "150"))
    first = content(output)
    assert 100 <= sum(sum(mask) for _, _, mask in first.values()) <= 250
    main(options(target, output, "--answer_tokens", "300"))
    more = content(output)
    assert sum(sum(mask) for _, _, mask in more.values()) >= 250
    assert {k: more[k] for k in first} == first


@pytest.fixture(scope="module")
def mute(target, tmp_path_factory):
    """A target that never ends what it says."""
    folder = Path(shutil.copytree(target, tmp_path_factory.mktemp("mute") / "target"))
    model = LlamaForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data *= 20
    model.lm_head.weight.data[:2] = 0  # <s> and </s>
    model.save_pretrained(folder)
    return folder


def test_minutes_hold_while_the_first_batch_runs(tmp_path, mute):
    """Answers under way are cut at the limit: two minutes took as long as the longest answer. A
    user turn that the clock cut is no dropped one: more time asks it again."""
    output = tmp_path / "data.jsonl"
    limits = ("--batch_size", "64", "--minutes", "0.15")
    began = time.monotonic()
    long = ("--max_new_tokens", "1500", "--max_prompt_tokens", "40")
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(f"Question {i}?") + "\n" for i in range(64)))
    main(options(mute, output, *limits, *long, sources=(str(path),)))
    assert time.monotonic() - began < 30
    rows = lines(output)
    assert 0 < len(rows) <= 64 and not all(row["finished"] for row in rows)
    assert not (tmp_path / "data.dropped.jsonl").exists()


def test_a_source_that_yields_nothing_stops_with_advice(tmp_path, target, mute):
    """A target that does not end its own user turns was asked for ever."""
    with pytest.raises(SystemExit, match="yields too little: of 128 user turns .* --sources"):
        main(options(mute, tmp_path / "data.jsonl", "--dialogues", "5", "--batch_size", "64"))
    (tmp_path / "prompts.jsonl").write_text(json.dumps("long " * 300) + "\n")
    with pytest.raises(SystemExit, match="no dialogue was made .1 prompt too long"):
        main(options(target, tmp_path / "none.jsonl", sources=(str(tmp_path / "prompts.jsonl"),)))


BAD = {
    "no end": ((), "source self has no end"),
    "missing file": (("--sources", "gone.jsonl"), "unknown source 'gone.jsonl'"),
    "weight": (("--sources", "self=0"), "self=0.*positive weight"),
    "answers": (("--answers", "own"), "--answers must be rewritten or given, got 'own'"),
    "temperature": (("--temperatures", "-1"), "--temperatures must be 0 or more"),
    "positions": (("--max_prompt_tokens", "2040"), "exceed the target's 2048 positions"),
    "batch": (("--batch_size", "-4"), "--batch_size must be positive"),
    "negative": (("--dialogues", "-4"), "--dialogues must not be negative"),
    "ending": (("--output", "data.json"), "--output must end in .jsonl"),
    "dtype": (("--dtype", "int4"), "unknown --dtype 'int4'"),
    "device": (("--device", "gpu"), "unknown device 'gpu'"),
    "exclude": (("--exclude", "gone.jsonl"), "gone.jsonl"),
    "target": (("--target", "nowhere/none"), "unknown target"),
    "source is a folder": (("--sources", "/tmp"), "unknown source '/tmp'"),
    "output below a file": (("--output", "/etc/hostname/data.jsonl"), "cannot write to --output"),
    "output below nothing": (("--output", "/proc/none/data.jsonl"), "cannot write to --output"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_plain_line(tmp_path, target, monkeypatch, fault):
    """Before any weight is loaded, and with nothing written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    more, message = BAD[fault]
    limit = () if fault == "no end" else ("--dialogues", "3")
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        main(options(target, tmp_path / "data.jsonl", *limit, *more))
    assert not list(tmp_path.iterdir())


def test_no_chat_template_is_told(tmp_path, target):
    """Before weights load, with the remedy."""
    bare = write_target(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(SystemExit, match="no chat template"):
        main(options(bare, tmp_path / "data.jsonl", "--dialogues", "2"))


def test_the_record_is_of_all_runs(tmp_path, target):
    """A finished job run again leaves it as it was; a larger budget adds its time and tokens."""
    output = tmp_path / "data.jsonl"
    record = output.with_suffix(".json")
    main(options(target, output, "--dialogues", "4"))
    first = record.read_text()
    main(options(target, output, "--dialogues", "4"))
    assert record.read_text() == first
    main(options(target, output, "--dialogues", "8"))
    first, second = json.loads(first), json.loads(record.read_text())
    assert second["seconds"] > first["seconds"] > 0
    assert second["tokens_per_s"] == second["answer_tokens"] / second["seconds"]
    assert lines(output)[-1]["seconds"] >= round(first["seconds"], 1)


def test_another_run_is_not_continued(tmp_path, target):
    """Options that differ are named; a file that is not ours is left alone."""
    output = tmp_path / "data.jsonl"
    main(options(target, output, "--dialogues", "2"))
    before = output.read_bytes()
    with pytest.raises(SystemExit, match=r"other options .*'seed': \(0, 5\)"):
        main(options(target, output, "--dialogues", "2", "--seed", "5"))
    other = tmp_path / "other.jsonl"
    other.write_text("mine\n")
    with pytest.raises(SystemExit, match="exists and is no output of this command"):
        main(options(target, other, "--dialogues", "2"))
    assert output.read_bytes() == before and other.read_text() == "mine\n"


def test_a_broken_run_goes_on(tmp_path, target, data):
    """As a kill leaves it, dialogues missing and the last line torn: the unbroken run's dialogues,
    each once, the same ones dropped."""
    sources = ("self=0.6", f"{data}=0.4")
    output, dropped = tmp_path / "data.jsonl", tmp_path / "data.dropped.jsonl"
    main(options(target, output, "--dialogues", "20", sources=sources))
    whole, out = content(output), sorted(map(str, lines(dropped)))
    (tmp_path / "data.json").unlink()
    for path in (output, dropped):
        kept = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(kept[: len(kept) // 2]) + b'{"id": 9999, "source": "se')
    main(options(target, output, "--dialogues", "20", sources=sources))
    assert content(output) == whole
    assert sorted(map(str, lines(dropped))) == out


def test_two_processes(tmp_path, target, data):
    """torchrun: each makes its share, the first puts them together; nothing twice."""
    output = tmp_path / "data.jsonl"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command = [*torchrun, "--master_port", "29731", COMMAND]
    command += options(target, output, "--dialogues", "12", sources=("self", str(data)))
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = lines(output)
    assert len(rows) in (11, 12) and [row["id"] for row in rows] == sorted(content(output))
    assert len({row["user"] for row in rows}) == len(rows)
    for i in range(2):
        part = tmp_path / f"data.part{i}.jsonl"
        assert len(lines(part)) == 6 and all(row["id"] % 2 == i for row in lines(part))
    record = json.loads((tmp_path / "data.json").read_text())
    assert record["dialogues"] == len(rows)
    assert record["tokens_per_s"] == record["answer_tokens"] / record["seconds"] > 0
    with pytest.raises(SystemExit, match="processes"):
        main(options(target, output, "--dialogues", "12", sources=("self", str(data))))

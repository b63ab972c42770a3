"""train/make_data.py on a tiny target, greedy in float32: what it writes, refuses, goes on with."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT, change, write_rows
from commands import rows as lines
from training_runs import TALKS, content, made, place, write_talks
from training_runs import data_options as options
from training_runs import make_data as main
from transformers import LlamaForCausalLM

from eagle_fsd.decoding.target import Target
from eagle_fsd.models.chat import prompt_ids
from eagle_fsd.models.load import load_target, target_digests
from eagle_fsd.runs.folder import record_files
from eagle_fsd.training.data import read_dialogues
from eagle_fsd.training.features import TargetStates

pytestmark = pytest.mark.processes  # whole commands


@pytest.fixture(scope="module")
def target(models):
    return models[0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_talks(tmp_path_factory.mktemp("data"))


def scaled(target: Path, folder: Path, end: float) -> Path:
    """The target with the logits of its end token scaled."""
    shutil.copytree(target, folder, dirs_exist_ok=True)
    model = LlamaForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data[1] *= end
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def terse(target, tmp_path_factory):
    """A target whose own turns end soon."""
    return scaled(target, tmp_path_factory.mktemp("terse"), end=3.0)


def summary(output: Path) -> dict:
    return json.loads((output / "summary.json").read_text())


def prompts(folder: Path, *rows: str | dict) -> tuple[str]:
    """A source of them."""
    records = [{"prompt": row} if isinstance(row, str) else row for row in rows]
    return (str(write_rows(folder / "prompts.jsonl", *records)),)


def sharegpt(*turns: str) -> dict:
    roles = ("human", "gpt")
    return {"conversations": [{"from": roles[n % 2], "value": t} for n, t in enumerate(turns)]}


def spoken(row: dict) -> list[list[int]]:
    """Runs of tokens that the assistant wrote."""
    runs = groupby(zip(row["input_ids"], row["loss_mask"], strict=True), key=itemgetter(1))
    return [[token for token, _ in run] for own, run in runs if own]


def greedy(target: Target, prompt: list[int]) -> list[int]:
    """What transformers says to a prompt."""
    ids = torch.tensor([prompt])
    said = target.model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=1)
    return said[0, len(prompt) :].tolist()


def test_own_turns_and_answers(tmp_path, terse, capsys):
    """Every dialogue is the prompt of its user turn and the target's greedy answer to it; a larger
    budget adds to them, other options are refused."""
    main(options(terse, tmp_path, "--dialogues", "6"))
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    model, tokenizer = load_target(str(terse), dtype="float32")
    rows = made(tmp_path)
    assert len(rows) == 6 == len(read_dialogues(tmp_path, vocab_size=1000))
    for row in rows:
        prompt = prompt_ids(tokenizer, [{"role": "user", "content": row["user"]}])
        (answer,) = spoken(row)
        assert row["input_ids"] == prompt + answer
        assert answer == greedy(model, prompt)
        assert row["finished"] == (answer[-1] == 1) and row["temperature"] == 0
    assert told == summary(tmp_path)
    assert told["dialogues"] == 6 and told["from"] == {"self": 6}
    assert told["answer_tokens"] == sum(sum(row["loss_mask"]) for row in rows)
    dropped = lines(tmp_path / "records/dropped.jsonl")
    assert len(dropped) == sum(told["dropped"].values()) > 0

    first = content(tmp_path)
    with pytest.raises(SystemExit, match="other settings .*seed 0 there and 5 here"):
        main(options(terse, tmp_path, "--dialogues", "9", "--seed", "5"))
    held = change(terse / "model.safetensors")
    with pytest.raises(SystemExit, match="other settings .*another file target/model.safetensors"):
        main(options(terse, tmp_path, "--dialogues", "9"))
    (terse / "model.safetensors").write_bytes(held)
    # a folder from before rows had a part goes on
    path = tmp_path / "records/dialogues.jsonl"
    write_rows(path, *({k: v for k, v in row.items() if k != "part"} for row in lines(path)))
    capsys.readouterr()
    main(options(terse, tmp_path, "--dialogues", "9"))
    shown = capsys.readouterr().err
    assert f"goes on after 6 dialogues with {told['answer_tokens']} answer tokens" in shown
    assert "| 6/9 [" in shown
    assert summary(tmp_path)["dialogues"] == 9 and summary(tmp_path)["from"] == {"self": 9}
    assert summary(tmp_path)["seconds"] >= told["seconds"] > 0
    more = {(row["id"], 0): row["input_ids"] for row in made(tmp_path)}
    assert len(more) == 9 and all(more[place] == first[place][1] for place in first)
    main(options(terse, tmp_path / "more", "--answer_tokens", "300", "--batch_size", "4"))
    assert 260 <= summary(tmp_path / "more")["answer_tokens"] <= 380
    bars = re.findall("making dialogues: .*?]", capsys.readouterr().err)
    assert bars and all("/300 [" in bar for bar in bars)  # which knows how much is left


def test_a_target_without_a_chat_template_takes_one_of_fastchat(tmp_path, target):
    """Bug held down: --conv_template was the benches' alone, so that Vicuna could get no head. The
    prompt is that of decoding; a template whose answers only a text ends is refused."""
    bare = scaled(target, tmp_path / "bare", end=1.0)
    (bare / "chat_template.jinja").unlink()
    sources, template = (str(write_talks(tmp_path)),), "vicuna_v1.1"
    more = ["--conv_template", template, "--dialogues", "4"]
    main(options(bare, tmp_path / "out", *more, sources=sources))
    model, tokenizer = load_target(str(bare), dtype="float32")
    rows = [row for row in made(tmp_path / "out") if row["part"] == 0]
    assert len(rows) == 4
    for row in rows:
        user = [{"role": "user", "content": row["user"]}]
        prompt = prompt_ids(tokenizer, user, conv_template=template)
        said = prompt + greedy(model, prompt)
        assert row["input_ids"][: len(said)] == said
    with pytest.raises(SystemExit, match="'one_shot' ends answers by the text"):
        main(options(bare, tmp_path / "no", "--conv_template", "one_shot", sources=sources))


def test_conversations_are_rewritten_turn_by_turn(tmp_path, target, data):
    """The users' turns are the data's, the answers the target's, each after its own past; a
    dialogue goes on only behind a finished answer. What is dropped is counted by reason. --features
    has the target's states of every dialogue but for its last token, as they are when the text is
    run by itself; train_head.py finds them by the same folder, and computes none."""
    kept = str(tmp_path / "features")
    limits = ("--max_new_tokens", "300", "--features", kept)
    main(options(target, tmp_path, *limits, sources=(str(data),)))
    model, tokenizer = load_target(str(target), dtype="float32")
    rows = made(tmp_path)
    malformed = "malformed: user and assistant do not take turns, the user first"
    dropped = {"duplicate": 1, malformed: 1, "prompt too long": 1}
    assert summary(tmp_path)["dropped"] == dropped and summary(tmp_path)["rows"] == len(rows)
    assert summary(tmp_path)["unread"] == {"tools": TALKS - 2}
    assert len({row["id"] for row in rows}) == TALKS - 3 == summary(tmp_path)["dialogues"]
    assert max(len(spoken(row)) for row in rows) > 1
    # an answer with a begin token in its midst is another one in the template's history
    assert not any(0 in run for row in rows for run in spoken(row)[:-1])
    for row in [row for row in rows if row["part"] == 0]:
        runs = spoken(row)
        assert all(run[-1] == 1 for run in runs[:-1])
        asked = tokenizer.decode(
            [t for t, m in zip(row["input_ids"], row["loss_mask"], strict=True) if not m]
        )
        wanted = f"<s>user\n{row['user']}</s><s>assistant\n"
        for more in range(len(runs) - 1):
            wanted += f"<s>user\nAnd {more}?</s><s>assistant\n"
        assert asked == wanted
    states = TargetStates(model, kept, target_digests(str(target)))
    texts = [row["input_ids"] for row in rows]
    wanted = TargetStates(model).of(texts)
    model.model.base_model.register_forward_pre_hook(lambda *_: pytest.fail("computed again"))
    for (feature_LF, hidden_LD), (right_LF, _) in zip(states.of(texts), wanted, strict=True):
        assert torch.equal(feature_LF, hidden_LD) and not feature_LF[-1].any()
        torch.testing.assert_close(feature_LF[:-1].float(), right_LF[:-1], rtol=2**-8, atol=1e-4)


def test_benchmark_prompts_are_dropped_by_name(tmp_path, target):
    """A question of MT-Bench, one of --exclude, and ones that may stay; later turns count too, and
    what others than the user say. Bug held down: only the user's turns were looked at."""
    known = (
        "Implement a program to find the common elements in two arrays without using any extra "
        "data structures."
    )
    asked = [[known], ["SECRET question!"], ["An open question."], ["Hi.", "secret   QUESTION"]]
    asked = [{"turns": turns} for turns in asked] + [sharegpt("Which one?", f"This: {known}")]
    sources = prompts(tmp_path, *asked, sharegpt("Another.", "So."))
    exclude = write_rows(tmp_path / "mine.jsonl", {"question": "Secret question"})
    arguments = ("--exclude", str(exclude))
    main(options(target, tmp_path / "data", *arguments, sources=sources))
    first, second = made(tmp_path / "data")
    assert {first["user"], second["user"]} == {"An open question.", "Another."}
    assert summary(tmp_path / "data")["dropped"] == {"in mine.jsonl": 2, "in mt_bench": 2}
    _, tokenizer = load_target(str(target), dtype="float32")
    said = tokenizer.decode(spoken(first)[0], skip_special_tokens=True)
    write_rows(exclude, {"prompt": said})
    main(options(target, tmp_path / "again", *arguments, sources=sources))
    users = {row["user"] for row in made(tmp_path / "again")}
    assert first["user"] not in users and second["user"] in users


def test_what_the_template_refuses_is_dropped(tmp_path, target):
    """System messages, or a later turn, which is asked only behind a finished answer."""
    strict = Path(shutil.copytree(target, tmp_path / "strict"))
    template = strict / "chat_template.jinja"
    refusal = (
        "{% if messages[0]['role'] == 'system' or 'NO' in messages[-1]['content'] %}"
        "{{ raise_exception('refused') }}{% endif %}"
    )
    template.write_text(refusal + template.read_text())
    talks = [[f"Question {n}?", "So.", "NO more?", "Yes."] for n in range(2, 10)]
    talks = [sharegpt(*talk) for talk in talks]
    talks.append(sharegpt("Question 1?", "So.") | {"system": "Be kind."})
    limit = ("--max_new_tokens", "300")
    main(options(strict, tmp_path / "data", *limit, sources=prompts(tmp_path, *talks)))
    kept = {row["user"]: row["finished"] for row in made(tmp_path / "data")}
    dropped = summary(tmp_path / "data")["dropped"]
    assert dropped == {"template refuses it": len(talks) - len(kept)}
    assert 0 < len(kept) < 8 and not any(kept.values())


def test_minutes_cut_the_answers_under_way(tmp_path, monkeypatch, terse):
    """Bugs held down: two minutes took as long as the longest answer; a dialogue whose first answer
    had ended vanished, since its second turn was never begun, or was answered by nothing. The clock
    goes on by two seconds whenever it is asked, which is at every forward and for every candidate,
    so that the same answers are under way on every machine."""
    firsts = prompts(tmp_path, *(f"Question {i}?" for i in range(12)))
    main(options(terse, tmp_path / "first", sources=firsts))
    wanted = {row["user"]: spoken(row) for row in made(tmp_path / "first")}

    clock = SimpleNamespace(monotonic=count(step=2).__next__)
    monkeypatch.setattr("eagle_fsd.training.dialogues.time", clock)
    limits = ("--minutes", "0.7", "--features", str(tmp_path / "states"))
    sources = prompts(tmp_path, *({"turns": [first, "And then?"]} for first in wanted))
    main(options(terse, tmp_path / "cut", *limits, sources=sources))
    rows = made(tmp_path / "cut")
    assert {row["user"] for row in rows} == wanted.keys()
    came = set()  # (second turn begun, finished)
    for row in rows:
        (answer, *second), (whole,) = spoken(row), wanted[row["user"]]
        assert answer == whole[: len(answer)]
        assert not second or answer == whole
        assert second or row["finished"] == (answer == whole)
        came.add((bool(second), row["finished"]))
    assert came >= {(False, False), (False, True), (True, True)}
    assert len(list((tmp_path / "states").rglob("*.safetensors"))) == len(rows)

    # a user's turn of the target's own that is cut is not dropped
    clock.monotonic = count(step=2).__next__
    with pytest.raises(SystemExit, match="no dialogue was made") as told:
        main(options(terse, tmp_path / "own", "--minutes", "0.1"))
    assert "prompt too long" not in str(told.value)


def test_a_source_that_yields_nothing_stops_with_advice(tmp_path, target):
    """A target that does not end its own user turns was asked for ever."""
    mute = scaled(target, tmp_path / "mute", end=0.0)
    with pytest.raises(SystemExit, match="yields too little: of 128 user turns .* --sources"):
        main(options(mute, tmp_path / "self", "--dialogues", "500", "--batch_size", "128"))
    with pytest.raises(SystemExit, match="no dialogue was made .1 prompt too long"):
        main(options(target, tmp_path / "none", sources=prompts(tmp_path, "long " * 300)))


def test_two_processes_that_are_killed_go_on_as_one(tmp_path, terse, data):
    """torchrun's processes killed with -9 amid their work: what they had made stays, each dialogue
    once, and every one is what an unbroken run of one process makes of its candidate."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = ("--batch_size", "4", "--dialogues")
    mixed = {"sources": ("self=0.6", f"{data}=0.4")}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, *torchrun, str(ROOT / "train/make_data.py")]
    command += options(terse, killed, *arguments, "500", **mixed)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    main(options(terse, whole, *arguments, "30", **mixed))

    def there() -> dict[int, dict]:
        """Dialogues of whole lines, wherever they lie, by number."""
        texts = [path.read_text() for path in killed.glob("**/dialogues.jsonl")]
        rows = [json.loads(line) for text in texts for line in text.split("\n")[:-1]]
        assert len({place(row) for row in rows}) == len(rows)
        return {place(row): row for row in rows}

    while {number % 2 for number, _ in there()} != {0, 1} or len(there()) < 10:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = there()
    main(options(terse, killed, *arguments, f"{len(before) + 5}", **mixed))
    after, unbroken = content(killed), content(whole)
    # of two that began alike in two processes one has gone
    assert {row["user"] for row in before.values()} <= {row["user"] for row in made(killed)}
    assert all(before[number] == row for number, row in there().items() if number in before)
    both = after.keys() & unbroken.keys()
    assert len(both) >= 10 and all(after[number] == unbroken[number] for number in both)
    dropped = [row["id"] for path in record_files(killed, "dropped") for row in lines(path)]
    assert len(set(dropped)) == len(dropped)
    assert not {number for number, _ in after} & set(dropped)

"""Bench runs on a tiny model: what is written, what may be added, processes, traces, refusals."""

import gc
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import QUESTIONS, ROOT, bench_options, change, rows, write_rows
from tiny_folder import write_target
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle_fsd.evaluation.bench import answer_seed
from eagle_fsd.runs import provenance
from eagle_fsd.runs.folder import record_files

pytestmark = pytest.mark.processes  # whole commands
BENCH = "evaluate/mt_bench.py"


def summary(folder: Path) -> dict[str, dict]:
    """Rows of summary.json by arm."""
    whole = json.loads((folder / "run" / "summary.json").read_text())
    return {row["arm"]: row for row in whole["rows"]}


def tokens(folder: Path) -> dict:
    """(arm, question, choice) -> token ids of all turns; each was answered once."""
    records = [row for path in record_files(folder / "run") for row in rows(path)]
    found = {
        (row["arm"], row["question_id"], row["choice"]): [t["token_ids"] for t in row["turns"]]
        for row in records
    }
    assert len(found) == len(records)
    return found


def test_what_a_run_writes_and_may_be_continued_with(call, models, tmp_path):
    """Exact arms say what plain and generate say. A further question, choice or arm adds its own
    answers and makes no other again. The same answers stand in FastChat's format."""
    arms = ["generate", "plain", "exact", "fsd:0", "fsd-paper:0", "path:0.5", "ratio:1"]
    arms += ["exact@ngram:4", "exact@eagle:4x2x2", "exact@language_model:4x2x2"]
    options = [*bench_options(models, tmp_path), "--draft_model", "layers:1"]
    out = call(BENCH, *options, "--questions", 1, "--arms", *arms)
    assert "tokens/round" in out and "fsd-paper:0 " in out
    assert f"All columns are in {tmp_path / 'run'}" in out  # of one question none has an interval
    # bug held down: it was drawn twice an answer, which fills a log
    assert 1 < out.count("question.jsonl: ") <= len(arms) + 2
    assert "differences in speed" in out  # exact and fsd:0 do the same work
    found = summary(tmp_path)
    assert list(found) == arms
    for arm in ("generate", "exact", "fsd:0", *arms[-3:]):
        assert found[arm]["same_as_plain"]["value"] == 1
    assert found["fsd:0"]["fuzzy_share"]["value"] == 0 and found["fsd:0"]["ceiling"]["value"] == 1
    assert found["plain"]["tokens_per_round"]["value"] == 1

    planned = call(BENCH, *options, "--questions", 2, "--arms", "plain", "--plan")
    assert ": answers to be made: 1, already there: 1; " in planned
    assert re.search(r"hours, and [0-9.]+ GB\nseconds of an answer: plain [0-9.]+\n", planned)
    assert len(rows(tmp_path / "run/records/plain.jsonl")) == 1

    folder = tmp_path / "run" / "records"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    more = ["--questions", 2, "--num_choices", 2, "--arms", "exact@eagle:7x3x3", "fsd:0.4,ends=1"]
    gc.collect()  # the command's frame, kept by a library's failed import, holds the folder's lock
    call(BENCH, *options, *more)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert all(after[name].startswith(before[name]) for name in before)
    assert [name for name in before if after[name] != before[name]] == ["exact.jsonl"]
    records = {(row["question_id"], row["choice"]): row for row in rows(folder / "exact.jsonl")}
    assert set(records) == {(0, 0), (0, 1), (1, 0), (1, 1)} and len(after) == len(before) + 1
    assert {row["tree"] for row in records.values()} == {"7x3x3"}
    first, second = records[0, 1]["turns"]  # the second continues the arm's own first answer
    assert second["prompt_tokens"] > first["prompt_tokens"] + len(first["token_ids"])
    for answer in rows(tmp_path / "run/answers/exact.jsonl"):
        # FastChat reads these keys (fastchat/llm_judge/common.py, gen_judgment.py)
        assert set(answer) == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
        for choice in answer["choices"]:
            turns = records[answer["question_id"], choice["index"]]["turns"]
            assert choice["turns"] == [turn["text"] for turn in turns]


def test_processes_answer_as_one(call, models, tmp_path):
    """Two of a launcher, each making three answers together: every sampled answer equals that of
    one process, which makes them one by one, and no speed is given."""
    options = ["--temperature", 1, "--top_k", 20, "--num_choices", 2, "--turns", 1]
    options += ["--arms", "plain", "exact", "fsd:0.5,child=sample", "path:0.5"]
    (one := tmp_path / "one").mkdir()
    (two := tmp_path / "two").mkdir()
    call(BENCH, *bench_options(models, one), *options)
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    launcher += [ROOT / "scripts/accelerate/ddp.yaml", ROOT / BENCH]
    launcher += [*bench_options(models, two), *options, "--batch", 3]
    command = [str(word) for word in launcher]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "seconds are no timings" in done.stdout and done.stdout.count("page is made by:") == 1
    assert tokens(one) == tokens(two)
    plain = {str(answer) for (arm, *_), answer in tokens(one).items() if arm == "plain"}
    assert len(plain) == 6  # seeds of their own
    assert answer_seed(0, 5, 1) != answer_seed(0, 5, 0)
    (session,) = json.loads((two / "run/run.json").read_text())["sessions"]
    assert session["processes"] == 2 and session["batch"] == 3
    assert all(row["tokens_per_second"]["value"] is None for row in summary(two).values())


def test_positions_end_answers(call, models, tmp_path):
    """The second turn's budget is what the target's positions leave, the same for every arm."""
    target = write_target(tmp_path / "short", max_positions=128, layers=2)
    options = [*bench_options((target, models[1]), tmp_path), "--max_new_tokens", 40]
    call(BENCH, *options, "--questions", 1, "--arms", "generate", "plain", "exact")
    for name in ("generate", "plain", "exact"):
        _, second = rows(tmp_path / "run" / "records" / f"{name}.jsonl")[0]["turns"]
        assert 0 < len(second["token_ids"]) == 128 - second["prompt_tokens"] < 40


@pytest.mark.parametrize("arm", ["generate", "exact"])
def test_a_target_that_breaks_keeps_what_was_answered(call, models, tmp_path, arm):
    """Its logits are NaN once it reads a z. Bug held down: answers went on, sampled `generate`
    ended in a traceback."""
    target = AutoModelForCausalLM.from_pretrained(models[0])
    (z,) = AutoTokenizer.from_pretrained(models[0])("z").input_ids
    target.get_input_embeddings().weight.data[z] = math.nan
    target.save_pretrained(shutil.copytree(models[0], tmp_path / "target"))
    turns = {"category": "a", "turns": ["Say it."]}, {"category": "a", "turns": ["Say", "z"]}
    questions = [{"question_id": number} | turn for number, turn in enumerate(turns)]
    options = bench_options((tmp_path / "target", models[1]), tmp_path, questions)
    said = call(BENCH, *options, "--arms", arm, "--temperature", 1, "--questions", 2)
    assert said.startswith("error: the target's logits are NaN or infinite")
    assert [key[1] for key in tokens(tmp_path)] == [0]


def test_a_run_is_continued_as_it_was_only(call, models, tmp_path):
    """Other settings, another command, files that changed under the models' paths, and questions
    that did: told before anything is decoded, nothing lost. Bugs held down: settings were paths, so
    the figures of the old head were reported as those of one retrained in its folder, and so of the
    tokenizer; changed questions were mixed with the answers to the old ones."""
    target, head = (shutil.copytree(folder, tmp_path / folder.name) for folder in models)
    asked = tmp_path / "question.jsonl"
    options = [*bench_options((target, head), tmp_path), "--questions", 2, "--arms", "exact"]
    call(BENCH, *options)
    kept = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.jsonl")}
    assert "(temperature 0.0 there and 0.5 here)" in call(BENCH, *options, "--temperature", 0.5)
    task = ["--task", asked, "--scorer", "contains", "--turns", 1]
    task += [option for option in options if option not in ("--question_file", asked)]
    write_rows(asked, *(question | {"reference": ["yes"]} for question in QUESTIONS))
    assert "command 'mt_bench' there and 'tasks' here" in call("evaluate/tasks.py", *task)
    for new, words in (
        ({"category": "z"}, "with other turns, or in another category ('a')"),
        ({"turns": ["Say 0.", "And again?", "And then?"]}, "with other turns"),
    ):
        write_rows(asked, QUESTIONS[0] | new, QUESTIONS[1])
        said = call(BENCH, *options, "plain")
        assert said.startswith(f"error: question 0 was answered {words}")
    write_rows(asked, *QUESTIONS)
    for path in (head / "model.safetensors", target / "tokenizer.json"):
        held = change(path)
        assert f"(another file {path.parent.name}/{path.name})" in call(BENCH, *options)
        path.write_bytes(held)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*.jsonl")} == kept
    assert "tokens/round" in call(BENCH, *options)


def test_changed_code_goes_on_and_is_told(call, models, tmp_path, monkeypatch):
    """Where records are of several states. Bug held down: a rule edited to accept nothing went on
    reporting what it had won before."""
    package = shutil.copytree(provenance.PACKAGE, tmp_path / "package")
    monkeypatch.setattr(provenance, "PACKAGE", package)
    options = [*bench_options(models, tmp_path), "--arms", "exact", "--questions"]
    call(BENCH, *options, 1)
    with (package / "rules/fsd.py").open("a") as file:
        file.write("# accepts nothing\n")
    told = "the library's code was changed during"
    assert told not in call(BENCH, *options, 1)  # nothing to add: they are of one state
    assert told in call(BENCH, *options, 2)


@pytest.mark.embedded
@pytest.mark.parametrize(
    ("script", "arms"),
    [
        # the first ends .ci/run
        pytest.param("mt_bench", ["plain", "exact"], marks=pytest.mark.slow),
        ("speed_cpu", ["plain", "exact"]),
        pytest.param("speed_cpu", ["plain", "generate_compiled"], marks=pytest.mark.slow),
    ],
)
def test_scripts_run(models, tmp_path, script, arms):
    """Each script sets up and runs its command from any directory; here on the tiny model. The
    options of all: test_docs.py."""
    options = [*bench_options(models, tmp_path), "--questions", 1, "--arms", *arms]
    command = ["bash", str(ROOT / "scripts" / f"{script}.sh"), *map(str, options)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tokens/round" in done.stdout

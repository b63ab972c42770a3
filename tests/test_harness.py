"""lm-evaluation-harness on our decoder: the same scores as its own model, and what FSD adds."""

import json
import os
import runpy
import socket
import subprocess
import sys
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, rows, write_rows
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import BadInput
from eagle_fsd.tasks.harness_model import FuzzyLM, HarnessOptions

TREE = {"tree": "7x3x3"}
POSITIONS = 60
PROMPTS = ["Why?", "One, two, three,", "<s>Begun already", "A longer prompt. " * 4, "Zürich "]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": str(write_target(folder / "target", max_positions=POSITIONS)),
        "head": str(write_random_head(folder / "head")),
    }


def fuzzy_lm(models: dict, **arguments) -> FuzzyLM:
    return FuzzyLM(**models, **TREE, dtype="float32", device="cpu", **arguments)


@pytest.fixture(scope="module")
def hf(models):
    return HFLM(models["target"], device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def exact(models):
    return fuzzy_lm(models, arm="exact")


def instances(kind: str, arguments: list[tuple], *, repeats: int = 1) -> list[Instance]:
    return [Instance(kind, {}, a, 0, ("task", i, repeats)) for i, a in enumerate(arguments)]


def generations(**settings) -> list[Instance]:
    settings = {"max_gen_toks": 16, **settings}
    return instances("generate_until", [(prompt, settings) for prompt in PROMPTS])


def test_loglikelihoods_are_those_of_hf(hf, exact):
    """Choices of one token and of several, an empty context, spaces at the end, sequences longer
    than the target's positions, and whole texts in windows of them."""
    pairs = [(p, c) for p in ["", *PROMPTS] for c in (" A", " blue", "x")]
    asked = instances("loglikelihood", [*pairs, ("space ", "after")])
    mine, wanted = (np.array(lm.loglikelihood(asked)) for lm in (exact, hf))
    assert mine == pytest.approx(wanted, abs=1e-4)  # and whether it is greedy
    texts = instances("loglikelihood_rolling", [("",), ("short",), ("All of it, twice. " * 9,)])
    wanted = hf.loglikelihood_rolling(texts)
    assert exact.loglikelihood_rolling(texts) == pytest.approx(wanted, abs=2e-3)


def test_greedy_answers_are_those_of_hf(models, hf):
    """Of three arms, with stop strings, which are cut off; prompts cut from the left."""
    free = hf.generate_until(generations())
    until = [text[len(text) // 2] for text in free]
    wanted = hf.generate_until(generations(until=until))
    assert wanted != free and all(mark not in text for mark in until for text in wanted)
    for arm in ("plain", "fsd:0", "exact@lookup"):
        mine = fuzzy_lm(models, arm=arm)
        assert mine.generate_until(generations()) == free
        assert mine.generate_until(generations(until=until)) == wanted


def test_metrics_and_stops(models):
    """By task. A stop string may be a special token, which is not in the text."""
    lm = fuzzy_lm(models, arm="fsd:1e9")
    lm.generate_until(generations())
    metrics = lm.metrics()["task"]
    assert metrics["fuzzy_share"]["value"] > 0.2 and metrics["answers"] == len(PROMPTS)
    assert metrics["tv_per_token"] == metrics["fuzzy_share"]
    (asked,) = instances("generate_until", [("Why?", {"until": ["<s>"], "max_gen_toks": 5})])
    assert lm.read_request(asked)[2].trim([], [9, 0, 9]) == ([9, 0], "stop")


def test_seeds_are_of_prompt_and_repeat(models):
    """Order does not matter, repeats differ, and a copy beyond the repeats (lm-eval evens out
    ranks so) is neither answered nor counted again."""
    lm = fuzzy_lm(models, arm="exact")
    settings = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    asked = instances("generate_until", [(p, settings) for p in PROMPTS[:2]], repeats=2)
    forth = lm.generate_until([*asked, *asked])
    back = lm.generate_until([*asked[::-1], *asked[::-1]])
    n = len(asked)
    assert forth[:n] == back[:n][::-1] and forth[n:] == back[n:][::-1]
    assert forth[:n] != forth[n:]
    assert lm.generate_until([asked[0]] * 3)[1:] == [forth[n]] * 2
    assert lm.metrics()["task"]["answers"] == 4 * n + 2


def test_generation_kwargs(models):
    """lm-eval's meanings: greedy unless sampling is asked for; aliases of the budget. What cannot
    be had is told before the first request is answered."""
    lm = fuzzy_lm(models, arm="fsd:0.3,logits=processed")

    def read(**settings) -> tuple:
        (asked,) = instances("generate_until", [("Why?", {"max_gen_toks": 9} | settings)])
        _, sampling, stop = lm.read_request(asked)
        return sampling.temperature, sampling.top_k, sampling.top_p, stop.max_new_tokens

    assert read(temperature=0.7, num_beams=1) == (0.7, 0, 1.0, 9)
    assert read(temperature=1, top_p=0.9, top_k=3, do_sample=True) == (1, 3, 0.9, 9)
    wrong = {
        "num_beams .4.": {"num_beams": 4, "temperature": 1},
        "repetition_penalty .1.1.": {"repetition_penalty": 1.1},
        "'warm'.*cannot be read": {"temperature": "warm"},
        "processed": {"temperature": 0.7, "do_sample": False},  # the arm needs sampling
        "max_gen_toks .below the target's 60": {"max_gen_toks": POSITIONS, "temperature": 1},
    }
    for told, settings in wrong.items():
        right = ("Why?", {"temperature": 1.0, "max_gen_toks": 9})
        asked = instances("generate_until", [right, ("Why?", {"max_gen_toks": 9} | settings)])
        with pytest.raises(BadInput, match=told):
            lm.generate_until(asked)
    assert lm.metrics() == {}


def test_answer_cache_is_of_one_set_of_options_and_weights(models, hf, tmp_path):
    """A second run answers from it; lm-eval itself would mix another threshold's answers in."""
    path = str(tmp_path / "cache.db")
    first = fuzzy_lm(models, arm="fsd:0.1")
    texts = CachingLM(first, path).generate_until(generations())
    again = fuzzy_lm(models, arm="fsd:0.1")
    assert CachingLM(again, path).generate_until(generations()) == texts
    assert again.metrics() == {} and first.metrics()["task"]["answers"] == len(PROMPTS)
    with pytest.raises(BadInput, match='"arm": "fsd:0.1"'):
        CachingLM(fuzzy_lm(models, arm="fsd:0.2"), path)
    target = {"target": str(write_target(tmp_path / "target"))}
    CachingLM(fuzzy_lm(target, arm="plain"), str(tmp_path / "old.db"))
    write_target(tmp_path / "target", seed=1)
    with pytest.raises(BadInput, match="weights"):  # of the same path
        CachingLM(fuzzy_lm(target, arm="plain"), str(tmp_path / "old.db"))
    other = str(tmp_path / "other.db")
    CachingLM(hf, other).generate_until(generations()[:1])
    with pytest.raises(BadInput, match="another model"):
        CachingLM(first, other)


def test_answer_cache_and_repeats(models, tmp_path):
    """Sampling by temperature alone: lm-eval's cache would give all repeats one text when a run is
    resumed. Told before anything is answered; with do_sample every repeat is its own."""
    cached = CachingLM(fuzzy_lm(models, arm="exact"), str(tmp_path / "cache.db"))

    def ask(**settings) -> list[str]:
        settings |= {"temperature": 1.0, "max_gen_toks": 8}
        asked = instances("generate_until", [("Why?", settings)], repeats=2)
        return cached.generate_until(asked * 2)

    with pytest.raises(BadInput, match="temperature .with --use_cache only beside do_sample=true"):
        ask()
    once = ask(do_sample=True)
    assert once[0] != once[1] and ask(do_sample=True) == once


BAD = {
    "unknown key": ({"treshold": 0.1}, "treshold.*fields: threshold.*none of target, "),
    "unknown rule": ({"arm": "fsdd"}, "fsdd"),
    "transformers' own loop": ({"arm": "generate"}, "--model hf"),
    "no tree": ({"arm": "exact@eagle:auto"}, "15x4x6"),
    "FastChat's template": ({"conv_template": "vicuna_v1.1"}, "chat_template"),
    "a batch": ({"batch_size": 8}, "batch_size 8"),
    "no such target": ({"target": "nowhere/at-all"}, "nowhere/at-all"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_model_args_are_told(models, fault):
    arguments, told = BAD[fault]
    with pytest.raises(BadInput, match=told):
        FuzzyLM(**models | TREE | {"device": "cpu"} | arguments)


def test_what_lm_eval_passes_on(models, capsys):
    """Other keys are fields of the arm, as lm-eval splits them at commas and as JSON, before its
    drafter; lm-eval's own default device is no wish."""
    passed = {"batch_size": "auto:4", "max_batch_size": 64, "device": "cuda:0"}
    given = {"arm": "fsd:0.30", "child": "draft", "cap": 1, "target": models["target"]}
    options = HarnessOptions.read(given | {"trust_remote_code": True} | passed)
    assert options.arm == "fsd:0.3,child=draft,cap=1"
    assert options.device == ("cuda" if torch.cuda.is_available() else "cpu")
    given = {"arm": "fsd:0.3", "child": "draft@eagle:7x3x4"}
    assert HarnessOptions.read(given).arm == "fsd:0.3,child=draft@eagle:7x3x4"
    given = {"arm": "fsd:0.3,child=draft"}
    assert HarnessOptions.read(dict(given)).arm == given["arm"]
    with pytest.raises(SystemExit):
        HarnessOptions.read({"seed": 0.5})
    assert "argument --seed: invalid int value: '0.5'" in capsys.readouterr().err


COMMON = """
task: tiny_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
GENERATIVE = """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["e", "</s>"], max_gen_toks: 20}
process_results: !function metrics.process_results
metric_list: [{metric: length, aggregation: mean, higher_is_better: true}]
"""
CHOICE = """
output_type: multiple_choice
doc_to_target: 0
doc_to_choice: [" A", " B", " both"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
# fails where a folder of ours stands for Hugging Face's package
METRICS = """
from evaluate import EvaluationModule


def process_results(doc, results):
    assert EvaluationModule.compute
    return {"length": len(results[0])}
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    asked = [{"question": f"Question {i}: {'why? ' * i}", "answer": "so"} for i in range(5)]
    data = write_rows(folder / "data.jsonl", *asked)
    for name, task in (("generation", GENERATIVE), ("choice", CHOICE)):
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, data=data) + task)
    (folder / "metrics.py").write_text(METRICS)
    return folder


def command_line(models, tasks, output: Path, **arguments) -> list[str]:
    """Of both tasks."""
    arguments = models | TREE | {"dtype": "float32"} | arguments
    given = ",".join(map("=".join, arguments.items()))
    command = [str(ROOT / "evaluate" / "harness.py"), "--model", "eagle_fsd"]
    command += ["--model_args", given, "--device", "cpu", "--log_samples", "--include_path"]
    command += [str(tasks), "--tasks", "tiny_generation,tiny_choice", "--output_path", str(output)]
    return command


@pytest.fixture(scope="module")
def plain(models, tasks):
    """The plain loop on both tasks, through lm-eval's Python call."""
    return simple_evaluate(
        fuzzy_lm(models, arm="plain"),
        tasks=["tiny_generation", "tiny_choice"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )


def check_same(output: Path, plain: dict) -> tuple[dict, dict, dict]:
    """The command's answers and scores are the plain loop's; returns what it tells of itself, of
    its rounds, and of the plain loop's."""
    (path,) = output.rglob("samples_tiny_generation_*.jsonl")
    answers = {row["doc_id"]: row["filtered_resps"] for row in rows(path)}
    wanted = plain["samples"]["tiny_generation"]
    assert len(wanted) == 5 and answers == {r["doc_id"]: r["filtered_resps"] for r in wanted}
    (path,) = output.rglob("results_*.json")
    written = json.loads(path.read_text())
    for task, metric in (("tiny_generation", "length,none"), ("tiny_choice", "acc,none")):
        assert written["results"][task][metric] == plain["results"][task][metric]
    ours, theirs = (run["config"]["eagle_fsd"] for run in (written, plain))
    return ours, *(x["generation"]["tiny_generation"] for x in (ours, theirs))


@pytest.mark.processes
def test_the_command_at_threshold_0_is_plain(models, tasks, plain, tmp_path, monkeypatch, capsys):
    """Answer for answer, in this process, without lm-eval's index of its own tasks; what the rounds
    did is in the results file and on the screen. The folder of commands stands on Python's path, as
    it does for a file that is run."""
    own_tasks_only = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", own_tasks_only)
    monkeypatch.syspath_prepend(ROOT / "evaluate")
    arguments = command_line(models, tasks, tmp_path, arm="fsd:0,child=draft")
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(arguments[0], run_name="__main__")
    told = capsys.readouterr().out
    ours, mine, baseline = check_same(tmp_path, plain)
    assert ours["options"]["arm"] == "fsd:0,child=draft"
    assert mine["answers"] == 5 and mine["fuzzy_share"]["value"] == 0
    assert "| tiny_generation | 5 " in told
    assert baseline["tokens_per_round"]["value"] == 1
    assert mine["tokens_per_answer"] == baseline["tokens_per_answer"]


@pytest.mark.processes
@pytest.mark.slow  # lm-eval starts in seconds, each process anew
def test_two_processes_share_the_requests(models, tasks, plain, tmp_path):
    """An odd number of them, each answered and counted once; started from the root, whose folder
    evaluate/ is no package."""
    config = str(ROOT / "scripts" / "accelerate" / "ddp.yaml")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
    launch += ["--main_process_port", port]
    environment = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment |= {"HF_DATASETS_CACHE": str(tasks / "cache")}
    command = [*launch, *command_line(models, tasks, tmp_path, arm="fsd:0")]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ours, mine, baseline = check_same(tmp_path, plain)
    assert ours["run"]["processes"] == 2
    for name in ("answers", "tokens_per_answer", "at_limit"):
        assert mine[name] == baseline[name]

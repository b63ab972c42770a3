"""lm-evaluation-harness on our decoder: the same scores as its own model, and what FSD adds."""

import json
import os
import runpy
import subprocess
import sys
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, change, full_disk, rows, write_rows
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import model_registry
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


def instances(kind: str, arguments: list[tuple], *, repeats: int = 1) -> list[Instance]:
    return [Instance(kind, {}, a, 0, ("task", i, repeats)) for i, a in enumerate(arguments)]


def generations(**settings) -> list[Instance]:
    settings = {"max_gen_toks": 16, **settings}
    return instances("generate_until", [(prompt, settings) for prompt in PROMPTS])


def test_loglikelihoods_are_those_of_hf(models, hf):
    """Choices of one token and of several, an empty context, spaces at the end, sequences longer
    than the target's positions, and whole texts in windows of them."""
    exact = fuzzy_lm(models, arm="exact")
    pairs = [(p, c) for p in ["", *PROMPTS] for c in (" A", " blue", "x")]
    asked = instances("loglikelihood", [*pairs, ("space ", "after")])
    mine, wanted = (np.array(lm.loglikelihood(asked)) for lm in (exact, hf))
    assert mine == pytest.approx(wanted, abs=1e-4)  # and whether it is greedy
    texts = instances("loglikelihood_rolling", [("",), ("All of it, twice. " * 9,)])
    wanted = hf.loglikelihood_rolling(texts)
    assert exact.loglikelihood_rolling(texts) == pytest.approx(wanted, abs=2e-3)


def test_greedy_answers_are_those_of_hf(models, hf):
    """Of three arms, with stop strings, which are cut off; prompts cut from the left."""
    free = hf.generate_until(generations())
    until = [text[len(text) // 2] for text in free]
    wanted = hf.generate_until(generations(until=until))
    assert wanted != free and all(mark not in text for mark in until for text in wanted)
    for arm in ("plain", "fsd:0", "exact@ngram"):
        mine = fuzzy_lm(models, arm=arm)
        assert mine.generate_until(generations()) == free
        assert mine.generate_until(generations(until=until)) == wanted
    # a stop string may be a special token, which is not in the text
    stop = mine.read_request(generations(until=["<s>"])[0])[2]
    assert stop.trim([], [9, 0, 9]) == ([9, 0], "stop")


def test_seeds_are_of_prompt_and_repeat(models, tmp_path):
    """Order does not matter, repeats differ, and a copy beyond the repeats (lm-eval evens out
    ranks so) is neither answered nor counted again. Sampling by temperature alone, where lm-eval's
    cache would give all repeats of a resumed run one text, is told."""
    lm = fuzzy_lm(models, arm="exact")
    settings = {"max_gen_toks": 8, "temperature": 1.0}
    alone = instances("generate_until", [(p, settings) for p in PROMPTS[:2]], repeats=2)
    settings = settings | {"do_sample": True}
    asked = instances("generate_until", [(p, settings) for p in PROMPTS[:2]], repeats=2)
    forth, back = lm.generate_until(asked * 2), lm.generate_until(asked[::-1] * 2)
    assert forth == [back[i] for i in (1, 0, 3, 2)] and forth[:2] != forth[2:]
    assert lm.generate_until([asked[0]] * 3)[1:] == [forth[2]] * 2
    assert lm.metrics()["task"]["answers"] == 4 + 4 + 2
    cached = CachingLM(lm, str(tmp_path / "cache.db"))
    with pytest.raises(BadInput, match="only beside do_sample=true"):
        cached.generate_until(alone * 2)
    assert cached.generate_until(asked * 2) == cached.generate_until(asked * 2) == forth


def test_an_arm_for_greedy_requests_alone(models):
    """Bug held down: arms that only temperature 0 takes were refused whatever was asked for."""
    for arm in ("fly:1", "path:0.5,no_repeat=3"):
        lm = fuzzy_lm(models, arm=arm)
        assert len(lm.generate_until(generations())) == len(PROMPTS)
        with pytest.raises(BadInput, match="temperature 0"):
            lm.generate_until(generations(do_sample=True, temperature=1.0))
    with pytest.raises(BadInput, match="needs drafts that are sampled"):
        HarnessOptions(**models, **TREE, arm="rejection")


def test_generation_kwargs(models):
    """lm-eval's meanings: greedy unless sampling is asked for; aliases of the budget. What cannot
    be had is told before the first request is answered."""
    lm = fuzzy_lm(models, arm="fsd:0.3,child=sample")

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
        "child 'sample' needs": {"temperature": 0.7, "do_sample": False},  # the arm needs sampling
        "max_gen_toks .below the target's 60": {"max_gen_toks": POSITIONS, "temperature": 1},
    }
    for told, settings in wrong.items():
        right = ("Why?", {"temperature": 1.0, "max_gen_toks": 9})
        asked = instances("generate_until", [right, ("Why?", {"max_gen_toks": 9} | settings)])
        with pytest.raises(BadInput, match=told):
            lm.generate_until(asked)
    assert lm.metrics() == {}


def test_answer_cache_is_of_one_set_of_options_and_weights(models, hf, tmp_path):
    """A second run answers from it, and its metrics are of its own answers; lm-eval itself would
    mix another threshold's in."""
    path = str(tmp_path / "cache.db")
    first = fuzzy_lm(models, arm="fsd:1e9")
    texts = CachingLM(first, path).generate_until(generations())
    again = fuzzy_lm(models, arm="fsd:1e9")
    assert CachingLM(again, path).generate_until(generations()) == texts
    assert again.metrics() == {}
    metrics = first.metrics()["task"]
    assert metrics["fuzzy_share"]["value"] > 0.2 and metrics["answers"] == len(PROMPTS)
    assert metrics["tv_per_token"] == metrics["fuzzy_share"]
    with pytest.raises(BadInput, match='"arm": "fsd:'):
        CachingLM(fuzzy_lm(models, arm="fsd:0.2"), path)
    target, old = {"target": str(write_target(tmp_path / "target"))}, str(tmp_path / "old.db")
    CachingLM(fuzzy_lm(target, arm="plain"), old)
    # of the same path; a sample of the weights, the packed ones not among them, did not tell
    change(tmp_path / "target/model.safetensors")
    with pytest.raises(BadInput, match="name another cache"):
        CachingLM(fuzzy_lm(target, arm="plain"), old)
    other = str(tmp_path / "other.db")
    CachingLM(hf, other).generate_until(generations()[:1])
    with pytest.raises(BadInput, match="another model"):
        CachingLM(first, other)


def test_what_lm_eval_passes_on(models, capsys):
    """Other keys are fields of the arm, as lm-eval splits them at commas and as JSON, before its
    drafter; lm-eval's own default device is no wish."""
    passed = {"batch_size": "auto:4", "max_batch_size": 64, "device": "cuda:0"}
    passed |= {"trust_remote_code": True, "target": models["target"]}
    options = HarnessOptions.read({"arm": "fsd:0.30", "child": "draft", "ends": 1} | passed)
    assert options.arm == "fsd:0.3,child=draft,ends=1"
    assert options.device == ("cuda" if torch.cuda.is_available() else "cpu")
    wanted = "fsd:0.3,child=draft@ngram:10"
    for given in ({"arm": "fsd:0.3", "child": "draft@ngram:10"}, {"arm": wanted}):
        assert HarnessOptions.read(given).arm == wanted
    with pytest.raises(SystemExit):
        HarnessOptions.read({"seed": 0.5})
    assert "argument --seed: invalid int value: '0.5'" in capsys.readouterr().err


TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
doc_to_text: "{{question}}"
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["e", "</s>"], max_gen_toks: 20}
process_results: !function metrics.process_results
metric_list: [{metric: length, aggregation: mean, higher_is_better: true}]
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
    (folder / "tiny.yaml").write_text(TASK.replace("DATA", str(data)))
    (folder / "metrics.py").write_text(METRICS)
    return folder


def command_line(models, tasks, output: Path, arm: str) -> list[str]:
    arguments = models | TREE | {"dtype": "float32", "arm": arm}
    given = ",".join(map("=".join, arguments.items()))
    options = f"--model eagle_fsd --model_args {given} --device cpu --log_samples --include_path"
    options += f" {tasks} --tasks tiny --output_path {output}"
    return [str(ROOT / "evaluate" / "harness.py"), *options.split()]


@pytest.fixture(scope="module")
def plain(models, tasks):
    """The plain loop on the task, through lm-eval's Python call."""
    return simple_evaluate(
        fuzzy_lm(models, arm="plain"),
        tasks=["tiny"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )


def check_same(output: Path, plain: dict) -> tuple[dict, dict, dict]:
    """The command's answers and scores are the plain loop's; returns its own entry in the results,
    its metrics and the plain loop's."""
    (path,) = output.rglob("samples_tiny_*.jsonl")
    answers, wanted = (
        {row["doc_id"]: row["filtered_resps"] for row in samples}
        for samples in (rows(path), plain["samples"]["tiny"])
    )
    assert len(wanted) == 5 and answers == wanted
    (path,) = output.rglob("results_*.json")
    written = json.loads(path.read_text())
    assert written["results"]["tiny"]["length,none"] == plain["results"]["tiny"]["length,none"]
    ours, theirs = (run["config"]["eagle_fsd"] for run in (written, plain))
    return ours, *(x["generation"]["tiny"] for x in (ours, theirs))


@pytest.fixture
def run_file(monkeypatch):
    """Runs the command in this process, without lm-eval's own tasks. The folder of commands stands
    on Python's path, as it does for a file that is run."""
    own_tasks_only = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", own_tasks_only)
    monkeypatch.setattr(model_registry, "_objs", dict(model_registry._objs))  # to register again
    monkeypatch.syspath_prepend(ROOT / "evaluate")

    def run(arguments: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(arguments[0], run_name="__main__")

    return run


@pytest.mark.processes
def test_the_command_at_threshold_0_is_plain(models, tasks, plain, tmp_path, run_file, capsys):
    """Answer for answer; metrics are in the results file and on the screen."""
    run_file(command_line(models, tasks, tmp_path, "fsd:0,child=draft"))
    told = capsys.readouterr().out
    ours, mine, baseline = check_same(tmp_path, plain)
    assert ours["options"]["arm"] == "fsd:0,child=draft"
    assert mine["answers"] == 5 and mine["fuzzy_share"]["value"] == 0
    assert "| tiny | 5 " in " ".join(told.split())
    assert baseline["tokens_per_round"]["value"] == 1
    assert mine["tokens_per_answer"] == baseline["tokens_per_answer"]


@pytest.mark.processes
@pytest.mark.parametrize("more", ["", "--use_cache"])
def test_what_could_not_be_written_is_an_error(
    models, tasks, plain, tmp_path, run_file, capsys, more
):
    """Bug held down: lm-eval warned that it could not save the results, and ended with status 0; a
    full answer cache was a traceback."""
    arguments = command_line(models, tasks, tmp_path, "plain")
    arguments += [more, str(tmp_path / "cache")] if more else []
    with full_disk(2000), pytest.raises(SystemExit) as end:
        run_file(arguments)
    wanted = more or "Could not save results aggregated ([Errno 27] File too large)"
    assert wanted in str(end.value.code) and "make room" in str(end.value.code)
    assert more or "|tiny " in capsys.readouterr().out  # what was made is shown


@pytest.mark.processes
@pytest.mark.slow  # lm-eval starts in seconds, each process anew
def test_two_processes_share_the_requests(models, tasks, plain, tmp_path):
    """An odd number of them, each answered and counted once; started from the root, whose folder
    evaluate/ is no package."""
    config = str(ROOT / "scripts" / "accelerate" / "ddp.yaml")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
    launch += ["--main_process_port", "0", *command_line(models, tasks, tmp_path, "fsd:0")]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment["HF_DATASETS_CACHE"] = str(tasks / "cache")
    done = subprocess.run(launch, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, mine, baseline = check_same(tmp_path, plain)
    assert ours["run"]["processes"] == 2
    for name in ("answers", "tokens_per_answer", "at_limit"):
        assert mine[name] == baseline[name]

"""lm-evaluation-harness on our decoder: the same scores as its own model, and what FSD adds."""

import json
import math
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.answering import turn_record
from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.tasks.harness_model import FuzzyLM
from eagle_fsd.tasks.harness_options import HarnessOptions, read_generation

ROOT = Path(__file__).parent.parent
TREE = {"tree": "7x3x3"}
PROMPTS = ["Why?", "One, two, three,", "<s>Begun already", "A longer prompt. " * 4, "Zürich "]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": str(write_target(folder / "target")),
        "head": str(write_random_head(folder / "head")),
    }


def fuzzy_lm(models: dict, **arguments) -> FuzzyLM:
    return FuzzyLM(**models, **TREE, dtype="float32", device="cpu", **arguments)


def hf_lm(models: dict, **arguments) -> HFLM:
    return HFLM(models["target"], device="cpu", dtype="float32", **arguments)


@pytest.fixture(scope="module")
def exact(models):
    return fuzzy_lm(models, arm="exact")


def instances(kind: str, arguments: Iterable[tuple], *, repeats: int = 1) -> list[Instance]:
    return [
        Instance(kind, {}, args, 0, ("task", number, repeats))
        for number, args in enumerate(arguments)
    ]


def generations(**settings) -> list[Instance]:
    settings = {"max_gen_toks": 24, **settings}
    return instances("generate_until", [(prompt, settings) for prompt in PROMPTS])


def same(mine: list[tuple[float, bool]], theirs: list[tuple[float, bool]]) -> bool:
    return all(
        math.isclose(a, b, abs_tol=1e-4) and greedy == also
        for (a, greedy), (b, also) in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize("max_length", [None, 13])
def test_loglikelihoods_are_those_of_hf(models, max_length):
    """Choices of one token and of several, an empty context, spaces at the end, sequences longer
    than max_length, and whole texts in windows of it."""
    mine = fuzzy_lm(models, arm="plain", max_length=max_length)
    theirs = hf_lm(models, max_length=max_length)
    pairs = [(p, c) for p in ["", *PROMPTS] for c in (" A", " B", " blue", "x")]
    asked = instances("loglikelihood", [*pairs, ("space ", "after")])
    assert same(mine.loglikelihood(asked), theirs.loglikelihood(asked))
    texts = instances("loglikelihood_rolling", [("",), ("short",), ("All of it, twice. " * 33,)])
    wanted = theirs.loglikelihood_rolling(texts)
    assert mine.loglikelihood_rolling(texts) == pytest.approx(wanted, abs=2e-3)


def test_a_continuation_that_cannot_be_rated_is_refused(exact):
    with pytest.raises(BadInput, match="0 tokens"):
        exact._loglikelihood_tokens([(None, [3, 4], [])])


@pytest.mark.parametrize("arm", ["plain", "exact", "fsd:0", "exact@lookup"])
def test_greedy_answers_are_those_of_hf(models, arm):
    """With stop strings, which are cut off; prompts cut from the left."""
    mine = fuzzy_lm(models, arm=arm, max_length=60)
    theirs = hf_lm(models, max_length=60)
    free = theirs.generate_until(generations())
    assert mine.generate_until(generations()) == free
    until = [text[len(text) // 2] for text in free]
    wanted = theirs.generate_until(generations(until=until))
    assert mine.generate_until(generations(until=until)) == wanted
    assert wanted != free and all(mark not in text for mark in until for text in wanted)


def test_metrics_are_those_of_other_commands(models):
    """Of the same answers, recorded as every other command records them."""
    lm = fuzzy_lm(models, arm="fsd:1e9")
    asked = generations()
    lm.generate_until(asked)
    turns = []
    for instance in asked:
        request = lm.read_request(*instance.args)
        turns.append(turn_record(lm.loaded, request[0], *lm.answer(request, seed=0)))
    (row,) = summarize({"fsd": [{"question_id": 0, "arm": "fsd", "turns": turns}]})
    mine = lm.metrics()["tasks"]["task"]
    assert mine == lm.metrics()["all"]
    for name in ("tokens_per_answer", "tokens_per_round", "fuzzy_share", "regret_per_token"):
        assert mine[name] == pytest.approx(row[name]["value"], abs=1e-5), name
    assert mine["fuzzy_share"] > 0.2 and mine["tv_per_token"] == mine["fuzzy_share"]
    assert mine["answers"] == row["answers"] == len(PROMPTS)
    assert f"| task | {len(PROMPTS)} " in lm.report()


def test_seeds_are_of_prompt_and_repeat(exact):
    """Order does not matter, repeats differ, and a copy beyond the repeats (lm-eval evens out
    ranks so) is neither answered nor counted again."""
    settings = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    asked = instances("generate_until", [(p, settings) for p in PROMPTS[:3]], repeats=2)
    before = exact.metrics().get("all", {}).get("answers", 0)
    forth = exact.generate_until([*asked, *asked])
    back = exact.generate_until([*asked[::-1], *asked[::-1]])
    n = len(asked)
    assert forth[:n] == back[:n][::-1] and forth[n:] == back[n:][::-1]
    assert forth[:n] != forth[n:]
    assert exact.generate_until([asked[0]] * 3)[1:] == [forth[n]] * 2
    assert exact.metrics()["all"]["answers"] - before == 4 * n + 2


def test_all_requests_are_checked_before_the_first_is_answered(models):
    lm = fuzzy_lm(models, arm="fsd:0.3,logits=processed")
    sampled = {"do_sample": True, "temperature": 0.5}
    asked = instances("generate_until", [("Why?", sampled), ("Why?", {"num_beams": 4})])
    with pytest.raises(BadInput, match="num_beams=4"):
        lm.generate_until(asked)
    with pytest.raises(BadInput, match="processed"):
        lm.generate_until(generations())
    with pytest.raises(BadInput, match="no room for a prompt"):
        lm.generate_until(generations(max_gen_toks=2048, **sampled))
    assert lm.metrics() == {}


def test_generation_kwargs():
    """lm-eval's meanings: greedy unless sampling is asked for; aliases of the budget."""
    sampling, budget, until = read_generation({"until": ["\n", ""], "num_beams": 1}, 256)
    assert (sampling.temperature, budget, until) == (0, 256, ("\n",))
    assert read_generation({"temperature": 0.7}, 9)[0].temperature == 0.7
    assert read_generation({"temperature": 0.7, "do_sample": False}, 9)[0].temperature == 0
    sampling, budget, _ = read_generation(
        {"max_new_tokens": 5, "temperature": 1, "top_p": 0.9, "top_k": 3}, 9
    )
    assert (sampling.top_p, sampling.top_k, budget) == (0.9, 3, 5)
    with pytest.raises(BadInput, match="repetition_penalty=1.1"):
        read_generation({"repetition_penalty": 1.1}, 9)
    with pytest.raises(BadInput, match="'warm'.*cannot be read"):
        read_generation({"temperature": "warm", "do_sample": True}, 9)


def test_stop_strings_may_be_special_tokens(models, exact):
    """A special token is not in the text, and still ends the answer."""
    _, _, stop = exact.read_request("Why?", {"until": ["<s>"], "max_gen_toks": 5})
    assert stop.trim([], [9, 0, 9]) == ([9, 0], "stop")


def test_answer_cache_is_of_one_set_of_options_and_weights(models, tmp_path):
    """A second run answers from it; lm-eval itself would mix another threshold's answers in."""
    path = str(tmp_path / "cache.db")
    first = fuzzy_lm(models, arm="fsd:0.1")
    texts = CachingLM(first, path).generate_until(generations())
    again = fuzzy_lm(models, arm="fsd:0.1")
    assert CachingLM(again, path).generate_until(generations()) == texts
    assert again.metrics() == {} and first.metrics()["all"]["answers"] == len(PROMPTS)
    with pytest.raises(BadInput, match='"arm": "fsd:0.1"'):
        CachingLM(fuzzy_lm(models, arm="fsd:0.2"), path)
    target = {"target": str(write_target(tmp_path / "target"))}
    CachingLM(fuzzy_lm(target, arm="plain"), str(tmp_path / "old.db"))
    write_target(tmp_path / "target", seed=1)
    with pytest.raises(BadInput, match="weights"):  # of the same path
        CachingLM(fuzzy_lm(target, arm="plain"), str(tmp_path / "old.db"))
    other = str(tmp_path / "other.db")
    CachingLM(hf_lm(models), other).generate_until(generations())
    with pytest.raises(BadInput, match="another model"):
        CachingLM(first, other)


def test_answer_cache_and_repeats(models, tmp_path):
    """Sampling by temperature alone: lm-eval's cache would give all repeats one text when a run is
    resumed. Told before anything is answered; with do_sample every repeat is its own."""
    cached = CachingLM(fuzzy_lm(models, arm="exact"), str(tmp_path / "cache.db"))

    def ask(lm, repeats: int = 2, **settings) -> list[str]:
        settings |= {"temperature": 1.0, "max_gen_toks": 8}
        return lm.generate_until(
            instances("generate_until", [("Why?", settings)], repeats=repeats) * repeats
        )

    with pytest.raises(BadInput, match="temperature=1 .* all 2 repeats .* do_sample=true"):
        ask(cached)
    assert cached.lm.metrics() == {}
    once = ask(cached, do_sample=True)
    assert once[0] != once[1] and ask(cached, do_sample=True) == once
    assert len(ask(cached, repeats=1)) == 1
    assert ask(cached.lm, do_sample=False)
    assert len(set(ask(fuzzy_lm(models, arm="exact")))) == 2  # without a cache


def test_chat_templates(models, exact):
    """The tokenizer's as text gives the tokens of our own prompts; FastChat's by name."""
    history = [{"role": "user", "content": "Why?"}]
    assert exact.chat_template(True) == exact.tokenizer.chat_template
    text = exact.apply_chat_template(history)
    assert exact.tok_encode(text) == exact.loaded.prompt_ids(history)
    begun = [*history, {"role": "assistant", "content": "Because"}]
    assert exact.apply_chat_template(begun, add_generation_prompt=False).endswith("Because")
    vicuna = fuzzy_lm(models, arm="exact", conv_template="vicuna_v1.1")
    assert vicuna.chat_template(True) == "vicuna_v1.1" != vicuna.tokenizer_name
    assert vicuna.tok_encode(vicuna.apply_chat_template(history)) == vicuna.loaded.prompt_ids(
        history
    )
    with pytest.raises(BadInput, match="gen_prefix"):
        vicuna.apply_chat_template(begun, add_generation_prompt=False)
    vicuna.options.conv_template, vicuna.tokenizer.chat_template = "", None
    with pytest.raises(BadInput, match="conv_template"):
        vicuna.chat_template(True)


BAD = {
    "unknown key": ({"treshold": 0.1}, "treshold: no options .target, .*fields: threshold"),
    "not a whole number": ({"seed": 0.5}, "seed=0.5"),
    "unknown rule": ({"arm": "fsdd"}, "fsdd"),
    "transformers' own loop": ({"arm": "generate"}, "--model hf"),
    "a tree to be chosen": ({"arm": "exact@eagle:auto"}, "eagle:15x4x6"),
    "a batch": ({"batch_size": 8}, "batch_size 8"),
    "no budget": ({"max_gen_toks": 0}, "max_new_tokens must be at least 1"),
    "beyond the positions": ({"max_length": 4096}, "2..2048 here, got 4096"),
    "no such target": ({"target": "nowhere/at-all"}, "nowhere/at-all"),
    "no such head": ({"head": "nowhere/at-all"}, "nowhere/at-all"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_model_args_are_told(models, fault):
    arguments, told = BAD[fault]
    with pytest.raises(BadInput, match=told):
        FuzzyLM(**models | TREE | {"device": "cpu"} | arguments)


def test_other_keys_are_fields_of_the_arm(models):
    """As lm-eval splits them at commas, and as JSON; the drafter comes last."""
    given = {"arm": "fsd:0.30", "child": "target", "cap": 1, "target": models["target"]}
    assert HarnessOptions.read(given).arm == "fsd:0.3,child=target,cap=1"
    given = {"arm": "fsd:0.3", "child": "target@eagle:7x3x4"}
    assert HarnessOptions.read(given).arm == "fsd:0.3,child=target@eagle:7x3x4"
    given = {"arm": "fsd:0.3,child=target"}
    assert HarnessOptions.read(given).arm == given["arm"]


def test_what_lm_eval_passes_on(models):
    """model_args go before --device and --batch_size; lm-eval's own default device is no wish."""
    passed = {"batch_size": "auto:4", "max_batch_size": 64, "device": "cuda:0"}
    arguments = {"target": models["target"], "arm": "plain", "trust_remote_code": True}
    lm = FuzzyLM.create_from_arg_obj(arguments, passed)
    assert lm.options.device == ("cuda" if torch.cuda.is_available() else "cpu")
    text = f"target={models['target']},arm=plain,device=cpu"
    assert FuzzyLM.create_from_arg_string(text, {"device": "cuda:1"}).options.device == "cpu"


GENERATIVE = """
task: tiny_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["e", "</s>"], max_gen_toks: 20}}
process_results: !function metrics.process_results
metric_list: [{{metric: length, aggregation: mean, higher_is_better: true}}]
"""
CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: [" A", " B", " both"]
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
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
    data = folder / "data.jsonl"
    rows = [{"question": f"Question {i}: {'why? ' * i}", "answer": "so"} for i in range(5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "generation.yaml").write_text(GENERATIVE.format(data=data))
    (folder / "choice.yaml").write_text(CHOICE.format(data=data))
    (folder / "metrics.py").write_text(METRICS)
    return folder


def harness(models, tasks, output: Path, *, cwd: Path, launcher: tuple = (), **arguments) -> str:
    """Runs the command on both tasks; what it printed."""
    arguments = models | TREE | {"dtype": "float32"} | arguments
    given = ",".join(f"{name}={value}" for name, value in arguments.items())
    command = [sys.executable, *launcher, str(ROOT / "evaluate" / "harness.py")]
    command += ["--model", "eagle_fsd", "--model_args", given, "--device", "cpu"]
    command += ["--tasks", "tiny_generation,tiny_choice", "--include_path", str(tasks)]
    command += ["--output_path", str(output), "--log_samples"]
    environment = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment |= {"HF_DATASETS_CACHE": str(tasks / "cache")}
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plain(models, tasks):
    """The plain loop on both tasks, through lm-eval's Python call."""
    return simple_evaluate(
        fuzzy_lm(models, arm="plain"),
        tasks=["tiny_generation", "tiny_choice"],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
    )


def check_same(output: Path, plain: dict) -> dict:
    """The command's answers and scores are the plain loop's; returns what it tells of rounds."""
    (path,) = output.rglob("samples_tiny_generation_*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    answers = {row["doc_id"]: row["filtered_resps"] for row in rows}
    wanted = plain["samples"]["tiny_generation"]
    assert len(wanted) == 5 and answers == {r["doc_id"]: r["filtered_resps"] for r in wanted}
    (path,) = output.rglob("results_*.json")
    written = json.loads(path.read_text())
    for task, metric in (("tiny_generation", "length,none"), ("tiny_choice", "acc,none")):
        assert written["results"][task][metric] == plain["results"][task][metric]
    return written["config"]["eagle_fsd"]


@pytest.mark.processes
def test_the_command_at_threshold_0_is_plain(models, tasks, plain, tmp_path):
    """Answer for answer, started from the folder of commands; what the rounds did is in the
    results file and on the screen."""
    told = harness(models, tasks, tmp_path, cwd=ROOT / "evaluate", arm="fsd:0,child=target")
    ours = check_same(tmp_path, plain)
    assert ours["options"]["arm"] == "fsd:0,child=target"
    figures = ours["generation"]["tasks"]
    assert list(figures) == ["tiny_generation"]
    assert figures["tiny_generation"]["answers"] == 5
    assert figures["tiny_generation"]["fuzzy_share"] == 0
    assert told.splitlines()[-1].startswith("| tiny_generation | 5 ")
    baseline = plain["config"]["eagle_fsd"]["generation"]["all"]
    assert baseline["tokens_per_round"] == 1
    assert baseline["tokens"] == figures["tiny_generation"]["tokens"]


@pytest.mark.processes
@pytest.mark.slow  # lm-eval starts in seconds, each process anew
def test_two_processes_share_the_requests(models, tasks, plain, tmp_path):
    """An odd number of them, each answered and counted once; started from the root, whose folder
    evaluate/ is no package."""
    config = str(ROOT / "scripts" / "accelerate" / "ddp.yaml")
    launcher = ("-m", "accelerate.commands.launch", "--config_file", config)
    launcher += ("--main_process_port", str(free_port()))
    harness(models, tasks, tmp_path, cwd=ROOT, launcher=launcher, arm="fsd:0")
    ours = check_same(tmp_path, plain)
    assert ours["processes"] == 2
    baseline = plain["config"]["eagle_fsd"]["generation"]["all"]
    for name in ("answers", "tokens", "at_limit"):
        assert ours["generation"]["all"][name] == baseline[name]


def test_the_command_tells_bad_input(monkeypatch):
    """One line, no traceback."""
    command = ["harness.py", "--model", "eagle_fsd", "--tasks", "arc_easy"]
    monkeypatch.setattr(sys, "argv", [*command, "--model_args", "treshold=0.2"])
    with pytest.raises(SystemExit, match="^error: model_args treshold"):
        runpy.run_path(str(ROOT / "evaluate" / "harness.py"), run_name="__main__")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]

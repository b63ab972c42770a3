"""lm-evaluation-harness on our decoder: the same answers as its own model, and what FSD adds."""

import json
import runpy
import sys
from functools import partialmethod
from pathlib import Path

import pytest
from commands import ROOT, rows, write_rows
from lm_eval.api.instance import Instance
from lm_eval.api.registry import model_registry
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import BadInput
from eagle_fsd.tasks.harness_model import FuzzyLM

PROMPTS = ["Why?", "One, two, three,", "<s>Begun already", "A longer prompt. " * 4, "Zürich "]
TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
doc_to_text: "{{question}}"
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["e", "</s>"], max_gen_toks: 20}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    target = write_target(folder / "target", max_positions=60)
    return {"target": str(target), "head": str(write_random_head(folder / "head"))}


def fuzzy_lm(models: dict[str, str], **arguments) -> FuzzyLM:
    return FuzzyLM(**models, tree="7x3x3", dtype="float32", device="cpu", **arguments)


def asked(**settings) -> list[Instance]:
    settings = {"max_gen_toks": 16} | settings
    pairs = enumerate((prompt, settings) for prompt in PROMPTS)
    return [Instance("generate_until", {}, pair, 0, ("task", i, 1)) for i, pair in pairs]


def test_greedy_answers_are_those_of_hf(models):
    """Of three arms, with stop strings, which are cut off; prompts cut from the left."""
    hf = HFLM(models["target"], device="cpu", dtype="float32")
    free = hf.generate_until(asked())
    until = [text[len(text) // 2] for text in free]
    wanted = hf.generate_until(asked(until=until))
    assert wanted != free and all(mark not in text for mark in until for text in wanted)
    for arm in ("plain", "fsd:0", "exact@ngram"):
        mine = fuzzy_lm(models, arm=arm)
        assert mine.generate_until(asked()) == free
        assert mine.generate_until(asked(until=until)) == wanted


def test_an_arm_is_used_and_counted(models):
    """Its further fields come as lm-eval splits them at commas."""
    lm = fuzzy_lm(models, arm="fsd:1e9", child="draft")
    lm.generate_until(asked(do_sample=True, temperature=1.0))
    told = lm.get_model_info()["eagle_fsd"]
    assert told["arm"] == "fsd:1000000000,child=draft" and told["answers"] == len(PROMPTS)
    assert told["tokens_per_round"] > 1.2 and told["fuzzy_share"] > 0.2


def test_what_cannot_be_had_is_told(models):
    with pytest.raises(BadInput, match="answers one at a time"):
        fuzzy_lm(models, batch_size=8)
    for wrong, right in (("treshold", "threshold"), ("hed", "head"), ("chld", "child")):
        with pytest.raises(BadInput, match=f"there is no '{wrong}', is {right} meant"):
            fuzzy_lm(models, arm="fsd:0.3", **{wrong: "0.1"})
    with pytest.raises(BadInput, match="unknown target 'nowhere/at-all'"):
        fuzzy_lm(models | {"target": "nowhere/at-all"})


@pytest.mark.processes
def test_the_command_at_threshold_0_is_plain(models, tmp_path, monkeypatch, capsys):
    """Answer for answer, on a task of one's own; lm-eval's own tasks are left out, which take it
    seconds."""
    questions = [{"question": f"Question {i}: {'why? ' * i}", "answer": "so"} for i in range(5)]
    data = write_rows(tmp_path / "data.jsonl", *questions)
    (tmp_path / "tiny.yaml").write_text(TASK.replace("DATA", str(data)))
    own_tasks_only = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", own_tasks_only)
    monkeypatch.syspath_prepend(ROOT / "evaluate")  # as for a file that is run

    names = dict(model_registry._objs)

    def answers_of(arm: str) -> tuple[list, dict]:
        monkeypatch.setattr(model_registry, "_objs", names.copy())  # as in another process
        given = ",".join(map("=".join, (models | {"dtype": "float32", "arm": arm}).items()))
        options = f"--model eagle_fsd --model_args {given} --device cpu --log_samples --tasks tiny"
        output = tmp_path / arm.replace(":", "_")
        options += f" --include_path {tmp_path} --output_path {output}"
        monkeypatch.setattr(sys, "argv", ["harness.py", *options.split()])
        runpy.run_path(str(ROOT / "evaluate" / "harness.py"), run_name="__main__")
        (samples,), (results,) = output.rglob("samples_*"), output.rglob("results_*")
        answers = [row["filtered_resps"] for row in rows(samples)]
        return answers, json.loads(Path(results).read_text())["config"]["eagle_fsd"]

    answers, told = answers_of("fsd:0")
    assert told["answers"] == len(answers) == 5 and told["fuzzy_share"] == 0
    assert answers == answers_of("plain")[0]
    assert "plain: 5 answers, 1.00 tokens a round" in capsys.readouterr().out

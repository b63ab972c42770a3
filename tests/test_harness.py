"""lm-evaluation-harness on our decoder: the same answers as its own model, and what FSD adds."""

import json
import runpy
import sys
from functools import partialmethod

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


def test_an_arm_is_used_and_counted_and_what_cannot_be_had_is_told(models):
    """Its further fields come as lm-eval splits them at commas."""
    lm = fuzzy_lm(models, arm="fsd:1e9", child="draft")
    lm.generate_until(asked(do_sample=True, temperature=1.0))
    told = lm.get_model_info()["eagle_fsd"]
    assert told["arm"] == "fsd:1000000000,child=draft" and told["answers"] == len(PROMPTS)
    assert told["tokens_per_round"] > 1.2 and told["fuzzy_share"] > 0.2
    with pytest.raises(BadInput, match="a batch of"):
        fuzzy_lm(models, batch_size=8).generate_until(asked())
    with pytest.raises(BadInput, match="hed"):
        fuzzy_lm(models, arm="fsd:0.3", hed="x")
    with pytest.raises(BadInput, match="unknown target 'nowhere/at-all'"):
        fuzzy_lm(models | {"target": "nowhere/at-all"})


@pytest.mark.processes
def test_the_command_on_a_tiny_task(models, tmp_path, monkeypatch, capsys):
    """Answers, and what the results file and the last line say of the arm; lm-eval's own tasks are
    left out, which take it seconds."""
    questions = [{"question": f"Question {i}: {'why? ' * i}", "answer": "so"} for i in range(5)]
    data = write_rows(tmp_path / "data.jsonl", *questions)
    (tmp_path / "tiny.yaml").write_text(TASK.replace("DATA", str(data)))
    own_tasks_only = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", own_tasks_only)
    monkeypatch.syspath_prepend(ROOT / "evaluate")  # as for a file that is run
    monkeypatch.setattr(model_registry, "_objs", dict(model_registry._objs))  # a name once

    given = ",".join(f"{k}={v}" for k, v in (models | {"dtype": "float32", "arm": "fsd:0"}).items())
    options = f"--model eagle_fsd --model_args {given} --device cpu --log_samples --tasks tiny"
    options += f" --include_path {tmp_path} --output_path {tmp_path / 'out'}"
    monkeypatch.setattr(sys, "argv", ["harness.py", *options.split()])
    runpy.run_path(str(ROOT / "evaluate" / "harness.py"), run_name="__main__")
    (samples,), (results,) = (
        (tmp_path / "out").rglob(f"{name}_*") for name in ("samples", "results")
    )
    hf = HFLM(models["target"], device="cpu", dtype="float32")
    settings = {"until": ["e", "</s>"], "max_gen_toks": 20}
    texts = [row["question"] for row in questions]
    plain = hf.generate_until(
        [Instance("generate_until", {}, (text, settings), 0, ("task", 0, 1)) for text in texts]
    )
    assert [row["filtered_resps"] for row in rows(samples)] == [[text] for text in plain]
    told = json.loads(results.read_text())["config"]["eagle_fsd"]
    assert told["answers"] == 5 and told["fuzzy_share"] == 0
    assert "fsd:0: 5 answers, " in capsys.readouterr().out

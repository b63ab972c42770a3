"""lm-evaluation-harness on our decoder: the same answers as its own model, and what FSD adds."""

import json
import sys
from functools import partialmethod

import pytest
from commands import rows, write_rows

pytest.importorskip("lm_eval")
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval_model import FuzzyLM, main
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.answer import Generation

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


def asked(*texts: str, **settings) -> list[Instance]:
    pairs = enumerate((text, {"max_gen_toks": 20} | settings) for text in texts)
    return [Instance("generate_until", {}, pair, 0, ("task", i, 1)) for i, pair in pairs]


def test_an_arm_is_used_and_counted(models):
    """Its further fields come as lm-eval splits them at commas."""
    options = {"tree": "7x3x3", "dtype": "float32", "device": "cpu"}
    lm = FuzzyLM(**models, **options, arm="fsd:1e9", child="draft")
    whole = Generation()
    for request in asked("Why?", "One, two,", "Zürich ", do_sample=True, temperature=1.0):
        lm.generate_until([request])
        whole.rounds += lm._method.last.rounds
    told = lm.get_model_info()["eagle_fsd"]
    assert told["tokens_per_round"] == whole.tokens_per_round
    assert told["arm"] == "fsd:1000000000,child=draft" and told["answers"] == 3
    assert told["tokens_per_round"] > 1.2 and told["fuzzy_share"] > 0.2


def test_arguments_of_lm_eval_s_own_model(models):
    """Regression: they were taken for fields of the arm, and told as unknown ones."""
    options = models | {"tree": "7x3x3", "dtype": "float32", "device": "cpu"}
    whole = FuzzyLM(**options, arm="fsd:0")
    (text,) = whole.generate_until(asked("Why?"))
    end = text[len(text) // 2]
    lm = FuzzyLM(**options, arm="fsd:0", think_end_token=end, child="draft")
    assert lm.generate_until(asked("Why?")) == [text.split(end)[-1].lstrip()]
    with pytest.raises(BadInput, match="peft is lm-eval's .* think_end_token"):
        FuzzyLM(**options, peft="some/adapter")
    with pytest.raises(BadInput, match="colour"):
        FuzzyLM(**options, colour="red")


@pytest.mark.processes
def test_the_command_on_a_tiny_task(models, tmp_path, monkeypatch, capsys):
    """The answers of lm-eval's own "hf", stop strings cut off and long prompts cut from the left,
    and what the results file and the last line say of the arm; lm-eval's own tasks are left out,
    which take it seconds."""
    questions = [{"question": f"Question {i}: {'why? ' * 2 * i}", "answer": "so"} for i in range(5)]
    data = write_rows(tmp_path / "data.jsonl", *questions)
    (tmp_path / "tiny.yaml").write_text(TASK.replace("DATA", str(data)))
    own_tasks_only = partialmethod(TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(TaskManager, "__init__", own_tasks_only)
    given = ",".join(f"{k}={v}" for k, v in (models | {"dtype": "float32", "arm": "fsd:0"}).items())
    options = f"--model eagle_fsd --model_args {given} --device cpu --log_samples --tasks tiny"
    options += f" --include_path {tmp_path} --output_path {tmp_path / 'out'}"
    monkeypatch.setattr(sys, "argv", ["lm_eval_model.py", *options.split()])
    main()
    (samples,), (results,) = (
        (tmp_path / "out").rglob(f"{name}_*") for name in ("samples", "results")
    )
    hf = HFLM(models["target"], device="cpu", dtype="float32")
    plain = hf.generate_until(asked(*(r["question"] for r in questions), until=["e", "</s>"]))
    assert [row["filtered_resps"] for row in rows(samples)] == [[text] for text in plain]
    told = json.loads(results.read_text())["config"]["eagle_fsd"]
    assert told["answers"] == 5 and told["fuzzy_share"] == 0
    assert "fsd:0: 5 answers, " in capsys.readouterr().out

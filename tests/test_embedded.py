"""The embedded target with the shipped head: what the tiny models cannot show."""

import re
import sys
from functools import cache, partial

import pytest
import torch
from answers import Heard, assert_same, by_generate, run
from commands import ROOT

import eagle_fsd
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.evaluation.questions import read_questions, spread
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.models.load import SHIPPED_HEAD

pytestmark = pytest.mark.embedded


@pytest.fixture(scope="module")
def model():
    return eagle_fsd.load("smollm2", dtype="float32", keep_stock=True)


def first_turns(model, count: int) -> list[list[int]]:
    questions = spread(read_questions(asset_dir("mt_bench") / "question.jsonl"), count)
    return [model.prompt_ids(question.turns[0]) for question in questions]


@pytest.mark.parametrize(
    "count", [1, pytest.param(24, marks=pytest.mark.slow), pytest.param(80, marks=pytest.mark.slow)]
)
def test_exact_is_plain_is_generate(model, count):
    """Greedy in float32, 40 new tokens of MT-Bench first turns: one text, however it is made. Exact
    drafts are made inside `generate`, and streamed."""
    prompts, stop = first_turns(model, count), model.stop(40)
    ours = eagle_fsd.custom_generate(SHIPPED_HEAD, arm="exact")
    settings = {"max_new_tokens": 40, "eos_token_id": list(stop.token_ids), "pad_token_id": 0}
    asked = {"budget": 40, "stop": stop.token_ids}
    generate = partial(model.target.model.generate, custom_generate=ours, **settings)
    for prompt in prompts:
        ids, heard = torch.tensor([prompt]), Heard()
        exact = generate(ids, stream_to=heard)[0, len(prompt) :].tolist()
        assert heard.all == [ids.tolist(), *([token] for token in exact), "end"]
        plain = run(model.target, RootDrafter(), prompt, **asked).tokens
        for other in (plain, by_generate(model.target, prompt, **asked)):
            assert_same(model.target, prompt, other, exact)


def test_the_examples_of_custom_generate_run(monkeypatch, tmp_path, capsys):
    """As they stand on the page and in the docstring, from any folder and without a hub."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "evaluate.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    examples.append("\n".join(re.findall(r">>> (.*)", eagle_fsd.custom_generate.__doc__)))
    assert len(examples) == 2
    for example in examples:
        exec(example, made := {})
        assert made["ids"].shape[1] > made["inputs"].input_ids.shape[1] + 10
        assert made["fsd"].last.tokens_per_round > 1
    assert "The sky is blue because" in capsys.readouterr().out


def test_what_the_readme_shows_runs(monkeypatch, capsys):
    """Its five lines, and example.py and bench.py, which a reader copies; with shorter answers, and
    with one model, which all of them load."""
    monkeypatch.setattr(eagle_fsd, "load", cache(eagle_fsd.load))
    monkeypatch.setattr(sys, "argv", ["", "1"])  # one question to bench.py
    readme = (ROOT / "README.md").read_text()
    (five_lines,) = re.findall(r"```python\n(import .*?)```", readme, re.DOTALL)
    for program in (
        five_lines,
        *((ROOT / name).read_text() for name in ("example.py", "bench.py")),
    ):
        program = program.replace("max_new_tokens=128", "max_new_tokens=16")
        exec(program, {"__name__": "__main__"})
    text = capsys.readouterr().out
    arms = re.findall(r"^(\S+): [0-9.]+ tokens a round", text, re.MULTILINE)
    assert arms == ["plain", "exact@hybrid", "fsd:0.3@hybrid", "path:0.9@hybrid"]
    assert "living in a city" in text and "|" in text
    named, *rates, of_plain = [line.split() for line in text.splitlines()[-4:]]
    assert named[3:] == ["plain", "exact", *arms[1:]]
    assert [row[0] for row in rates] == ["question", "together"] and of_plain[2] == "1.00"


def test_shipped_head_drafts_well(model):
    """A head that is broken, or of other weights, accepts next to nothing (plain is 1.0)."""
    answer = eagle_fsd.generate(
        model, "Write a short letter to a friend.", arm="exact", max_new_tokens=64
    )
    assert answer.tokens_per_round > 1.4

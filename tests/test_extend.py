"""The examples of docs/extend.md, run as they stand there: one entry in a table is enough."""

import re
from pathlib import Path

import pytest
import torch
from answers import run
from hand_records import record, turn
from tiny import NoisyTargetDrafter, prompt_tokens, randomize, tiny_target

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.columns import PLACES
from eagle_fsd.decoding.divergence import DIVERGENCES, divergence
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.settings import DRAFTERS
from eagle_fsd.evaluation.metrics import METRICS, summarize
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.heads.draft_head import HEAD_TYPES, build_head
from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.head_config import head_shape
from eagle_fsd.models.load import load_head
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules import RULES
from eagle_fsd.rules.fsd import Fsd
from eagle_fsd.rules.guards import GUARDS
from eagle_fsd.tasks.scorers import SCORERS, check_scorable

PAGE = Path(__file__).parent.parent / "docs" / "extend.md"
BLOCKS = dict(re.findall(r"```python (\w+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL))


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def run_block(name: str) -> dict:
    """What a block of the page defines."""
    assert len(BLOCKS[name].splitlines()) < 26, "an example is under 25 lines"
    namespace: dict = {"__name__": "example"}
    exec(compile(BLOCKS[name], f"docs/extend.md:{name}", "exec"), namespace)
    return namespace


def answer(target, text: str, *, temperature: float = 0.0):
    """An arm's answer on a tiny target whose drafts are often accepted."""
    arm = parse_arm(text)
    drafter = NoisyTargetDrafter(target, TreeConfig(7, 3, 3), noise=1.0)
    if arm.drafter.needs_head is False:
        drafter = arm.build_drafter(Model(target, None, RootDrafter()))
    config = DecodeConfig(arm.policy(SamplingConfig(temperature)), StopConfig(40))
    return decode(target, drafter, prompt_tokens(9), config)


def test_a_rule(target, monkeypatch):
    """At temperature 0 too it takes drafts; at a value that no probability reaches it is exact."""
    monkeypatch.setitem(RULES, "likely", run_block("rule")["Likely"])
    for temperature in (0.0, 1.0):
        exact = answer(target, "exact", temperature=temperature)
        assert answer(target, "likely:0.001", temperature=temperature).fuzzy_share > 0.1
        assert answer(target, "likely:1.01", temperature=temperature).tokens == exact.tokens


def test_a_rule_with_a_memory(target, monkeypatch):
    monkeypatch.setitem(RULES, "every", run_block("memory")["Every"])
    fuzzy = [any(r.fuzzy) for r in answer(target, "every:2").rounds]
    assert sum(fuzzy) > 2 and not any(fuzzy[:2])
    assert not any(a and b for a, b in zip(fuzzy, fuzzy[1:], strict=False))
    assert answer(target, "every:1000").tokens == answer(target, "exact").tokens


def test_a_guard(target, monkeypatch):
    monkeypatch.setitem(GUARDS, "opening", run_block("guard")["Opening"])
    guarded = answer(target, "random:1,child=draft,opening=12")
    flags = [flag for r in guarded.rounds for flag in r.fuzzy]
    assert any(flags[:11]) and not any(flags[11:])  # prefill's token is the first


def test_a_column(target, monkeypatch):
    monkeypatch.setitem(PLACES, "margin", run_block("column")["margin"])

    class Sure(RULES["exact"]):
        columns = ("margin",)

        def choose(self, tree):
            assert tree.value("margin", 0) >= 0
            return super().choose(tree)

    monkeypatch.setitem(RULES, "sure", Sure)
    assert answer(target, "sure").tokens == answer(target, "exact").tokens


def test_a_divergence(target, monkeypatch):
    hellinger = run_block("divergence")["hellinger"]
    monkeypatch.setitem(DIVERGENCES, "hellinger", hellinger)
    logits_2V = torch.randn(2, 7, generator=torch.Generator().manual_seed(0))
    assert divergence("hellinger", logits_2V, logits_2V).abs().max() < 1e-6
    assert divergence("hellinger", *logits_2V) > 0.01
    assert Fsd(0.3, divergence="hellinger").columns[-1] == "hellinger"


def test_a_drafter(target, monkeypatch):
    monkeypatch.setitem(DRAFTERS, "repeat", run_block("drafter")["RepeatSettings"])
    again = answer(target, "exact@repeat:4")
    assert again.tokens == answer(target, "exact").tokens
    assert all(len(r.tokens) <= 5 for r in again.rounds)


def test_a_metric(monkeypatch):
    monkeypatch.setitem(METRICS, "costly_share", run_block("metric")["costly_share"])
    rounds = [([5, 7], [0, 1], [0, 1], [0.0, 2.0])]
    records = {"fsd:0.4": [record(1, turn([3, 5, 7], 1.0, rounds))]}
    assert summarize(records)[0]["costly_share"]["value"] == 0.5


def test_a_scorer(monkeypatch):
    monkeypatch.setitem(SCORERS, "starts_with", run_block("scorer")["scorer"])
    question = Question(1, "math", ["1 + 1?"], reference=["2"])
    assert SCORERS["starts_with"].score("2, of course", question) == {"starts_with": 1.0}
    assert SCORERS["starts_with"].score("It is 2", question) == {"starts_with": 0.0}
    with pytest.raises(BadInput, match="lacks reference"):
        check_scorable([Question(1, "math", ["1 + 1?"])], "starts_with")


def test_a_head(target, monkeypatch, tmp_path):
    """Written, loaded and checked against the target, it drafts; exact decoding stays plain's."""
    monkeypatch.setitem(HEAD_TYPES, "gated", run_block("head")["GatedHead"])
    head = build_head(head_shape(target.model.config, head_type="gated")).eval()
    randomize(head, seed=3, scale=1.0)
    write_head(tmp_path / "head", head)
    loaded = load_head(tmp_path / "head", target.model.config)
    drafter = EagleDrafter(loaded, target, TreeConfig(7, 3, 3))
    drafted = run(target, drafter, prompt_tokens(9), budget=40)
    assert drafted.tokens == answer(target, "exact").tokens


WRONG = [
    ("rule", {"def step": "def setp"}, "overrides none of step, .*, did you mean step?"),
    ("rule", {"(frozen=True)": ""}, "must be a frozen dataclass on Rule"),
    ("rule", {"@dataclass(frozen=True)": ""}, "must be a frozen dataclass on Rule"),
    ("rule", {"(Rule)": ""}, "must be a frozen dataclass on Rule"),
    ("rule", {"least: float": "least: complex"}, "type of field least must be float, int or str"),
    (
        "rule",
        {'("raw_prob",)': '("raw_probs",)'},
        "unknown column 'raw_probs', .*; known: top1.*draft_prob",
    ),
    ("rule", {'("raw_prob",)': '("prob",)'}, "reads .*'raw_prob' .*add it to the `columns`"),
    (
        "rule",
        {'("raw_prob",)': '("raw_prob", "top1")', "hit = ": 'tree.value("top1", v); hit = '},
        "node [0-9]+ has no 'top1', which is of nodes with children",
    ),
    ("guard", {"def allows": "def allow"}, "overrides none of allows, did you mean allows?"),
    ("drafter", {"def build": "def built"}, "overrides none of build, did you mean build?"),
]


@pytest.mark.parametrize(("block", "changes", "told"), WRONG)
def test_what_is_wrong_with_a_class_is_told(target, monkeypatch, block, changes, told):
    """Bugs held down: a KeyError, a TypeError or nothing: a rule without its step was exact."""
    text = BLOCKS[block]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setitem(BLOCKS, block, text)
    defined = run_block(block)
    if block == "rule":
        monkeypatch.setitem(RULES, "likely", defined["Likely"])
    elif block == "guard":
        monkeypatch.setitem(GUARDS, "opening", defined["Opening"])
    else:
        monkeypatch.setitem(DRAFTERS, "repeat", defined["RepeatSettings"])
    arm = {"rule": "likely:0.001", "guard": "fsd:0.4,opening=9", "drafter": "exact@repeat:4"}[block]
    with pytest.raises(BadInput, match=told):
        answer(target, arm)

"""Calibration on a tiny target: what is predicted of exact is exact, what is predicted of a rule's
first round is that round, and the chosen arm is the fastest that keeps to the cost."""

import json

import pytest
from commands import QUESTIONS, bench_options, rows
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, parse_tree
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.calibrate import choose, measure, predict, row_of, warning
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact

pytestmark = pytest.mark.processes  # whole commands
COMMAND = "evaluate/calibrate.py"
MORE = [q | {"question_id": q["question_id"] + 3} for q in QUESTIONS]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_is_predicted(temperature):
    """Of exact all rounds; of other rules the first, which begins with the same text."""
    target, sampling = tiny_target("llama"), SamplingConfig(temperature)
    drafter = EagleDrafter(tiny_head(target, seed=3), target, parse_tree("7x3x4"))
    model, lossy = Model(target, None, drafter), 0
    for seed in range(4):
        names = ["exact", "fsd:inf", "path:5", "ratio:3", "hold:0.1"]
        policies = {name: parse_arm(name).policy(sampling) for name in names}
        prompt = prompt_tokens(9, seed=seed)
        for new_tokens in (30, 2):  # prefill's token and one round
            config = DecodeConfig(Policy(Exact(), sampling), StopConfig(new_tokens), seed)
            found = predict(model, drafter, policies, prompt, config)
            for name in names[: 1 if new_tokens == 30 else None]:
                config = DecodeConfig(policies[name], StopConfig(new_tokens), seed)
                real = measure(model, drafter, prompt, config)
                assert found[name] == pytest.approx(real), name
                lossy += real["cost"] > 0
    assert lossy > 2


def test_a_cost_that_a_rule_does_not_know():
    """Bug held down: above temperature 0 its NaN was no JSON, after all had been decoded."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target, seed=3), target, parse_tree("7x3x4"))
    policy = parse_arm("fsd:inf,ends=1").policy(SamplingConfig(0.8))
    config = DecodeConfig(policy, StopConfig(20))
    count = measure(Model(target, None, drafter), drafter, prompt_tokens(9), config)
    assert count["cost"] is None and count["fuzzy"] > 0
    row = row_of("a", [{"arms": {"a": json.loads(json.dumps(count, allow_nan=False))}}] * 9)
    assert row["cost"]["value"] is None and row["tokens_per_round"]["value"] > 1


def test_the_fastest_within_the_cost_is_chosen():
    found = [("exact", 2.0, 0.0), ("a", 2.2, 0.02), ("b", 2.4, 0.03), ("c", 2.3, 0.06)]
    table = [
        {"arm": arm, "tokens_per_round": {"value": tokens}, "cost": {"value": cost}}
        for arm, tokens, cost in found
    ]
    assert choose(table, 0.03, 1) == ["b"]
    assert choose(table, 0.01, 1) == ["exact"]
    assert choose(table, 0.03, 3) == ["b", "a", "c"]
    assert sorted(choose(table, 0.03, 9)) == ["a", "b", "c"]
    unknown = [*table, {"arm": "d", "tokens_per_round": {"value": 9.0}, "cost": {"value": None}}]
    assert choose(unknown, 0.03, 3) == ["b", "a", "c"]


def test_of_two_equally_fast_arms_the_cheaper_is_chosen():
    """Bug held down: it was the first of them, at a higher cost."""
    found = [("exact", 2.0, 0.0), ("dear", 2.4, 0.03), ("cheap", 2.4, 0.01)]
    table = [
        {"arm": arm, "tokens_per_round": {"value": tokens}, "cost": {"value": cost}}
        for arm, tokens, cost in found
    ]
    assert choose(table, 0.05, 1) == choose(table[::-1], 0.05, 1) == ["cheap"]


def test_a_chosen_arm_that_costs_more_than_is_tolerated_is_warned_of():
    """Bug held down: one measured at .0967, where .05 is tolerated, without a word."""
    text = warning("fsd:0.3", {"value": 0.0967, "low": 0.06, "high": 0.15}, 0.05)
    assert "0.0967 [0.0600, 0.1500]" in text and "above the 0.05" in text
    assert "all of the interval is above it" in text
    text = warning("fsd:0.3", {"value": 0.0967, "low": 0.04, "high": 0.23}, 0.05)
    assert "0.0967 [0.0400, 0.2300]" in text and "all of the interval" not in text
    assert "0.0967" in warning("fsd:0.3", {"value": 0.0967, "low": None, "high": None}, 0.05)
    for value in (0.05, 0.0, None):
        assert warning("fsd:0.3", {"value": value, "low": None, "high": None}, 0.05) is None


def test_questions_draw_numbers_of_their_own(call, models, tmp_path):
    """Bug held down: above temperature 0 every answer had the same numbers, and intervals took
    them for independent. Here all questions have one text."""
    questions = [{"question_id": n, "category": "x", "turns": ["Say one."]} for n in range(1, 7)]
    options = bench_options(models, tmp_path, questions)
    call(COMMAND, *options, "--temperature", 1, "--cost", 9, "--arms", "path:9")
    for name in ("predicted", "measured"):
        found = [row["arms"]["path:9"] for row in rows(tmp_path / f"run/records/{name}.jsonl")]
        assert len(found) == 3 and any(counts != found[0] for counts in found), name


def test_command_predicts_verifies_and_goes_on(call, models, tmp_path):
    """A row per arm; measured are exact and the chosen one. What is there is not made again."""
    options = bench_options(models, tmp_path, [*QUESTIONS, *MORE])
    options += ["--cost", 0.4, "--arms", "path:1", "path:9"]  # all six questions
    text = call(COMMAND, *options)
    folder = tmp_path / "run"
    made = json.loads((folder / "calibrate.json").read_text())
    chosen = next(row for row in made["rows"] if row["arm"] == made["chosen"])
    assert (made["warning"] is not None) == (chosen["measured_cost"]["value"] > 0.4)
    assert (made["warning"] or "") in text
    assert "\nwritten to " in text and f"\n{made['chosen']}: " in text
    assert [row["arm"] for row in made["rows"]] == ["exact", "path:1", "path:9"]
    assert all(row["questions"] == 3 for row in made["rows"])
    exact, *others = made["rows"]
    assert exact["cost"]["value"] == exact["measured_cost"]["value"] == 0
    measured = {row["arm"] for row in others if row["measured_cost"]}
    assert measured == {made["chosen"]} - {"exact"}
    before = {name: rows(folder / f"records/{name}.jsonl") for name in ("predicted", "measured")}
    call(COMMAND, *options)
    assert before == {name: rows(folder / f"records/{name}.jsonl") for name in before}
    call(COMMAND, *options, "--verify", 3, "--arms", "path:1", "path:9", "ratio:2")
    made = json.loads((folder / "calibrate.json").read_text())
    assert len(made["rows"]) == 4
    assert sum(row["measured_cost"] is not None for row in made["rows"]) >= 3


def test_the_first_line_is_of_the_chosen_arm(call, models, tmp_path):
    """Its predicted numbers, which are not those of exact, the table's first row."""
    options = bench_options(models, tmp_path, [*QUESTIONS, *MORE])
    call(COMMAND, *options, "--cost", 9, "--arms", "path:9")
    exact, lossy = json.loads((tmp_path / "run/calibrate.json").read_text())["rows"]
    assert lossy["cost"]["value"] > 0
    assert lossy["tokens_per_round"]["value"] > exact["tokens_per_round"]["value"] + 0.01
    assert (tmp_path / "run/calibrate.md").read_text().splitlines()[0] == (
        f"path:9: {lossy['tokens_per_round']['value']:.2f} tokens a round are predicted at a "
        f"cost of {lossy['cost']['value']:.4f} a token, where 9 is tolerated"
    )

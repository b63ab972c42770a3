"""Calibration on a tiny target: what is predicted of exact is exact, what is predicted of a rule's
first round is that round, and the chosen arm is the fastest that keeps to the cost."""

import json
import math
from dataclasses import dataclass

import pytest
from commands import bench_options, rows
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import SamplingConfig, parse_tree
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.verified import Rule
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.calibrate import arm_rows, choose, predict
from eagle_fsd.rules.fsd import Exact, Fsd

pytestmark = pytest.mark.processes  # whole commands
COMMAND = "evaluate/calibrate.py"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_is_predicted(temperature):
    """Of exact all rounds; of other rules the first, which begins with the same text."""
    target, sampling = tiny_target("llama"), SamplingConfig(temperature)
    drafter = EagleDrafter(tiny_head(target, seed=3), target, parse_tree("7x3x4"))
    names, lossy = ["exact", "fsd:inf", "path:5", "ratio:3"], 0
    policies = {name: parse_arm(name).policy(sampling) for name in names}
    for seed in range(4):
        prompt = prompt_tokens(9, seed=seed)
        for new_tokens in (30, 2):  # prefill's token and one round
            config = DecodeConfig(policies["exact"], StopConfig(new_tokens), seed)
            predicted = predict(target, drafter, policies, prompt, config)
            for name in names[: 1 if new_tokens == 30 else None]:
                config = DecodeConfig(policies[name], StopConfig(new_tokens), seed)
                rounds = decode(target, drafter, prompt, config).rounds
                costs = [sum(r.tv if temperature else r.regret) for r in rounds]
                assert predicted[name].pop("seconds") > 0
                assert predicted[name] == {
                    "rounds": len(rounds),
                    "tokens": sum(len(r.tokens) for r in rounds),
                    "fuzzy": sum(sum(r.fuzzy) for r in rounds),
                    "cost": pytest.approx(sum(costs)),
                }
                lossy += sum(costs) > 0
    assert lossy > 2


@dataclass(frozen=True)
class Silent(Fsd):
    """Does not know its TV."""

    tv = Rule.tv


def test_rates_by_hand_and_a_cost_that_a_rule_does_not_know():
    """Over two answers, of which the second ends with its first token. Bug held down: above
    temperature 0 an unknown cost's NaN was no JSON, after all had been decoded."""
    target, sampling = tiny_target("llama"), SamplingConfig(0.8)
    drafter = EagleDrafter(tiny_head(target, seed=3), target, parse_tree("7x3x4"))
    policies = {"exact": Policy(Exact(), sampling), "silent": Policy(Silent(math.inf), sampling)}
    counts = []
    for budget in (20, 1):
        config = DecodeConfig(policies["exact"], StopConfig(budget))
        counts.append(predict(target, drafter, policies, prompt_tokens(9), config))
    counts = json.loads(json.dumps(counts, allow_nan=False))
    assert counts[1]["exact"]["rounds"] == 0
    exact, silent = arm_rows(counts, "exact")
    assert exact["cost"]["value"] == 0 and exact["gain"]["value"] == 1 and exact["questions"] == 2
    assert silent["cost"]["value"] is None and silent["fuzzy_share"]["value"] > 0
    # of two arms both in the same rounds, which last as long
    rounds, seconds, tokens = (counts[0]["exact"][k] for k in ("rounds", "seconds", "tokens"))
    assert exact["tokens_per_second"]["value"] == pytest.approx(tokens / seconds)
    assert exact["tokens_per_round"]["value"] == pytest.approx(tokens / rounds)
    for rate in ("tokens_per_round", "tokens_per_second"):
        ratio = silent[rate]["value"] / exact[rate]["value"]
        assert silent["gain"]["value"] == pytest.approx(ratio)


def test_the_fastest_within_the_cost_is_chosen():
    """Bug held down: of two equally fast ones it was the first, at a higher cost."""
    table = [("exact", 2.0, 0.0), ("a", 2.2, 0.02), ("dear", 2.4, 0.03), ("cheap", 2.4, 0.01)]
    table += [("c", 2.5, 0.06), ("unknown", 9.0, None)]
    table = [
        {"arm": arm, "tokens_per_round": {"value": tokens}, "cost": {"value": cost}}
        for arm, tokens, cost in table
    ]
    for cost, best in [(0.0, "exact"), (0.05, "cheap"), (0.06, "c")]:
        assert choose(table, cost)["arm"] == choose(table[::-1], cost)["arm"] == best


def test_questions_draw_numbers_of_their_own(call, models, tmp_path):
    """Bug held down: above temperature 0 every answer had the same numbers, and intervals took
    them for independent. Here all questions have one text."""
    questions = [{"question_id": n, "category": "x", "turns": ["Say one."]} for n in range(3)]
    options = bench_options(models, tmp_path, questions)
    call(COMMAND, *options, "--temperature", 1, "--cost", 9, "--arms", "path:9")
    counts = [row["arms"]["path:9"] for row in rows(tmp_path / "run/records/predicted.jsonl")]
    assert len({(count["rounds"], count["tokens"], count["cost"]) for count in counts}) > 1


def test_command_predicts_goes_on_and_names_the_next(call, models, tmp_path):
    """A row per arm; what is there is not made again; and the arms of the benchmark are named."""
    options = [*bench_options(models, tmp_path), "--cost", 9, "--questions", 2]
    text = call(COMMAND, *options, "--arms", "path:9")
    folder = tmp_path / "run"
    made = json.loads((folder / "calibrate.json").read_text())
    assert made["chosen"] == "path:9"
    exact, lossy = made["rows"]
    assert (exact["arm"], lossy["arm"]) == ("exact", "path:9")
    assert exact["cost"]["value"] == 0 < lossy["cost"]["value"] and lossy["questions"] == 2
    assert f"path:9: {lossy['tokens_per_round']['value']:.2f} tokens a round" in text

    before = rows(folder / "records/predicted.jsonl")
    call(COMMAND, *options, "--arms", "path:9")
    assert rows(folder / "records/predicted.jsonl") == before
    call(COMMAND, *options, "--questions", 3, "--arms", "path:1", "path:9")
    made = json.loads((folder / "calibrate.json").read_text())
    assert [row["arm"] for row in made["rows"]] == ["exact", "path:1", "path:9"]
    assert rows(folder / "records/predicted.jsonl")[:2] == before

    assert "by --turns 1 --arms plain exact path:9" in (folder / "calibrate.md").read_text()

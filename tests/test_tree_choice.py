"""The tree choice: acceptance against real decoding, costs by hand, what is refused."""

import json

import pandas as pd
import pytest
from commands import model_options
from tiny_folder import write_target

from eagle_fsd.api import load
from eagle_fsd.config import BadInput, parse_tree, tree_name
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.drafters.settings import EagleSettings
from eagle_fsd.drafters.walk import TOKENS_BEYOND_END, cut
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.speed import tree_choice
from eagle_fsd.speed.tree_choice import choose, choose_tree, count_acceptance, neighbours

COMMAND = "evaluate/choose_tree.py"
NAMES = ["1x1x1", "7x3x4", "15x4x6", "5x5x1"]
COSTS = {"verify 1": 20.0, "verify 2": 20.5, "verify 6": 21.0, "verify 8": 22.0, "verify 16": 30.0}
COSTS |= {f"draft 2x{k}": 5.0 + k / 10 for k in (1, 4, 6)}
COSTS |= {f"draft level x{k}": 2.0 + k / 10 for k in (1, 4, 6)}


@pytest.fixture(scope="module")
def model(models):
    return load(str(models[0]), head=str(models[1]), dtype="float32")


def counted(accepted: list[int]) -> pd.DataFrame:
    tokens = [100 + drafts for drafts in accepted]
    return pd.DataFrame({"tokens": tokens}, index=NAMES).assign(rounds=100)


def config(new_tokens: int) -> DecodeConfig:
    return DecodeConfig(Policy(Exact()), StopConfig(new_tokens))


def test_acceptance_is_counted_over_texts(model):
    """As decoding has it."""
    prompt = model.prompt_ids("Say one.")
    greedy = decode(model.target, RootDrafter(), prompt, config(30 + TOKENS_BEYOND_END)).tokens
    tree, text = parse_tree("7x3x4"), cut(prompt, greedy, StopConfig(30))
    real = decode(model.target, model.drafter.with_tree(tree), prompt, config(30)).rounds
    known = text, text.states(model.target)[1]
    counts = count_acceptance(model, EagleSettings(), tree, [known, known])
    tokens = sum(len(r.tokens) for r in real)
    assert (counts["rounds"], counts["tokens"]) == (2 * len(real), 2 * tokens)
    with pytest.raises(BadInput, match="no calibration prompt"):
        one = cut(prompt, greedy, StopConfig(1)), known[1]
        count_acceptance(model, EagleSettings(), tree, [one])


def test_the_choice_is_the_best_of_all():
    """7x3x4: 22 ms of verification, a draft of two levels and a third one. Where nothing is
    accepted it is the cheapest, and the text says that plain decoding is faster."""
    table = choose(counted([20, 90, 110, 60]), COSTS)
    assert table.tree[0] == "7x3x4"
    assert table.ms_per_round[0] == pytest.approx(22 + 5.4 + 2.4)
    assert table.speedup[0] == pytest.approx(1.9 * 20 / 29.8)
    assert table.speedup.is_monotonic_decreasing
    chain = table[table.tree == "1x1x1"].iloc[0]
    assert chain.propose == pytest.approx(5.1 - 2.1) and chain.verify == 20.5
    assert tree_choice.explain(table).startswith("tree 7x3x4: 1.28 times plain")
    table = choose(counted([0] * 4), COSTS)
    assert table.tree[0] == "1x1x1" and "the least slow one" in tree_choice.explain(table)


def test_neighbours_are_possible_trees_one_step_away():
    """A tree between the values has neighbours too."""
    near = {tree_name(tree) for tree in neighbours(parse_tree("15x4x6"), 101)}
    assert near == {"11x4x6", "19x4x6", "15x3x6", "15x5x6", "15x4x4", "15x4x10"}
    near = {tree_name(tree) for tree in neighbours(parse_tree("6x3x4"), 5)}
    assert near == {"5x3x4", "7x3x4", "6x2x4", "6x4x4", "6x3x3"}


def test_what_cannot_be_measured_is_refused(call, models, tmp_path):
    with pytest.raises(BadInput, match="without a draft head"):
        choose_tree(load(str(models[0]), head=None, dtype="float32"), EagleSettings())
    short = write_target(tmp_path / "short", max_positions=90, layers=2)
    assert "90 positions" in call(COMMAND, *model_options((short, models[1])))


@pytest.mark.parametrize("arm", ["exact@hybrid", "exact"])
def test_the_command_searches_prints_and_writes(call, models, tmp_path, monkeypatch, arm):
    """The tree of --tree is in the table beside the best, which no neighbour beats."""
    monkeypatch.setattr(tree_choice, "PROMPTS", ("Say one.", "Say two."))
    monkeypatch.setattr(tree_choice, "REPEATS", 1)
    options = [*model_options(models), "--tree", "7x3x3", "--max_new_tokens", 4, "--arm", arm]
    text = call(COMMAND, *options, "--output", tmp_path / "choice.json")
    record = json.loads((tmp_path / "choice.json").read_text())
    rated = {row["tree"]: row["speedup"] for row in record["candidates"]}
    best = record["tree"]
    assert f"tree {best}" in text and "| 7x3x3 " in text
    near = {tree_name(tree) for tree in neighbours(parse_tree(best), 101)}
    assert near <= set(rated) and rated[best] == max(rated.values())

"""The tree choice: acceptance against real decoding, costs by hand, what is held and refused."""

import json

import pandas as pd
import pytest
from commands import model_options
from tiny_folder import write_target

from eagle_fsd.api import load
from eagle_fsd.config import BadInput, TreeConfig, parse_tree
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.evaluation.arms import parse_arm
from eagle_fsd.evaluation.offline.replay import ReplayPlan
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.speed import tree_choice
from eagle_fsd.speed.tree_choice import candidate_trees, choose, choose_tree, count_acceptance

COMMAND = "evaluate/choose_tree.py"
NAMES = ["1x1x1", "7x3x4", "15x4x6", "5x5x1"]
TREES = tuple(map(parse_tree, NAMES))
COSTS = {"verify 1": 20.0, "verify 8": 22.0, "verify 16": 30.0, "verify 24": 35.0}
COSTS |= {"verify 32": 50.0, "verify 60": 80.0}
COSTS |= {f"draft 2x{k}": 5.0 + k / 10 for k in (1, 4, 6)}
COSTS |= {f"draft level x{k}": 2.0 + k / 10 for k in (1, 4, 6)}


@pytest.fixture(scope="module")
def model(models):
    return load(str(models[0]), head=str(models[1]), dtype="float32")


def counted(accepted: list[int], fuzzy: list[int]) -> pd.DataFrame:
    frame = pd.DataFrame({"accepted": accepted, "fuzzy": fuzzy}, index=NAMES)
    return frame.assign(rounds=100)


def test_acceptance_is_that_of_real_decoding(model):
    """Rounds that lie within the answer; with T inf every round that has children may be fuzzy."""
    prompt = model.prompt_ids("Say one.")
    plan = ReplayPlan(TREES, {"loose": Fsd(float("inf"))})
    counts = count_acceptance(model, [prompt], plan, 30)
    for tree, (_, row) in zip(TREES, counts.iterrows(), strict=True):
        config = DecodeConfig(Policy(Exact()), StopConfig(30))
        real = decode(model.target, model.drafter.with_tree(tree), prompt, config).rounds
        accepted = sum(r.accepted_drafts for r in real)
        assert (row["rounds"], row["accepted"]) == (len(real), accepted)
        assert 0 < row["fuzzy"] <= row["rounds"]
    with pytest.raises(BadInput, match="no calibration prompt"):
        count_acceptance(model, [prompt], plan, 1)


def test_the_choice_is_the_best_of_all():
    """7x3x4: 22 ms of verification, a draft of two levels and a third one. Where nothing is
    accepted it is the cheapest, and the text says that plain decoding is faster."""
    table = choose(counted([20, 90, 110, 60], [0] * 4), COSTS, "15x4x6", hold=0.01)
    assert table.tree[0] == "7x3x4" and table.held.all()
    assert table.ms_per_round[0] == pytest.approx(22 + 5.4 + 2.4)
    assert table.speedup[0] == pytest.approx(1.9 * 20 / 29.8)
    assert table.speedup.is_monotonic_decreasing
    chain = table[table.tree == "1x1x1"].iloc[0]
    assert chain.propose == pytest.approx(5.1 - 2.1) and chain.verify == pytest.approx(20 + 2 / 7)
    assert tree_choice.explain(table).startswith("tree 7x3x4: 1.28x plain")
    table = choose(counted([0] * 4, [0] * 4), COSTS, "15x4x6", hold=0.01)
    assert table.tree[0] == "1x1x1" and "the least slow one" in tree_choice.explain(table)


def test_trees_with_more_fuzzy_tokens_are_refused():
    """A chain that would win has a share of .30, the model's own tree of .19; where no share is
    predicted, or the own tree is none of the candidates, nothing is refused."""
    counts = counted([20, 90, 110, 130], [10, 40, 40, 69])
    chosen = [choose(counts, COSTS, "15x4x6", hold=hold) for hold in (0.0, 0.03, 0.2)]
    assert [table.tree[0] for table in chosen] == ["1x1x1", "7x3x4", "5x5x1"]
    assert "1 of 4 refused" in tree_choice.explain(chosen[1])
    assert choose(counts.drop(columns="fuzzy"), COSTS, "15x4x6", hold=0.0).tree[0] == "5x5x1"
    assert choose(counts, COSTS, "59x6x10", hold=0.0).held.all()


def test_the_candidates_are_valid_and_hold_the_default_trees():
    trees = candidate_trees(101)
    assert len(set(trees)) == len(trees)
    assert set(map(parse_tree, ("15x4x6", "59x6x10", "7x3x4"))) <= set(trees)
    assert {tree.branch_top_k for tree in candidate_trees(3)} == {1, 2, 3}
    ReplayPlan(tuple(trees)).growths()  # one shape holds all of a top-k


def test_what_cannot_be_measured_is_refused(call, models, tmp_path):
    with pytest.raises(BadInput, match="without a draft head"):
        choose_tree(load(str(models[0]), head=None, dtype="float32"), parse_arm("exact"))
    short = write_target(tmp_path / "short", max_positions=90, layers=2)
    assert "90 positions" in call(COMMAND, *model_options((short, models[1])))


@pytest.mark.parametrize("arm", ["exact", "fsd:0.4,child=target"])
def test_the_command_prints_and_writes(call, models, tmp_path, monkeypatch, arm):
    """The tree of --tree is in the table beside the best; a share is predicted for fsd only."""
    monkeypatch.setattr(tree_choice, "candidate_trees", lambda size: [*TREES, TreeConfig(3, 3, 1)])
    monkeypatch.setattr(tree_choice, "PROMPTS", ("Say one.", "Say two."))
    monkeypatch.setattr(tree_choice, "REPEATS", 1)
    options = [*model_options(models), "--tree", "15x4x6", "--max_new_tokens", 4, "--arm", arm]
    text = call(COMMAND, *options, "--output", tmp_path / "choice.json")
    record = json.loads((tmp_path / "choice.json").read_text())
    assert f"tree {record['tree']}" in text and "| 15x4x6 " in text
    assert {row["tree"] for row in record["candidates"]} == {*NAMES, "3x3x1"}
    shares = [row["fuzzy_share"] is None for row in record["candidates"]]
    assert shares == [arm == "exact"] * 5

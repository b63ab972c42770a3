"""The chooser against a slow formula on made-up costs, and what it says."""

import random

import pytest

from eagle_fsd.config import TreeConfig
from eagle_fsd.speed.tree_choice.candidates import candidate_trees, surveyed_tree
from eagle_fsd.speed.tree_choice.choice import choose
from eagle_fsd.speed.tree_choice.costs import AcceptCosts, Costs

DEFAULT = TreeConfig(15, 4, 6)
TREES = candidate_trees(101)
COSTS = Costs(
    verify={1: 20.0, 8: 22.0, 16: 30.0, 60: 80.0},
    first_level={1: 3.0, 10: 5.0},
    next_level={1: 2.0, 4: 2.6, 10: 4.0},
    commit={0: 0.1, 8: 0.5},
)
ACCEPT = AcceptCosts(plain=0.4, by_drafts={0: 0.5, 8: 6.5})


def line(points: dict[int, float], x: float) -> float:
    """Linear interpolation, the obvious way."""
    below = max((p for p in points if p <= x), default=min(points))
    above = min((p for p in points if p >= x), default=max(points))
    if below == above:
        return points[below]
    return points[below] + (points[above] - points[below]) * (x - below) / (above - below)


def rate(tree: TreeConfig, tokens: float, *, walked: float) -> float:
    """Expected tokens a millisecond."""
    k = tree.branch_top_k
    ms = line(COSTS.first_level, k) + (tree.tree_depth - 1) * line(COSTS.next_level, k)
    ms += line(COSTS.verify, 1 + tree.num_draft_tokens)
    ms += line(ACCEPT.by_drafts, walked) + line(COSTS.commit, tokens - 1)
    return tokens / ms


@pytest.mark.parametrize("walks_to_the_end", [False, True])
def test_the_choice_is_the_best_of_all(walks_to_the_end):
    """Random acceptance; all candidates in the order of the formula, ratios to plain included."""
    for seed in range(5):
        draw = random.Random(seed)
        tokens = [1 + draw.random() * tree.tree_depth**0.5 for tree in TREES]
        choice = choose(
            TREES, tokens, COSTS, ACCEPT, default=DEFAULT, walks_to_the_end=walks_to_the_end
        )
        rates = {
            tree: rate(tree, t, walked=tree.tree_depth if walks_to_the_end else t - 1)
            for tree, t in zip(TREES, tokens, strict=True)
        }
        best = max(rates, key=rates.get)
        assert choice.tree == best
        assert choice.tokens_per_round / choice.ms_per_round == pytest.approx(rates[best])
        assert choice.plain_ms == pytest.approx(20.0 + 0.4 + 0.1)
        assert choice.speedup == pytest.approx(rates[best] * 20.5)
        assert [row.speedup for row in choice.table] == pytest.approx(
            [20.5 * r for r in sorted(rates.values(), reverse=True)]
        )
        assert len(choice.table) == len(TREES)


def test_deeper_trees_where_more_is_accepted():
    """Acceptance of a deeper level by the same probability: the higher, the deeper the choice."""
    depths = []
    for p in (0.2, 0.6, 0.95):
        tokens = [sum(p**level for level in range(tree.tree_depth + 1)) for tree in TREES]
        choice = choose(TREES, tokens, COSTS, ACCEPT, default=DEFAULT, walks_to_the_end=False)
        depths.append(choice.tree.tree_depth)
    assert depths == sorted(depths) and depths[0] == 1 and depths[-1] == 8


def test_nothing_accepted():
    """A valid tree, the cheapest, and the text says that plain decoding is faster."""
    choice = choose(
        TREES, [1.0] * len(TREES), COSTS, ACCEPT, default=DEFAULT, walks_to_the_end=False
    )
    assert choice.tree == TreeConfig(1, 1, 1)
    assert choice.speedup < 1
    assert "no tree beats plain decoding" in choice.text


def test_the_text_explains():
    tokens = [1 + 0.9 * tree.tree_depth**0.5 for tree in TREES]
    args = TREES, tokens, COSTS, ACCEPT
    text = choose(*args, default=DEFAULT, walks_to_the_end=False, origin="  from here").text
    assert "auto tree: " in text and "plain expected" in text
    assert "next best of another size: " in text
    assert "the default tree: 15 drafts, depth 4, top-k 6: 2.80 tokens" in text
    assert text.endswith("from here")
    busy = Costs(COSTS.verify, COSTS.first_level, COSTS.next_level, COSTS.commit, spread=0.4)
    text = choose(TREES, tokens, busy, ACCEPT, default=DEFAULT, walks_to_the_end=False).text
    assert "differ by 40 %" in text and "--retune" in text
    chosen = choose(*args, default=DEFAULT, walks_to_the_end=False).tree
    text = choose(*args, default=chosen, walks_to_the_end=False).text
    assert "it is the default tree" in text


def test_the_grid_is_valid_and_holds_the_usual_trees():
    """TreeConfig checks each; a small draft vocabulary bounds top-k."""
    assert len(set(TREES)) == len(TREES)
    for usual in (DEFAULT, TreeConfig(59, 6, 10), TreeConfig(7, 3, 4), TreeConfig(3, 3, 1)):
        assert usual in TREES
    assert {tree.branch_top_k for tree in candidate_trees(3)} == {1, 2, 3}
    assert surveyed_tree(TREES) == TreeConfig(710, 8, 10)


@pytest.mark.parametrize("broken", [{}, {1: -1.0}, {1: float("nan")}, {1: float("inf")}], ids=str)
def test_broken_curves_are_refused(broken):
    with pytest.raises(ValueError, match="not a curve"):
        Costs(broken, COSTS.first_level, COSTS.next_level, COSTS.commit)


def test_costs_survive_json():
    assert Costs.from_json(COSTS.to_json()) == COSTS
    assert AcceptCosts.from_json(ACCEPT.to_json()) == ACCEPT

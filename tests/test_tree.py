"""Draft trees: tables against a slow reference, EAGLE-2's growth against one_file.py.

Axes: N nodes, V vocabulary, K branch_top_k.
"""

import functools
import itertools
import random
from collections.abc import Callable

import pytest
import reference_tree as reference
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.tree_grower import TreeGrower, TreeShape

V = 23


def grow(logits_of: Callable, config: TreeConfig, *, root: int = 5) -> tuple[DraftTree, list]:
    """Drive a TreeGrower as a drafter does; also the paths of the nodes that were run, in order."""
    grower = TreeGrower(TreeShape(config))
    frontier, run = [()], []
    for level in range(config.tree_depth):
        if level:
            token_K, slot_K = grower.frontier()
            pairs = zip(slot_K.tolist(), token_K.tolist(), strict=True)
            frontier = [(*frontier[slot], token) for slot, token in pairs]
        run += frontier
        grower.add_level(torch.stack([logits_of(path) for path in frontier]))
    return grower.finish(torch.tensor(root)), run


def tree_paths(tree: DraftTree) -> list[reference.Path]:
    return reference.paths(tree.token_N.tolist(), tree.parent_N.tolist())


def random_config(rng: random.Random) -> TreeConfig:
    depth, top_k = rng.randint(1, 5), rng.randint(1, 4)
    pool = top_k + (depth - 1) * top_k**2
    return TreeConfig(rng.randint(depth, pool), depth, top_k)


def path_logits(
    seed: int, *, tied: bool = False, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> Callable[[reference.Path], torch.Tensor]:
    """Logits as a function of the path alone; `tied` takes every row from three permutations of the
    same distinct numbers: no ties within a row, many between sums along different paths."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    choices = [0.25 * scale * torch.randperm(V, generator=generator) for _ in range(3)]

    @functools.cache
    def logits_of(path: reference.Path) -> torch.Tensor:
        row_V = rng.choice(choices) if tied else torch.randn(V, generator=generator)
        return row_V.to(dtype)

    return logits_of


def test_grown_tree_written_by_hand():
    """Two levels of two, worked out with pencil: scores 0.6 0.3 | 0.54 0.03 | 0.15 0.12."""
    rows = {(): [0.6, 0.3, 0.1], (0,): [0.05, 0.9, 0.05], (1,): [0.5, 0.1, 0.4]}

    def logits(path):
        return torch.tensor(rows[path]).log()

    tree, run = grow(logits, TreeConfig(4, 2, 2), root=2)
    assert run == [(), (0,), (1,)]
    #                               root (0) (1) (0,1) (1,0)
    assert tree.token_N.tolist() == [2, 0, 1, 1, 0]
    assert tree.parent_N.tolist() == [0, 0, 0, 1, 2]
    assert tree.depth_N.tolist() == [0, 1, 1, 2, 2]
    assert tree.draft_row_N.tolist() == [0, 1, 2, -1, -1]


def test_tables_match_the_reference_on_random_trees():
    """Depths and ancestors by tensor operations == by walking up, on 150 random parent tables."""
    rng = random.Random(0)
    for _ in range(150):
        size = rng.randint(1, 40)
        reach = rng.choice([1, 3, 40])  # chains, narrow trees, wide trees
        parents = [0] + [rng.randint(max(0, node - reach), node - 1) for node in range(1, size)]
        parent_N = torch.tensor(parents)
        slack = rng.randint(0, 3)  # max_depth is an upper bound only
        depth = max(reference.depths(parents))
        tensors = (torch.arange(size), parent_N, torch.full((size,), -1), torch.empty(0, 0))
        tree = DraftTree(*tensors, max_depth=depth + slack)
        assert tree.depth_N.tolist() == reference.depths(parents)
        assert tree.ancestor_NN.tolist() == reference.ancestor_table(parents)
        assert DraftTree.from_parents(range(size), parents).max_depth == depth


KINDS = {
    "apart": {},
    "tied": {"tied": True},
    "tied with their parents": {"tied": True, "scale": 80.0},
    "halves": {"tied": True, "scale": 25.3, "dtype": torch.float16},
}


@pytest.mark.parametrize("kind", KINDS)
def test_growth_matches_the_reference(kind):
    """Expansion and reranking == one_file.py's, on 150 trees, ties included; a node's
    draft row holds the logits that were given for its own path. (Upstream's top-k over scores of
    half precision, which tie with their parents', keeps children without these.)"""
    rng = random.Random(len(kind))
    ties = 0
    for seed in range(150):
        config, logits_of = random_config(rng), path_logits(seed, **KINDS[kind])
        depth, top_k = config.tree_depth, config.branch_top_k
        expanded, kept = reference.grow(
            logits_of, depth=depth, top_k=top_k, drafts=config.num_draft_tokens
        )
        tree, run = grow(logits_of, config)
        assert run == expanded
        assert tree_paths(tree) == [(), *kept]
        assert tree.depth_N.tolist() == [len(path) for path in tree_paths(tree)]
        assert tree.token_N[0] == 5
        ties += tree.size - len(set(tree.score_N.tolist()))
        assert tree.draft_logits_ER.shape == (config.num_expanded, V)
        for path, row in zip(tree_paths(tree), tree.draft_row_N.tolist(), strict=True):
            assert (row >= 0) == (path in run)
            assert row < 0 or torch.equal(tree.draft_logits_ER[row], logits_of(path))
        assert (tree.draft_row_N[tree.parent_N] >= 0).all()  # whoever has children has a row
    assert ties < 15 if kind == "apart" else ties > 300


@torch.inference_mode()
def test_a_tree_by_price_is_the_part_of_a_large_tree_that_is_worth_it():
    """Of all candidates those of at least `keep`, on the levels down to the first whose best path
    is below `deepen`; a tree may be its root alone, and at 0 and 0 it is EAGLE-2's."""
    target = tiny_target("llama")
    head, sizes, levels = tiny_head(target), set(), set()
    for seed, (keep, deepen) in itertools.product(
        range(6), [(0, 0), (0.02, 0), (0.01, 0.2), (1, 1)]
    ):
        prompt = torch.tensor(prompt_tokens(9, seed=seed))
        trees = []
        for prices in ({}, {"keep": keep, "deepen": deepen}):
            drafter = EagleDrafter(head, target, TreeConfig(36, 3, 4, **prices))  # the whole pool
            drafter = drafter.begin(20, prompt[0].item())
            _, features_LF = target.forward(prompt[None])
            drafter.observe(features_LF[0], [*prompt[1:].tolist(), 7])
            trees.append(drafter.propose())
        whole, priced = trees
        best = [whole.score_N[whole.depth_N == level].max().exp().item() for level in (1, 2, 3)]
        drafted = next((level for level in (1, 2) if best[level - 1] < deepen), 3)
        paths, probs = tree_paths(whole), whole.score_N.exp().tolist()
        worth = [
            path
            for path, prob in zip(paths, probs, strict=True)
            if not path or (len(path) <= drafted and prob >= keep)
        ]
        assert tree_paths(priced) == worth and priced.max_depth == drafted
        sizes.add(priced.size)
        levels.add(drafted)
    assert 1 in sizes and len(sizes) > 4 and levels == {1, 2, 3}

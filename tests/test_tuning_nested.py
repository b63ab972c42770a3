"""Smaller trees inside a large one: what each holds against drafting it, how far each is walked
against walking it alone."""

import numpy as np
import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig
from eagle_fsd.decoding.accept import accept, uniforms
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.speed.tree_choice.candidates import candidate_trees, surveyed_tree
from eagle_fsd.speed.tree_choice.nested import NestedTrees, accepted_drafts, restrict

LARGE = surveyed_tree((TreeConfig(5, 5, 5),))


def observed(drafter: EagleDrafter, features_LF: torch.Tensor, prompt: list[int]) -> DraftTree:
    drafter.reset(len(prompt) + 1)
    drafter.observe(features_LF, torch.tensor([*prompt[1:], 17]))
    return drafter.propose()


def paths(tree: DraftTree, keep_N: np.ndarray | None = None) -> set[tuple[int, ...]]:
    """Every node as the tokens from the root down to it."""
    parent, token = tree.parent_N.tolist(), tree.token_N.tolist()
    path = [(token[0],)]
    for node in range(1, tree.size):
        path.append((*path[parent[node]], token[node]))
    return {p for node, p in enumerate(path) if keep_N is None or keep_N[node]}


@pytest.fixture(scope="module")
def drafted():
    """Pools of a random head, and a drafter at the same states."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target, scale=2.0), target, LARGE)
    states = []
    for seed in range(3):
        prompt = prompt_tokens(11 + seed, seed=seed)
        target.start(len(prompt))
        states.append((target.prefill(torch.tensor(prompt))[1], prompt))
    return drafter, states


def test_held_is_what_the_smaller_drafter_proposes(drafted):
    """All sizes and depths of the large tree's own top-k. Of a smaller top-k what is missing must
    stand below a node that the large tree did not expand, and nothing else is off for it."""
    drafter, states = drafted
    grid = candidate_trees(101) + tuple(TreeConfig(m, 4, 5) for m in (5, 9, 14, 30, 48))
    grid += tuple(TreeConfig(m, d, 5) for m in (5, 20) for d in (2, 3, 5))
    trees = [t for t in grid if t.tree_depth <= 5 and t.branch_top_k <= 5][::7]
    whole = 0
    for state in states:
        pool = observed(drafter, *state)
        expanded = paths(pool, pool.draft_row_N.numpy() >= 0)
        held_TN = NestedTrees(pool).held(trees)
        for tree, held_N in zip(trees, held_TN, strict=True):
            proposed = paths(observed(drafter.with_tree(tree), *state))
            held = paths(pool, held_N)
            unknown = {p for p in proposed if len(p) > 1 and p[:-1] not in expanded}
            whole += not unknown
            if tree.branch_top_k == 5 or not unknown:
                assert held == proposed, tree
            assert proposed - held <= unknown, tree
    assert whole > 0.9 * len(trees) * len(states)


def random_tree(generator: torch.Generator, size: int, vocab: int) -> DraftTree:
    """Up to 4 children a node, rather deep; all nodes have a draft row."""
    parents, children = [0], {0: 0}
    while len(parents) < size:
        low = max(0, len(parents) - 7)
        parent = int(torch.randint(low, len(parents), (), generator=generator))
        if children[parent] < 4:
            children[parent] += 1
            children[len(parents)] = 0
            parents.append(parent)
    tokens = torch.empty(size, dtype=torch.int64)
    for node in set(parents):
        own = [n for n in range(1, size) if parents[n] == node]
        tokens[own] = torch.randperm(vocab, generator=generator)[: len(own)]
    tokens[0] = 0
    logits_ER = 2 * torch.randn(size, vocab, generator=generator)
    return DraftTree.from_tensors(
        tokens, torch.tensor(parents), torch.arange(size), logits_ER, max_depth=size
    )


def random_part(tree: DraftTree, generator: torch.Generator) -> np.ndarray:
    """Some connected nodes, the root among them."""
    keep = [True]
    for node in range(1, tree.size):
        parent = int(tree.parent_N[node])
        keep.append(keep[parent] and bool(torch.rand((), generator=generator) < 0.85))
    return np.array(keep)


@pytest.mark.parametrize("child", ["draft", "target"])
@pytest.mark.parametrize("rule", ["exact", "fsd", "fsd-paper"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_walks_of_the_parts_are_the_parts_own(rule, child, temperature):
    """accepted_drafts, which walks few trees, against accept() on every smaller tree alone."""
    generator = torch.Generator().manual_seed(5)
    config = AcceptConfig(rule, threshold=0.4, child=child)
    sampling = SamplingConfig(temperature)
    lengths, calls = set(), 0
    for _ in range(12):
        tree = random_tree(generator, 23, 5)
        logits_NV = 2 * torch.randn(23, 5, generator=generator) + tree.draft_logits_ER
        logits_NV[tree.parent_N[1:], tree.token_N[1:]] += 2.0  # children are often the argmax
        uniform_S3 = uniforms(tree.max_depth, generator)
        held_TN = np.stack([random_part(tree, generator) for _ in range(30)])

        def walk(keep_N, tree=tree, logits_NV=logits_NV, uniform_S3=uniform_S3):
            nonlocal calls
            calls += 1
            node = keep_N.nonzero()[:, 0]
            rows = logits_NV[node]
            part = restrict(tree, keep_N)
            return node[
                accept(part, rows, uniform_S3, config=config, sampling=sampling).path
            ].tolist()

        accepted_T = accepted_drafts(held_TN, walk)
        fast, calls = calls, 0
        alone = [len(walk(torch.from_numpy(held_N))) - 1 for held_N in held_TN]
        assert accepted_T.tolist() == alone
        assert fast < calls
        calls = 0
        lengths |= set(alone)
    assert len(lengths) > 3  # short and long ones were compared


def test_restrict_renumbers(drafted):
    """Parents, draft rows and ancestors of the nodes that are kept, by hand."""
    tree = DraftTree.from_tensors(
        torch.tensor([5, 6, 7, 8, 9]),
        torch.tensor([0, 0, 0, 2, 3]),
        torch.tensor([0, -1, 1, 2, -1]),
        torch.zeros(3, 11),
        max_depth=3,
    )
    part = restrict(tree, torch.tensor([True, False, True, True, False]))
    assert part.token_N.tolist() == [5, 7, 8]
    assert part.parent_N.tolist() == [0, 0, 1]
    assert part.depth_N.tolist() == [0, 1, 2]
    assert part.draft_row_N.tolist() == [0, 1, 2]
    assert part.ancestor_NN.tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_scores_with_a_draft_vocabulary():
    """Columns of the draft's rows are found by the target's ids; the root may be none of them."""
    tree = DraftTree.from_tensors(
        torch.tensor([1, 4, 9, 7]),
        torch.tensor([0, 0, 0, 2]),
        torch.tensor([0, -1, 1, -1]),
        torch.log(torch.tensor([[0.25, 0.0, 0.75], [0.1, 0.5, 0.4]])),
        max_depth=2,
        draft_token_R=torch.tensor([4, 7, 9]),
    )
    nested = NestedTrees(tree)
    np.testing.assert_allclose(np.exp(nested.score_N), [1, 0.25, 0.75, 0.375], rtol=1e-6)
    assert nested.order_N.tolist() == [0, 2, 3, 1]

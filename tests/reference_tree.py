"""Slow, obvious versions: of the tree's tables, of verification (every path alone) and of the cache
(a fresh prefill). EAGLE-2's expansion and reranking are those of one_file.py.

A node is named by its path: the tuple of drafted tokens from the root down, () for the root.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from commands import load_command
from tiny import SIZES
from transformers import DynamicCache

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.families import cache_name

Path = tuple[int, ...]
one_file = load_command("one_file.py")


def node_ancestors(parents: Sequence[int], node: int) -> list[int]:
    """The node, its parent, and so on up to the root."""
    chain = [node]
    while chain[-1] != 0:
        chain.append(parents[chain[-1]])
    return chain


def ancestor_table(parents: Sequence[int]) -> list[list[bool]]:
    """Row i marks node i and its ancestors."""
    size = len(parents)
    return [[j in node_ancestors(parents, i) for j in range(size)] for i in range(size)]


def depths(parents: Sequence[int]) -> list[int]:
    return [len(node_ancestors(parents, node)) - 1 for node in range(len(parents))]


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """Every node's path."""
    return [
        tuple(tokens[at] for at in reversed(node_ancestors(parents, node)[:-1]))
        for node in range(len(parents))
    ]


def grow(
    logits_of: Callable[[Path], torch.Tensor], *, depth: int, top_k: int, drafts: int
) -> tuple[list[Path], list[Path]]:
    """What EAGLE-2 drafts, which one_file.py says: what is expanded, in order, and what reranking
    keeps, level by level."""
    logits_of = cache(logits_of)

    def head(text, nodes, feature_SD):
        return torch.zeros(len(nodes), 1), torch.stack([logits_of(path).float() for path in nodes])

    nodes, logits = one_file.propose(head, [0, 0], torch.zeros(1, 1), drafts, depth, top_k)
    expanded = list(logits)
    return expanded, sorted(nodes[1:], key=lambda path: expanded.index(path[:-1]))


def assert_grown(
    tree: DraftTree, logits_of: Callable[[Path], torch.Tensor], config: TreeConfig, close: float
) -> None:
    """A drafter's tree is what EAGLE-2 drafts of these logits [V], row by row."""
    depth, top_k = config.tree_depth, config.branch_top_k
    _, kept = grow(logits_of, depth=depth, top_k=top_k, drafts=config.num_draft_tokens)
    node_paths, token_R = paths(tree.token_N.tolist(), tree.parent_N.tolist()), tree.draft_token_R
    assert set(node_paths[1:]) == set(kept) and tree.size == config.num_draft_tokens + 1
    assert tree.draft_row_N[0] >= 0
    for path, row in zip(node_paths, tree.draft_row_N.tolist(), strict=True):
        if row >= 0:
            want_R = logits_of(path) if token_R is None else logits_of(path)[token_R]
            torch.testing.assert_close(tree.draft_logits_ER[row], want_R, atol=close, rtol=close)


def random_tree(seed: int, *, size: int = 13) -> DraftTree:
    """Deep for even seeds (deeper than a window), wide for odd ones."""
    rng = random.Random(seed)
    reach = 2 if seed % 2 == 0 else size
    parents = [0] + [rng.randint(max(0, node - reach), node - 1) for node in range(1, size)]
    return DraftTree.from_parents(
        [rng.randrange(SIZES["vocab_size"]) for _ in range(size)], parents
    )


def path_to(tree: DraftTree, node: int) -> list[int]:
    return tree.token_N[tree.ancestor_NN[node]].tolist()


def largest_error(target: Target, prompt: list[int], tree: DraftTree) -> float:
    """Of logits and features, prefill's and the tree's, against each path alone in the model."""
    cache = target.begin(len(prompt) + tree.size)
    logits_V, features_LD = target.prefill(cache, torch.tensor(prompt))
    logits_NV, features_ND = target.verify(cache, tree)
    assert logits_NV.std() > 0.1  # a constant would prove nothing
    errors = []
    for node in range(tree.size):
        path = torch.tensor([prompt + path_to(tree, node)])
        alone = target.model(path, output_hidden_states=True)
        layers = target.feature_layers or (-1,)
        features_TD = torch.cat([alone.hidden_states[layer][0] for layer in layers], dim=-1)
        logits_TV = alone.logits[0]
        errors += [logits_NV[node] - logits_TV[-1], features_ND[node] - features_TD[-1]]
    last = len(prompt) - 1
    errors += [logits_V - logits_TV[last], features_LD - features_TD[: last + 1]]
    return max(error.abs().max().item() for error in errors)


def close_of(target: Target) -> float:
    """How far logits of a size about 1 may be off. Recurrent layers of random models enlarge
    roundings, by which transformers' own steps differ from its own whole forward."""
    return 3e-3 if target.has_states else 2e-4


def assert_cache_is_of(target: Target, cache: TreeCache, tokens: list[int]) -> None:
    """The cache == transformers' own after one forward of these tokens."""
    # without a config it keeps the whole rows of sliding layers; with one it has states
    fresh = DynamicCache(config=target.config) if target.has_states else DynamicCache()
    given = {cache_name(target.model): fresh}
    target.model(torch.tensor([tokens]), use_cache=True, **given)
    close = partial(torch.testing.assert_close, atol=close_of(target), rtol=close_of(target))
    compared = 0
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        for kind in ("conv_states", "recurrent_states"):
            for name, state in getattr(theirs, kind, {}).items():
                if state is not None:
                    close(getattr(ours, kind)[name], state)
                    compared += 1
        if getattr(theirs, "keys", None) is not None:
            assert theirs.keys.shape[2] == len(tokens)
            close(ours.keys[:, :, : len(tokens)], theirs.keys)
            close(ours.values[:, :, : len(tokens)], theirs.values)
            compared += 1
    assert compared >= target.num_layers - 1  # one may be of experts alone

"""Slow, obvious versions of the tree's tables and of EAGLE-2's expansion and reranking.

A node is named by its path: the tuple of drafted tokens from the root down, () for the root.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

Path = tuple[int, ...]


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
) -> tuple[list[np.float32], list[Path], list[Path]]:
    """What EAGLE-2 drafts: the scores of all candidates, what was expanded, what reranking keeps.

    Expand the `top_k` best of each level `depth` times, then keep the best `drafts` of all. Equal
    scores: whoever was drafted first. Scores are float32, as the paper's values in log.
    """
    pool: list[tuple[np.float32, Path]] = []
    expanded: list[Path] = []
    frontier = [(np.float32(0), ())]
    for _ in range(depth):
        level = []
        for score, path in frontier:
            expanded.append(path)
            logp_V = torch.log_softmax(logits_of(path).float(), dim=-1).numpy()
            tokens = sorted(range(len(logp_V)), key=lambda token: -logp_V[token])
            level += [(score + logp_V[token], (*path, token)) for token in tokens[:top_k]]
        pool += level
        frontier = sorted(level, key=lambda candidate: -candidate[0])[:top_k]
    best = sorted(range(len(pool)), key=lambda i: -pool[i][0])[:drafts]
    return [score for score, _ in pool], expanded, [pool[i][1] for i in sorted(best)]

"""Slow, obvious versions of the tree's tables and of EAGLE-2's expansion and reranking.

A node is named by its path: the tuple of drafted tokens from the root down, () for the root.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass
class Candidate:
    path: Path
    score: np.float32


@dataclass
class Reference:
    """What EAGLE-2 drafts: every candidate, what was expanded, and what reranking keeps."""

    pool: list[Candidate]
    expanded: list[Path]
    kept: list[Path]


def grow(
    logits_of: Callable[[Path], torch.Tensor], *, depth: int, top_k: int, drafts: int
) -> Reference:
    """Expand the `top_k` best of each level `depth` times, then keep the best `drafts` of all.

    Equal scores: whoever was drafted first. Scores are float32, as the paper's values in log.
    """
    pool: list[Candidate] = []
    expanded: list[Path] = []
    frontier = [Candidate((), np.float32(0))]
    for _ in range(depth):
        level = []
        for node in frontier:
            expanded.append(node.path)
            logp_V = torch.log_softmax(logits_of(node.path).float(), dim=-1).numpy()
            tokens = sorted(range(len(logp_V)), key=lambda token: -logp_V[token])
            for token in tokens[:top_k]:
                level.append(Candidate((*node.path, token), node.score + logp_V[token]))
        pool += level
        frontier = sorted(level, key=lambda candidate: -candidate.score)[:top_k]
    best = sorted(range(len(pool)), key=lambda i: -pool[i].score)[:drafts]
    return Reference(pool, expanded, [pool[i].path for i in sorted(best)])

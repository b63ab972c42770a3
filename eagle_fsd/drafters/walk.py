"""A drafter walked along a text that is known: the rounds in which exact decoding would emit it.

A round accepts as many drafts as the text's own next tokens lie in its tree, and emits one more. So
nothing is verified; the drafter is told what decoding would tell it.

Axes: L tokens of the text, F features.
"""

from collections.abc import Iterator, Sequence

import torch

from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.tree import DraftTree


def walk(
    drafter: Drafter, ids: Sequence[int], roots: range, features_LF: torch.Tensor
) -> Iterator[tuple[DraftTree, list[int], int]]:
    """Every round's tree, its nodes that are the text, the root first, and where that stands in the
    text. The round emits as many tokens as these nodes are.

    Example, text A B C D, root A: a tree with B, and X below it, accepts B; C is the next token and
    the root of the next round. Emitted are two.

    Args:
        ids: a text longer by a tree's levels than the roots reach.
        roots: the first one's place, and the one behind the last that may be one.
        features_LF: the target's, of the text.
    """
    drafter.reset(len(ids), ids[0])
    told, root = 0, roots.start
    while root < roots.stop:
        drafter.observe(features_LF[told:root], ids[told + 1 : root + 1])
        tree = drafter.propose()
        assert root + tree.max_depth < len(ids), "the tree is deeper than the text behind its root"
        path = text_path(tree, ids[root + 1 :])
        yield tree, path, root
        told, root = root, root + len(path)


def text_path(tree: DraftTree, following: Sequence[int]) -> list[int]:
    """The nodes that are the root and the tokens that follow it in the text."""
    tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
    drafted = {(parents[node], tokens[node]): node for node in range(1, tree.size)}
    path = [0]
    for token in following:
        if (path[-1], token) not in drafted:
            break
        path.append(drafted[path[-1], token])
    return path

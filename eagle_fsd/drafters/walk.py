"""Drafters walked along a text that is known: the rounds in which exact decoding would emit it.

Greedy exact decoding emits the target's own text whatever is drafted. A round accepts as many
drafts as the text's own next tokens lie in its tree, and emits one more. So nothing is verified;
the drafter observes what decoding would show it.

Axes: L tokens of the text, F features.
"""

from collections.abc import Collection, Iterator, Sequence

import torch

from eagle_fsd.decoding.tree import Drafter, DraftTree


def walk(
    drafter: Drafter,
    ids: Sequence[int],
    roots: range,
    features_LF: torch.Tensor,
    stop_token_ids: Collection[int] = (),
) -> Iterator[tuple[int, DraftTree, list[int]]]:
    """Every round: its root's place in the text, its tree, and the accepted path, the root first.
    It emits as many tokens as the path has nodes.

    Example, text A B C D, root A: a tree with B, and X below it, accepts B; C is the next token and
    the root of the next round.

    Args:
        ids: a text longer by a tree's levels than the roots reach.
        roots: the first one's place, and the one behind the last that may be one.
        features_LF: the target's, of the text.
        stop_token_ids: drafts behind one of these are no gain, as when decoding.
    """
    drafter = drafter.begin(len(ids), ids[0])
    seen, root = 0, roots.start
    while root < roots.stop:
        drafter.observe(features_LF[seen:root], ids[seen + 1 : root + 1])
        tree = drafter.propose()
        assert root + tree.max_depth < len(ids), "the tree is deeper than the text behind its root"
        # the drafts that follow the root in the text, one below the other
        tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
        drafted = {(parents[node], tokens[node]): node for node in range(1, tree.size)}
        path = [0]
        for token in ids[root + 1 :]:
            node = path[-1]
            if (node, token) not in drafted or (node > 0 and tokens[node] in stop_token_ids):
                break
            path.append(drafted[node, token])
        yield root, tree, path
        seen, root = root, root + len(path)

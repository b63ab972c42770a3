"""Drafters walked along a text that is known: the rounds in which exact decoding would emit it.

Greedy exact decoding emits the target's own text whatever is drafted. A round accepts as many
drafts as the text's own next tokens lie in its tree, and emits one more. So nothing is verified;
the drafter observes what decoding would show it.

Axes: L tokens of the text, F features.
"""

from collections.abc import Collection, Iterator, Sequence

import torch

from eagle_fsd.decoding.tree import Drafter


def walk(
    drafter: Drafter,
    ids: Sequence[int],
    roots: range,
    features_LF: torch.Tensor,
    stop_token_ids: Collection[int] = (),
) -> Iterator[int]:
    """The tokens of every round: its accepted drafts, and the next token.

    Example, text A B C D, root A: a tree with B, and X below it, accepts B; C is the next token and
    the root of the next round, so this one has 2.

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
        pairs = zip(tree.parent_N.tolist(), tree.token_N.tolist(), strict=True)
        drafted = {pair: node for node, pair in enumerate(pairs) if node > 0}
        node, count = 0, 1  # the next token counts too
        for token in ids[root + 1 :]:
            node = drafted.get((node, token))
            if node is None:
                break
            count += 1
            if token in stop_token_ids:
                break
        yield count
        seen, root = root, root + count

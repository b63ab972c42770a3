"""The drafter that grafts what the text repeats onto the head's tree.

A head drafts what is new, the text so far what repeats; they miss different tokens.

Axes: T newly committed tokens, F features, N nodes of the head's tree.
"""

from collections.abc import Sequence

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.tree import GREEDY, Drafter, DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.ngram import DEEPEST, Node, Offers, learn_from, likeliest, tree_of
from eagle_fsd.drafters.ngram_table import NgramTable

BRANCH = 4  # continuations of a node


class HybridDrafter(Drafter):
    """As many drafts as the head's tree has, chosen from it and from continuations of n-grams.

    A draft's probability is the head's p or its continuation's s (NgramTable), of a token that both
    offer 1 - (1 - p)(1 - s), times its parent's; the likeliest are taken. What hangs below a
    continuation of its own has no draft distribution: a divergence never passes there.

    Example, 3 drafts: the head says A .5, B .2 and below A: C .3; A was followed by D, .6 sure.
    Taken are A (.5), A D (.3) and B (.2).
    """

    def __init__(self, eagle: EagleDrafter, max_ngram: int = 3, recycle: int = 0):
        self.eagle, self.max_ngram, self.recycle = eagle, max_ngram, recycle
        self.vocab_size, self.max_nodes = eagle.vocab_size, eagle.max_nodes

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        self.eagle.reset(capacity, first_token)
        self._nodes: list[Node] = []
        self._text = NgramTable(self.max_ngram)
        self._text.begin(first_token)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        if self.recycle and self._nodes:
            learn_from(self._text, self._nodes, self.eagle.target.last_logits_NV, self.recycle)
        self.eagle.observe(features_TF, next_tokens)
        self._text.extend(next_tokens)

    def propose(self) -> DraftTree:
        tree = self.eagle.propose()
        token, parent, row, score = _read(tree)
        below: list[Offers] = [{} for _ in token]  # the head's drafts below each of its nodes
        for node in range(1, len(token)):
            below[parent[node]][token[node]] = node, score[node]

        def offers(context: tuple[int, ...], own: int | None) -> Offers:
            both = {} if own is None else dict(below[own])
            for offered, sure in self._text.after(context, BRANCH).items():
                node, own_sure = both.get(offered, (None, 0.0))
                both[offered] = node, 1 - (1 - own_sure) * (1 - sure)
            return both

        least = self.eagle.tree_config.keep
        self._nodes = nodes = likeliest(self._text, offers, self.max_nodes, DEEPEST, least)
        rows = [-1 if node.own is None else row[node.own] for node in nodes]
        device = tree.token_N.device
        return tree_of(nodes, rows, tree.draft_logits_ER, tree.draft_token_R, device)


def _read(tree: DraftTree) -> tuple[list[int], list[int], list[int], list[float]]:
    """A head's tree on the host, in one transfer: tokens, parents, draft rows, and what the head
    gives each draft after its parent (the root: 1). Ids below 2**24 are exact in float32."""
    said_N = (tree.score_N - tree.score_N[tree.parent_N]).exp()
    table = [tree.token_N, tree.parent_N, tree.draft_row_N, said_N]
    token, parent, row, score = torch.stack(table).tolist()
    return *([int(value) for value in values] for values in (token, parent, row)), score

"""The drafter that grafts what the text repeats onto the head's tree; they miss different tokens.

Axes: T newly committed tokens, F features, N nodes of the head's tree.
"""

import math
from typing import Self

import torch

from eagle_fsd.decoding.tree import GREEDY, Drafter, DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.ngram import NgramTable, Node, Offers, learn_from, likeliest, tree_of

BRANCH = 4  # continuations of a node
MAX_NGRAM = 3  # longest n-gram that is looked up


class HybridDrafter(Drafter):
    """As many drafts as the head's tree has, chosen from it and from continuations of n-grams.

    A draft's probability is what head and text say of it (`together`), times its parent's; the
    likeliest are taken, down to the tree's `keep`. What hangs below a continuation of its own has
    no draft distribution: a divergence never passes there.

    Example, 3 drafts: the head says A .5, B .2 and below A: C .3; A was followed by D, of which
    both together are .4 sure. Taken are A (.5), A D (.2) and B (.2).
    """

    def __init__(self, eagle: EagleDrafter, recycle: int = 0):
        self.eagle, self.recycle = eagle, recycle
        self.vocab_size = eagle.vocab_size
        self.max_nodes, self.spare_rows = eagle.max_nodes, eagle.spare_rows

    def begin(self, capacity, first_token, sampling=GREEDY, seed=0) -> Self:
        own = HybridDrafter(self.eagle.begin(capacity, first_token), self.recycle)
        own._nodes: list[Node] = []
        own._text = NgramTable(MAX_NGRAM, first_token)
        return own

    def observe(self, features_TF, next_tokens, logits_NV=None) -> None:
        if self.recycle and self._nodes:
            learn_from(self._text, self._nodes, logits_NV, self.recycle)
        self.eagle.observe(features_TF, next_tokens)
        self._text.extend(next_tokens)

    def close(self) -> None:
        self.eagle.close()

    def propose(self) -> DraftTree:
        # 1. The head's tree on the host, in one transfer: tokens, parents, draft rows, and what the
        #    head gives each draft after its parent. Ids below 2**24 are exact in float32.
        tree = self.eagle.propose()
        said_N = (tree.score_N - tree.score_N[tree.parent_N]).exp()
        table = [tree.token_N, tree.parent_N, tree.draft_row_N, said_N]
        *ids, said = torch.stack(table).tolist()
        token, parent, row = ([int(value) for value in values] for values in ids)
        below: list[Offers] = [{} for _ in token]  # the head's drafts below each of its nodes
        for node in range(1, len(token)):
            below[parent[node]][token[node]] = node, said[node]

        # 2. What a node may go on with, by head and text together.
        def offers(context: tuple[int, ...], own: int | None) -> Offers:
            both = {} if own is None else dict(below[own])
            best = max((sure for _, sure in both.values()), default=None)
            for offered, sure in self._text.after(context, BRANCH).items():
                node, own_sure = both.get(offered, (None, None))
                both[offered] = node, together(own_sure, sure, best)
            return both

        # 3. The likeliest of all are the tree.
        keep = self.eagle.tree_config.keep
        self._nodes = nodes = likeliest(self._text, offers, self.max_nodes, keep)
        rows = [-1 if node.own is None else row[node.own] for node in nodes]
        device = tree.token_N.device
        return tree_of(nodes, rows, tree.draft_logits_ER, tree.draft_token_R, device)


def together(head: float | None, text: float, best: float | None) -> float:
    """Probability of a token that the text offers.

    Two logistic regressions over 5,000 such tokens behind 4,400 places of 40 plain answers
    (vicuna_bench, the shipped head): log loss .382 nats where 1 - (1 - head)(1 - text) has .391,
    and .141 where the text's own number has .193, since a token that the head leaves out is right
    half as often as the text alone says.

    Args:
        head: the head's probability of it; None: it is not among the head's drafts there.
        text: NgramTable's.
        best: that of the head's likeliest draft there; None: it has none, and the text's counts.
    """
    if best is None:
        return text
    if head is None:
        odds = -1.55 + 1.27 * _log_odds(text) - 0.6 * _log_odds(best)
    else:
        odds = 1.27 + 0.77 * _log_odds(head) + 0.58 * _log_odds(text)
    return 1 / (1 + math.exp(-odds))


def _log_odds(probability: float) -> float:
    probability = min(max(probability, 1e-4), 1 - 1e-4)
    return math.log(probability / (1 - probability))

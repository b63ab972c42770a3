"""The drafter that grafts what the text repeats onto the head's tree.

A head drafts what is new, the text so far what repeats; they miss different tokens.

Axes: T newly committed tokens, F features, C drafts of the head.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput, SamplingConfig, check_least, parse_tree, tree_name
from eagle_fsd.decoding.drafter import GREEDY
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.continuations import Continuations
from eagle_fsd.drafters.eagle import EagleDrafter, EagleSettings
from eagle_fsd.models.loaded import Model

DEEPEST = 16  # levels of a head's tree with continuations


@dataclass(frozen=True)
class HybridSettings:
    """The trees, as arms say them (`exact@hybrid:15x4x6`).

    Attributes:
        tree: DRAFTSxLEVELSxTOPK; the head's levels, and how many drafts it and the text have
            together. "": the model's.
        max_ngram: longest n-gram that is looked up.
    """

    needs_head: ClassVar[bool] = True
    tree: str = ""
    max_ngram: int = 3

    def __post_init__(self):
        check_least(self, max_ngram=1)
        if self.tree:
            object.__setattr__(self, "tree", tree_name(parse_tree(self.tree)))

    def build(self, model: Model) -> "HybridDrafter":
        eagle = EagleSettings(self.tree).build(model)
        if not isinstance(eagle, EagleDrafter):
            raise BadInput("hybrid needs a draft head; the model was loaded without one")
        return HybridDrafter(eagle, self.max_ngram)


class HybridDrafter:
    """As many drafts as the head's tree has, chosen from it and from continuations of n-grams; or
    without a head a chain of `num_draft_tokens` continuations.

    A draft's probability is the head's p or its continuation's sureness s, of a token that both
    say 1 - (1 - p)(1 - s), times its parent's; the likeliest are taken, likeliest first, so that
    every draft comes behind its parent and siblings stand in that order. What hangs below a
    continuation of its own has no draft distribution: a divergence never passes there.

    Example, 3 drafts: the head says A .5, B .2 and below A: C .3; A was followed by D, sureness .6.
    Taken are A (.5), A D (.3) and B (.2).
    """

    def __init__(
        self, eagle: EagleDrafter | None, max_ngram: int = 3, num_draft_tokens: int = DEEPEST
    ):
        self.eagle, self.max_ngram = eagle, max_ngram
        self.draft_token_R = eagle.draft_token_R if eagle else None
        self.max_nodes = eagle.max_nodes if eagle else 1 + num_draft_tokens
        self._deepest = DEEPEST if eagle else num_draft_tokens
        self._text = Continuations(max_ngram)

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        if self.eagle:
            self.eagle.reset(capacity, first_token)
        self._text = Continuations(self.max_ngram)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        if self.eagle:
            self.eagle.observe(features_TF, next_tokens)
        self._text.extend(next_tokens)
        self._device = features_TF.device

    def propose(self) -> DraftTree:
        if self.eagle:
            tree = self.eagle.propose()
            token, parent, row, said = _read(tree)
        else:
            token, parent, row, said = [self._text.last[-1]], [0], [-1], [1.0]
            tree = DraftTree.from_parents(token, parent, device=self._device)
        below: list[list[int]] = [[] for _ in token]  # the head's drafts below each of its nodes
        for node in range(1, len(token)):
            below[parent[node]].append(node)

        tokens, parents, rows, depths = [], [], [], []
        order = count()  # of two alike the first found comes first
        heap = [(0.0, next(order), token[0], 0, 0, self._text.last)]
        while heap and len(tokens) < self.max_nodes:
            cost, _, taken, above, own, context = heapq.heappop(heap)
            here = len(tokens)
            tokens.append(taken)
            parents.append(above)
            rows.append(-1 if own is None else row[own])
            depths.append(depths[above] + 1 if here else 0)
            if depths[here] == self._deepest:
                continue
            # a draft's token -> the head's node of it, and how likely it is not right
            offers = {token[n]: (n, 1 - said[n]) for n in (() if own is None else below[own])}
            if known := self._text.after(context):
                node, wrong = offers.get(known[0], (None, 1.0))
                offers[known[0]] = (node, wrong * (1 - known[1]))
            for offered, (node, wrong) in offers.items():
                far = cost - math.log(max(1 - wrong, 1e-9))
                ahead = self._text.follow(context, offered)
                heapq.heappush(heap, (far, next(order), offered, here, node, ahead))
        rows_3N = torch.tensor([tokens, parents, rows])
        return DraftTree(
            *rows_3N.to(tree.token_N.device, non_blocking=True),
            tree.draft_logits_ER,
            max_depth=max(depths),
            draft_token_R=tree.draft_token_R,
        )


def _read(tree: DraftTree) -> tuple[list[int], list[int], list[int], list[float]]:
    """A head's tree on the host, in one transfer: tokens, parents, draft rows, and what the head
    gives each draft after its parent (the root: 1). Ids are exact in float64."""
    row_C = tree.draft_row_N[tree.parent_N[1:]]
    column_C = token_C = tree.token_N[1:]
    if tree.draft_token_R is not None:
        column_C = torch.searchsorted(tree.draft_token_R, token_C)
    logits_ER = tree.draft_logits_ER.float()
    logp_C = logits_ER[row_C, column_C] - logits_ER.logsumexp(-1)[row_C]
    said_N = torch.cat([logp_C.new_zeros(1), logp_C]).exp()
    table = [tree.token_N, tree.parent_N, tree.draft_row_N, said_N]
    token, parent, row, said = torch.stack([value_N.double() for value_N in table]).tolist()
    return *([int(value) for value in values] for values in (token, parent, row)), said

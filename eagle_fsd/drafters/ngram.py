"""The drafter that needs no head: trees of what n-grams went on with, learned while it decodes.

Where it drafts one continuation a node and recycles nothing (`branch=1,recycle=0`) it is prompt
look-up decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens`):

    A B C D E A B C     A B C went on with D once, so D E A B C ... are drafted

each draft looked up behind those before it, so that A A A drafts as many A as wanted.

Axes: N nodes, E nodes with offers, R tokens offered, V vocabulary, K the target's top tokens.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import GREEDY, Drafter, DraftTree
from eagle_fsd.drafters.ngram_table import NgramTable

DEEPEST = 16  # levels of a tree with continuations

Offers = dict[int, tuple[int | None, float]]  # by token: the head's node of it, and how likely


class Node(NamedTuple):
    """A drafted node: its depth, the head's node that it is, if one, and what it may go on with."""

    token: int
    parent: int
    depth: int
    own: int | None
    context: tuple[int, ...]
    offers: Offers


class NgramDrafter(Drafter):
    """Trees of the likeliest continuations (NgramTable), and their draft distribution: what a node
    offers, as parts of 1, and nothing else. A node that offers nothing has none. For the settings
    see settings.NgramSettings."""

    vocab_size = 0  # each tree has its own

    def __init__(
        self,
        target: Target,
        *,
        num_draft_tokens: int,
        max_ngram: int,
        branch: int,
        keep: float,
        recycle: int,
        remember: int,
        max_ngrams: int,
    ):
        self.target, self.max_nodes = target, 1 + num_draft_tokens
        self._depth = min(DEEPEST, num_draft_tokens)
        self._branch, self._keep = branch, keep
        self._recycle, self._remember = recycle, remember
        self._new_text = partial(NgramTable, max_ngram, max_ngrams)
        self._text = self._new_text()

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        if not self._remember:
            self._text = self._new_text()
        self._text.begin(first_token)
        self._nodes: list[Node] = []

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        if self._recycle and self._nodes:
            learn_from(self._text, self._nodes, self.target.last_logits_NV, self._recycle)
        self._text.extend(next_tokens)
        self._device = features_TF.device

    def propose(self) -> DraftTree:
        def offers(context: tuple[int, ...], _: int | None) -> Offers:
            known = self._text.after(context, self._branch)
            return {token: (None, sure) for token, sure in known.items()}

        nodes = likeliest(self._text, offers, self.max_nodes, self._depth, self._keep)
        self._nodes = nodes
        rows = [-1] * len(nodes)
        token_R = sorted({token for node in nodes for token in node.offers})
        if not token_R:
            return tree_of(nodes, rows, torch.empty(0, 0), None, self._device)
        column = {token: place for place, token in enumerate(token_R)}
        logits_ER = []
        for place, node in enumerate(nodes):
            if node.offers:
                rows[place] = len(logits_ER)
                logits_ER.append([-math.inf] * len(token_R))
                for token, (_, sure) in node.offers.items():
                    logits_ER[-1][column[token]] = math.log(max(sure, 1e-9))
        known = torch.tensor(logits_ER), torch.tensor(token_R)
        return tree_of(nodes, rows, *known, self._device)


def learn_from(
    text: NgramTable, nodes: Sequence[Node], logits_NV: torch.Tensor, recycle: int
) -> None:
    """Keep the target's own top tokens after every node of a verified tree; one transfer."""
    top_NK = logits_NV.topk(recycle, dim=-1).indices
    for node, tokens in zip(nodes, top_NK.tolist(), strict=True):
        text.learn(node.context, tuple(tokens))


def likeliest(
    text: NgramTable,
    offers_of: Callable[[tuple[int, ...], int | None], Offers],
    most: int,
    deepest: int,
    keep: float = 0.0,
) -> list[Node]:
    """The likeliest nodes below the text's last token, at most `most` with it, likeliest first: a
    node's probability is what it was offered with times its parent's. So every node comes behind
    its parent, and siblings stand in that order.

    Args:
        offers_of: what a node may go on with, from its context and the head's node that it is.
        keep: the least probability of a node.
    """
    nodes: list[Node] = []
    order = count()  # of two alike the first found comes first
    limit = -math.log(keep) if keep else math.inf
    heap = [(0.0, next(order), text.last[-1], 0, 0, 0, text.last)]
    while heap and len(nodes) < most:
        cost, _, token, parent, depth, own, context = heapq.heappop(heap)
        here = len(nodes)
        offers = offers_of(context, own) if depth < deepest else {}
        nodes.append(Node(token, parent, depth, own, context, offers))
        for offered, (node, sure) in offers.items():
            far = cost - math.log(max(sure, 1e-9))
            if far <= limit:
                ahead = text.follow(context, offered)
                heapq.heappush(heap, (far, next(order), offered, here, depth + 1, node, ahead))
    return nodes


def tree_of(
    nodes: Sequence[Node],
    rows: Sequence[int],
    logits_ER: torch.Tensor,
    draft_token_R: torch.Tensor | None,
    device: torch.device,
) -> DraftTree:
    """Drafted nodes and their draft rows as a tree on the device; nothing waits for the copies."""
    table = [[node.token for node in nodes], [node.parent for node in nodes], list(rows)]
    if draft_token_R is not None:
        draft_token_R = draft_token_R.to(device, non_blocking=True)
    return DraftTree(
        *torch.tensor(table).to(device, non_blocking=True),
        logits_ER.to(device, non_blocking=True),
        max_depth=max(node.depth for node in nodes),
        draft_token_R=draft_token_R,
    )

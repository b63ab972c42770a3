"""The drafter that needs no head: trees of what n-grams went on with, learned while it decodes.

N-gram counts of the text so far, with back-off: the tri-gram matrix of adaptive draft-verification
(Adaptix, arXiv 2407.12021), started from the prompt. Beside them, where a drafter asks for it, the
target's own top tokens at verified nodes, accepted or not (Token Recycling, arXiv 2408.08696, of
one token's context; here of one and two). The table lives on the host.

Where it drafts one continuation a node and recycles nothing (`branch=1,recycle=0`) it is prompt
look-up decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers'
`prompt_lookup_num_tokens`):

    A B C D E A B C     A B C went on with D once, so D E A B C ... are drafted

each draft looked up behind those before it, so that A A A drafts as many A as wanted.

Axes: N nodes, E nodes with offers, R tokens offered, V vocabulary, K the target's top tokens.
"""

import copy
import heapq
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple, Self

import torch

from eagle_fsd.decoding.tree import GREEDY, Drafter, DraftTree

# --- the table ------------------------------------------------------------------------------------

MOST_TIMES, MOST_OTHERS = 4, 7  # counts above these count as these
CONTINUATIONS = 4  # kept of an n-gram
# N-grams that are kept; those not seen for longest go first. One takes about 400 bytes, 270 without
# the target's own tokens: 13 MB when all are there, which a text of 8,000 tokens fills.
MAX_NGRAMS = 2**15
# After one and two tokens: how likely the first of the target's own top tokens is right where all
# that the text offers is wrong; the r-th is 1 / r of that. Fitted to 11,000 such places in 225 of
# the answers that `sureness` was fitted to.
RECYCLED = {1: 0.1, 2: 0.26}
NOTHING = ((), ())


@lru_cache(1024)
def sureness(matched: int, times: int, others: int, missed: bool) -> float:
    """Probability that a continuation is right.

    A logistic regression over 166,000 continuations in 500 answers of SmolLM2-135M-Instruct to
    prompts that are in no benchmark, greedy and sampled: log loss .374 nats, where one number gives
    .678, the matched length and the count .428 and a table of all cases .366.

    Args:
        matched: tokens of the n-gram, 1 to 3 in the fit.
        times: how often the n-gram went on so.
        others: how often it went on with what was not offered yet.
        missed: something surer was offered before, and is wrong.
    """
    often = math.log2(min(times, MOST_TIMES))
    doubt = math.log2(1 + min(others, MOST_OTHERS))
    odds = 1.09 * matched + (0.48 + 0.4 * matched) * often - 0.56 * matched * doubt
    return 1 / (1 + math.exp(2.38 - odds + 0.96 * missed))


class NgramTable:
    """The continuations of every n-gram of a growing text, up to `max_ngram` tokens.

    Attributes:
        last: the text's last max_ngram tokens, with which a path below its end is looked up.
    """

    def __init__(self, max_ngram: int, first_token: int):
        self.max_ngram, self.last = max_ngram, (first_token,)
        # Of an n-gram: continuations with their counts, the more frequent first and of two alike
        # the later; and the target's own top tokens.
        self._known: dict[tuple[int, ...], tuple[tuple[tuple[int, int], ...], tuple[int, ...]]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text. A token continues every n-gram that ended before it."""
        for token in tokens:
            for n in range(1, len(self.last) + 1):
                followed, recycled = self._known.pop(self.last[-n:], NOTHING)
                times = 1 + dict(followed).get(token, 0)
                others = [pair for pair in followed if pair[0] != token]
                more = sum(count > times for _, count in others)
                followed = (*others[:more], (token, times), *others[more:])[:CONTINUATIONS]
                self._keep(self.last[-n:], followed, recycled)
            self.last = self.follow(self.last, token)

    def learn(self, context: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """Take in the target's own top tokens after a context, the likeliest first, in place of
        those after an earlier one with the same end."""
        for n in RECYCLED:
            if n <= len(context):
                followed, _ = self._known.pop(context[-n:], NOTHING)
                self._keep(context[-n:], followed, tokens)

    def _keep(self, ngram: tuple[int, ...], followed: tuple, recycled: tuple) -> None:
        self._known[ngram] = followed, recycled
        if len(self._known) > MAX_NGRAMS:
            del self._known[next(iter(self._known))]

    def follow(self, context: tuple[int, ...], token: int) -> tuple[int, ...]:
        """The last tokens once another has come."""
        return (*context, token)[-self.max_ngram :]

    def after(self, context: tuple[int, ...], most: int) -> dict[int, float]:
        """At most `most` next tokens with their probabilities, the likeliest first: what the
        longest n-gram at the context's end went on with, and of what that leaves to be right the
        same of the shorter ones. The target's own come behind the text's of the same n-gram."""
        offers: dict[int, float] = {}
        left = 1.0
        for n in range(len(context), 0, -1):
            followed, recycled = self._known.get(context[-n:], NOTHING)
            fresh = [pair for pair in followed if pair[0] not in offers]
            others = sum(times for _, times in fresh)
            for token, times in fresh:
                others -= times
                offers[token] = left * sureness(n, times, others, bool(offers))
                left -= offers[token]
            right = left * RECYCLED.get(n, 0)
            own = [token for token in recycled if token not in offers]
            for rank, token in enumerate(own, start=1):
                offers[token] = right / rank
                left -= offers[token]
        best = sorted(offers.items(), key=lambda offer: -offer[1])  # of two alike the first
        return dict(best[:most])


# --- trees of what it offers ----------------------------------------------------------------------

DEEPEST = 16  # levels of a tree with continuations

Offers = dict[int, tuple[int | None, float]]  # by token: the head's node of it, and how likely


class Node(NamedTuple):
    """A drafted node; `own` is the head's node that it is, if one."""

    token: int
    parent: int
    depth: int
    own: int | None
    context: tuple[int, ...]
    offers: Offers


def learn_from(
    text: NgramTable, nodes: Sequence[Node], logits_NV: torch.Tensor, recycle: int
) -> None:
    """Take in the target's own top tokens after every node of a verified tree."""
    top_NK = logits_NV.topk(recycle, dim=-1).indices
    for node, tokens in zip(nodes, top_NK.tolist(), strict=True):
        text.learn(node.context, tuple(tokens))


def likeliest(
    text: NgramTable,
    offers_of: Callable[[tuple[int, ...], int | None], Offers],
    most: int,
    keep: float,
) -> list[Node]:
    """The likeliest nodes below the text's last token, at most `most` with it and down to the
    probability `keep`, likeliest first: a node's is what it was offered with times its parent's.
    So every node comes behind its parent. `offers_of` takes a node's context and its `own`."""
    nodes: list[Node] = []
    order = count()  # of two alike the first found comes first
    limit = -math.log(keep) if keep else math.inf
    heap = [(0.0, next(order), text.last[-1], 0, 0, 0, text.last)]
    while heap and len(nodes) < most:
        cost, _, token, parent, depth, own, context = heapq.heappop(heap)
        here = len(nodes)
        offers = offers_of(context, own) if depth < DEEPEST else {}
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
    """Drafted nodes and their draft rows as a tree; nothing waits for the copies."""
    table = [[node.token for node in nodes], [node.parent for node in nodes], list(rows)]
    if draft_token_R is not None:
        draft_token_R = draft_token_R.to(device, non_blocking=True)
    return DraftTree(
        *torch.tensor(table).to(device, non_blocking=True),
        logits_ER.to(device, non_blocking=True),
        max_depth=max(node.depth for node in nodes),
        draft_token_R=draft_token_R,
    )


# --- the drafter ----------------------------------------------------------------------------------


class NgramDrafter(Drafter):
    """Trees of the likeliest continuations (NgramTable), and their draft distribution: what a node
    offers, as parts of 1, and nothing else. A node that offers nothing has none."""

    vocab_size = 0  # each tree has its own

    def __init__(
        self,
        *,
        num_draft_tokens: int,
        max_ngram: int,
        branch: int,
        keep: float,
        recycle: int,
    ):
        self.max_nodes = 1 + num_draft_tokens
        self._max_ngram, self._branch, self._keep = max_ngram, branch, keep
        self._recycle = recycle

    def begin(self, capacity, first_token, sampling=GREEDY, seed=0) -> Self:
        own = copy.copy(self)
        own._text = NgramTable(self._max_ngram, first_token)
        own._nodes: list[Node] = []
        return own

    def observe(self, features_TF, next_tokens, logits_NV=None) -> None:
        if self._recycle and self._nodes:
            learn_from(self._text, self._nodes, logits_NV, self._recycle)
        self._text.extend(next_tokens)
        self._device = features_TF.device

    def propose(self) -> DraftTree:
        def offers(context: tuple[int, ...], _: int | None) -> Offers:
            known = self._text.after(context, self._branch)
            return {token: (None, sure) for token, sure in known.items()}

        nodes = likeliest(self._text, offers, self.max_nodes, self._keep)
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

"""Columns: what a rule may know of a node, each a pure function from Rows to one float a node.

A column is either about a place, which is the distribution after a node, or about a draft, which is
a node's own token after its parent. The root is no draft: what a column of drafts holds there has
no meaning.

    of a draft
    prob           P(token), P being the target's distribution after temperature, top-k and top-p;
                   at temperature 0 it is 1 for the argmax and 0 for every other token
    log_prob       log P(token); at temperature 0 it is 0 or -inf
    raw_prob       the target's probability of the token without any filter, at every temperature
    regret         log P(argmax) - log P(token) without any filter, in nats
    rank           how many tokens have a larger raw logit
    supported      1 where explicitly set top-k and top-p leave the token, else 0
    draft_logit    the drafter's raw logit of the token; Q, its distribution, is their softmax
    draft_prob     Q(token)

    of a place
    top1           the target's probability of its likeliest token, without any filter
    entropy        the entropy of the target's distribution without any filter, in nats
    flatness       the entropy over that of a uniform distribution, 0 to 1
    js, tv, ...    every divergence of the two raw rows (divergence.py)

Where the drafter has no distribution, columns that ask for it are NaN.

Axes: N nodes, M questions, V vocabulary, R draft vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.divergence import DIVERGENCES, divergence
from eagle_fsd.decoding.sampling import filter_logits, next_token_probs
from eagle_fsd.decoding.tree import DraftTree


@dataclass(frozen=True)
class Rows:
    """A tree with the target's raw logits after each of its nodes, and what is computed of them
    once for all columns.

    Attributes:
        target_logits_NV: row i is about the token AFTER node i.
        asked: questions about a token after a node, as two tensors [M]: the nodes and the tokens.
            None asks about the drafts: every node's token after its parent.
    """

    tree: DraftTree
    target_logits_NV: torch.Tensor
    sampling: SamplingConfig
    asked: tuple[torch.Tensor, torch.Tensor] | None = None

    @cached_property
    def target_NV(self) -> torch.Tensor:
        return self.target_logits_NV.float()

    @cached_property
    def argmax_N(self) -> torch.Tensor:
        return self.target_NV.argmax(-1)

    @cached_property
    def best_N(self) -> torch.Tensor:
        """The largest logit; NaN where it is infinite, so that no regret is a number there."""
        best_N = self.target_NV.amax(-1)
        return best_N + 0 * best_N

    @cached_property
    def filtered_NV(self) -> torch.Tensor:
        """The target's logits after the sampling filters; at temperature 0 as at 1."""
        warm = replace(self.sampling, temperature=self.sampling.temperature or 1.0)
        return filter_logits(self.target_NV, warm)

    @cached_property
    def prob_NV(self) -> torch.Tensor:
        """P, float32."""
        if self.sampling.temperature == 0:
            return next_token_probs(self.target_NV, self.sampling)
        return torch.softmax(self.filtered_NV, dim=-1)

    @cached_property
    def raw_prob_NV(self) -> torch.Tensor:
        return torch.softmax(self.target_NV, dim=-1)

    @cached_property
    def draft_NR(self) -> torch.Tensor:
        """The drafter's raw logits; NaN where it has none."""
        draft_ER, row_N = self.tree.draft_logits_ER, self.tree.draft_row_N
        if draft_ER.shape[0] == 0:
            width = draft_ER.shape[1] or self.target_NV.shape[1]
            return self.target_NV.new_full((self.tree.size, width), math.nan)
        return torch.where(row_N[:, None] < 0, math.nan, draft_ER[row_N.clamp_min(0)])

    @cached_property
    def draft_distribution_NV(self) -> torch.Tensor:
        """After the filters that make P, over the whole vocabulary; NaN where there is none."""
        prob_NV = next_token_probs(self.draft_NR, self.sampling)
        if self.tree.draft_token_R is not None:
            full_NV = torch.zeros_like(self.target_NV)
            prob_NV = full_NV.index_copy_(1, self.tree.draft_token_R, prob_NV)
        return prob_NV.masked_fill(self.draft_NR[:, :1].isnan(), math.nan)

    @property
    def asked_node_M(self) -> torch.Tensor:
        return self.tree.parent_N if self.asked is None else self.asked[0]

    @property
    def asked_token_M(self) -> torch.Tensor:
        return self.tree.token_N if self.asked is None else self.asked[1]

    def of_asked(self, value_NV: torch.Tensor) -> torch.Tensor:
        """A table's values at the tokens asked about, float32 [M]."""
        return value_NV[self.asked_node_M, self.asked_token_M].float()

    def of_asked_drafts(self, value_NR: torch.Tensor, outside: float) -> torch.Tensor:
        """The same for a table over the draft vocabulary; `outside` for tokens that are not in it
        (text that was looked up), NaN where the drafter has no row."""
        token_R = self.tree.draft_token_R
        if token_R is None:
            return self.of_asked(value_NR)
        column_M = torch.searchsorted(token_R, self.asked_token_M)
        column_M = column_M.clamp_max(token_R.shape[0] - 1)
        value_M = value_NR[self.asked_node_M, column_M].float()
        known_M = (token_R[column_M] == self.asked_token_M) | value_M.isnan()
        return value_M.masked_fill(~known_M, outside)


def prob(rows: Rows) -> torch.Tensor:
    if rows.sampling.temperature == 0:
        return (rows.asked_token_M == rows.argmax_N[rows.asked_node_M]).float()
    return rows.of_asked(rows.prob_NV)


def log_prob(rows: Rows) -> torch.Tensor:
    """Exact where P itself is too small for a float32."""
    if rows.sampling.temperature == 0:
        return prob(rows).log()
    return rows.of_asked(torch.log_softmax(rows.filtered_NV, dim=-1))


def raw_prob(rows: Rows) -> torch.Tensor:
    return rows.of_asked(rows.raw_prob_NV)


def regret(rows: Rows) -> torch.Tensor:
    return rows.best_N[rows.asked_node_M] - rows.of_asked(rows.target_NV)


def rank(rows: Rows) -> torch.Tensor:
    own_M1 = rows.of_asked(rows.target_NV)[:, None]
    return (rows.target_NV[rows.asked_node_M] > own_M1).sum(-1).float()


def supported(rows: Rows) -> torch.Tensor:
    """Temperature alone removes nothing; at 0 the filters are taken of the raw row."""
    return (rows.of_asked(rows.filtered_NV) > -math.inf).float()


def draft_logit(rows: Rows) -> torch.Tensor:
    return rows.of_asked_drafts(rows.draft_NR, -math.inf)


def draft_prob(rows: Rows) -> torch.Tensor:
    prob_NR = torch.softmax(rows.draft_NR, dim=-1, dtype=torch.float32)
    return rows.of_asked_drafts(prob_NR, 0.0)


def top1(rows: Rows) -> torch.Tensor:
    return rows.raw_prob_NV.amax(-1)


def entropy(rows: Rows) -> torch.Tensor:
    return torch.special.entr(rows.raw_prob_NV).sum(-1)


def flatness(rows: Rows) -> torch.Tensor:
    return entropy(rows) / math.log(rows.target_NV.shape[1])


def judged(rows: Rows, *, name: str) -> torch.Tensor:
    """D of the two raw rows, NaN where the drafter has none."""
    return divergence(name, rows.target_NV, rows.draft_NR, rows.tree.draft_token_R)


COLUMNS: dict[str, Callable[[Rows], torch.Tensor]] = {
    "prob": prob,
    "log_prob": log_prob,
    "raw_prob": raw_prob,
    "regret": regret,
    "rank": rank,
    "supported": supported,
    "draft_logit": draft_logit,
    "draft_prob": draft_prob,
    "top1": top1,
    "entropy": entropy,
    "flatness": flatness,
    **{name: partial(judged, name=name) for name in DIVERGENCES},
}

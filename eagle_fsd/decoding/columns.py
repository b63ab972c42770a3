"""Columns: what a rule may know of a node, each a pure function from Rows to one float a node.

A column is either about a place, which is the distribution after a node, or about a draft, which is
a node's own token after its parent. For any number of rows it gives one number a row, or one a
draft asked about.

    PLACES
    top1           the target's probability of its likeliest token, without any filter
    entropy        the entropy of the target's distribution without any filter, in nats
    flatness       the entropy over that of a uniform distribution, 0 to 1
    js, tv, ...    every divergence of the two raw rows (divergence.py)

    DRAFTS
    prob           P(token), P being the target's distribution after temperature, top-k and top-p;
                   at temperature 0 it is 1 for the argmax and 0 for every other token
    log_prob       log P(token); at temperature 0 it is 0 or -inf
    raw_prob       the target's probability of the token without any filter, at every temperature
    regret         log P(argmax) - log P(token) without any filter, in nats
    rank           how many tokens have a larger raw logit
    supported      1 where explicitly set top-k and top-p leave the token, else 0
    draft_logit    the drafter's raw logit of the token; Q, its distribution, is their softmax
    draft_prob     Q(token)

Where the drafter has no distribution, columns that ask for it are NaN.

Axes: N nodes, M of them whose rows are looked at, C drafts asked about, V vocabulary, R draft
vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.divergence import DIVERGENCES, divergence
from eagle_fsd.decoding.sampling import argmax, filter_logits, next_token_probs
from eagle_fsd.decoding.tree import DraftTree


@dataclass(frozen=True)
class Rows:
    """Some nodes of a tree with the target's raw logits after them, drafts asked about, and what is
    computed of the rows once for all columns.

    Attributes:
        target_logits_NV: row i is about the token AFTER node i.
        node_M: the nodes whose rows are looked at.
        row_C, token_C: each draft asked about: the number of its parent's row among these, and its
            token.
    """

    tree: DraftTree
    target_logits_NV: torch.Tensor
    node_M: torch.Tensor | slice
    row_C: torch.Tensor
    token_C: torch.Tensor
    sampling: SamplingConfig

    @classmethod
    def of_tree(
        cls, tree: DraftTree, target_logits_NV: torch.Tensor, sampling: SamplingConfig
    ) -> "Rows":
        """All nodes, and every node as a draft; the root is none, so its entry as a draft has
        no meaning."""
        every = slice(None)
        return cls(tree, target_logits_NV, every, tree.parent_N, tree.token_N, sampling)

    @cached_property
    def target_MV(self) -> torch.Tensor:
        return self.target_logits_NV[self.node_M].float()

    @cached_property
    def argmax_M(self) -> torch.Tensor:
        return argmax(self.target_MV)

    @cached_property
    def best_M(self) -> torch.Tensor:
        """The largest logit; NaN where it is infinite, so that no regret is a number there."""
        best_M = self.target_MV.gather(1, self.argmax_M[:, None])[:, 0]
        return best_M + 0 * best_M

    @cached_property
    def filtered_MV(self) -> torch.Tensor:
        """The target's logits after the sampling filters; at temperature 0 as at 1."""
        warm = replace(self.sampling, temperature=self.sampling.temperature or 1.0)
        return filter_logits(self.target_MV, warm)

    @cached_property
    def prob_MV(self) -> torch.Tensor:
        """P, float32."""
        if self.sampling.temperature == 0:
            return next_token_probs(self.target_MV, self.sampling)
        return torch.softmax(self.filtered_MV, dim=-1)

    @cached_property
    def raw_prob_MV(self) -> torch.Tensor:
        return torch.softmax(self.target_MV, dim=-1)

    @cached_property
    def draft_MR(self) -> torch.Tensor:
        """The drafter's raw logits; NaN where it has none."""
        draft_ER, row_M = self.tree.draft_logits_ER, self.tree.draft_row_N[self.node_M]
        if draft_ER.shape[0] == 0:
            width = draft_ER.shape[1] or self.target_MV.shape[1]
            return self.target_MV.new_full((self.target_MV.shape[0], width), math.nan)
        return torch.where(row_M[:, None] < 0, math.nan, draft_ER[row_M.clamp_min(0)])

    @cached_property
    def draft_distribution_MV(self) -> torch.Tensor:
        """After the filters that make P, over the whole vocabulary; NaN where there is none."""
        prob_MV = next_token_probs(self.draft_MR, self.sampling)
        if self.tree.draft_token_R is not None:
            full_MV = torch.zeros_like(self.target_MV)
            prob_MV = full_MV.index_copy_(1, self.tree.draft_token_R, prob_MV)
        return prob_MV.masked_fill(self.draft_MR[:, :1].isnan(), math.nan)

    def of_asked(self, value_MV: torch.Tensor) -> torch.Tensor:
        """A table's values at the drafts asked about, float32 [C]."""
        return value_MV[self.row_C, self.token_C].float()

    def of_asked_drafts(self, value_MR: torch.Tensor, outside: float) -> torch.Tensor:
        """The same for a table over the draft vocabulary; `outside` for tokens that are not in it
        (text that was looked up), NaN where the drafter has no row."""
        token_R = self.tree.draft_token_R
        if token_R is None:
            return self.of_asked(value_MR)
        column_C = torch.searchsorted(token_R, self.token_C).clamp_max(token_R.shape[0] - 1)
        value_C = value_MR[self.row_C, column_C].float()
        known_C = (token_R[column_C] == self.token_C) | value_C.isnan()
        return value_C.masked_fill(~known_C, outside)


def prob(rows: Rows) -> torch.Tensor:
    if rows.sampling.temperature == 0:
        return (rows.token_C == rows.argmax_M[rows.row_C]).float()
    return rows.of_asked(rows.prob_MV)


def log_prob(rows: Rows) -> torch.Tensor:
    """Exact where P itself is too small for a float32."""
    if rows.sampling.temperature == 0:
        return prob(rows).log()
    return rows.of_asked(torch.log_softmax(rows.filtered_MV, dim=-1))


def raw_prob(rows: Rows) -> torch.Tensor:
    return rows.of_asked(rows.raw_prob_MV)


def regret(rows: Rows) -> torch.Tensor:
    return rows.best_M[rows.row_C] - rows.of_asked(rows.target_MV)


def rank(rows: Rows) -> torch.Tensor:
    own_C1 = rows.of_asked(rows.target_MV)[:, None]
    return (rows.target_MV[rows.row_C] > own_C1).sum(-1).float()


def supported(rows: Rows) -> torch.Tensor:
    """Temperature alone removes nothing; at 0 the filters are taken of the raw row."""
    return (rows.of_asked(rows.filtered_MV) > -math.inf).float()


def draft_logit(rows: Rows) -> torch.Tensor:
    return rows.of_asked_drafts(rows.draft_MR, -math.inf)


def draft_prob(rows: Rows) -> torch.Tensor:
    prob_MR = torch.softmax(rows.draft_MR, dim=-1, dtype=torch.float32)
    return rows.of_asked_drafts(prob_MR, 0.0)


def top1(rows: Rows) -> torch.Tensor:
    return rows.raw_prob_MV.amax(-1)


def entropy(rows: Rows) -> torch.Tensor:
    return torch.special.entr(rows.raw_prob_MV).sum(-1)


def flatness(rows: Rows) -> torch.Tensor:
    return entropy(rows) / math.log(rows.target_MV.shape[1])


def judged(rows: Rows, *, name: str) -> torch.Tensor:
    """D of the two raw rows, NaN where the drafter has none."""
    return divergence(name, rows.target_MV, rows.draft_MR, rows.tree.draft_token_R)


Column = Callable[[Rows], torch.Tensor]
PLACES: dict[str, Column] = {
    "top1": top1,
    "entropy": entropy,
    "flatness": flatness,
    **{name: partial(judged, name=name) for name in DIVERGENCES},
}
DRAFTS: dict[str, Column] = {
    "prob": prob,
    "log_prob": log_prob,
    "raw_prob": raw_prob,
    "regret": regret,
    "rank": rank,
    "supported": supported,
    "draft_logit": draft_logit,
    "draft_prob": draft_prob,
}

"""Columns: what a rule may know of a node, each a pure function from Rows to one float a node.

A column is either about a place, which is the distribution after a node, or about a draft, which is
a node's own token after its parent. It gives one number a row, or one a draft. A further column is
a function and an entry in one of the two tables.

    PLACES
    top1           the target's probability of its likeliest token, without any filter
    entropy        the entropy of the target's distribution without any filter, in nats
    log_goes_on    log of P of all tokens that are no stop tokens, above temperature 0
    js, tv, ...    every divergence of the two raw rows (divergence.py)

    DRAFTS
    prob           P(token), P being the target's distribution after temperature, top-k and top-p;
                   at temperature 0 it is 1 for the argmax and 0 for every other token
    log_prob       log P(token); at temperature 0 it is 0 or -inf
    raw_prob       the target's probability of the token without any filter, at every temperature
    regret         the largest raw logit less the token's: how much less probable it is, in nats
    rank           how many tokens have a larger raw logit
    supported      1 where explicitly set top-k and top-p leave the token, else 0
    draft_logit    the drafter's raw logit of the token; Q, its distribution, is their softmax
    draft_prob     Q(token)

Q, and so every column that asks for it, is NaN where the drafter has no distribution after the
draft's parent: for all drafts of an ngram tree, and in a hybrid tree for those looked up in the
text that stand below a draft which the head did not expand. Comparisons with NaN are false, so that
`q >= 0.1` turns such a draft down and `not q < 0.1` takes it.

Axes: M places, which are rows of logits; C drafts behind them; E rows of the drafter; V vocabulary,
R draft vocabulary.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.divergence import DIVERGENCES, divergence
from eagle_fsd.decoding.sampling import argmax, filter_logits, next_token_probs


@dataclass(frozen=True)
class Rows:
    """Places with the logits of both models, and the drafts that stand behind them.

    Attributes:
        target_MV: the target's raw logits of the token AFTER each place, float32.
        row_C, token_C: each draft: the number of its parent's row among these, and its token.
        draft_row_M: which row of the drafter's raw logits is a place's; -1 where it has none.
        draft_token_R, max_children: see DraftTree.
        stop_token_ids: tokens that end the answer.
    """

    target_MV: torch.Tensor
    row_C: torch.Tensor
    token_C: torch.Tensor
    sampling: SamplingConfig
    draft_logits_ER: torch.Tensor
    draft_row_M: torch.Tensor
    draft_token_R: torch.Tensor | None = None
    max_children: int | None = None
    stop_token_ids: Collection[int] = ()

    @cached_property
    def child_MK(self) -> torch.Tensor:
        """The tokens of the drafts behind each place, in their order; -1: no more."""
        rank_C = (self.row_C[:, None] == self.row_C).tril(-1).sum(1)  # among its siblings
        places, width = self.target_MV.shape[0], self.max_children or len(self.token_C)
        child_MK = self.token_C.new_full((places, width), -1)
        child_MK[self.row_C, rank_C] = self.token_C
        return child_MK

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
        if self.sampling.temperature == 0:
            return next_token_probs(self.target_MV, self.sampling)
        return torch.softmax(self.filtered_MV, dim=-1)

    @cached_property
    def log_prob_MV(self) -> torch.Tensor:
        """log P above temperature 0."""
        return torch.log_softmax(self.filtered_MV, dim=-1)

    @cached_property
    def raw_prob_MV(self) -> torch.Tensor:
        return torch.softmax(self.target_MV, dim=-1)

    @cached_property
    def draft_MR(self) -> torch.Tensor:
        draft_ER, row_M1 = self.draft_logits_ER, self.draft_row_M[:, None]
        if draft_ER.shape[0] == 0:
            width = draft_ER.shape[1] or self.target_MV.shape[1]
            return self.target_MV.new_full((self.target_MV.shape[0], width), math.nan)
        return torch.where(row_M1 < 0, math.nan, draft_ER[self.draft_row_M.clamp_min(0)])

    @cached_property
    def draft_distribution_MV(self) -> torch.Tensor:
        """The drafter's distribution after the filters that make P, over the whole vocabulary; NaN
        where there is none."""
        prob_MV = next_token_probs(self.draft_MR, self.sampling)
        if self.draft_token_R is not None:
            full_MV = torch.zeros_like(self.target_MV)
            prob_MV = full_MV.index_copy_(1, self.draft_token_R, prob_MV)
        return prob_MV.masked_fill(self.draft_MR[:, :1].isnan(), math.nan)

    def at_drafts(self, value_MV: torch.Tensor) -> torch.Tensor:
        return value_MV[self.row_C, self.token_C].float()

    def at_drafts_of_drafter(self, value_MR: torch.Tensor, outside: float) -> torch.Tensor:
        """The same for a table over the draft vocabulary; `outside` for tokens that are not in it
        (text that was looked up), NaN where the drafter has no row."""
        token_R = self.draft_token_R
        if token_R is None:
            return self.at_drafts(value_MR)
        column_C = torch.searchsorted(token_R, self.token_C).clamp_max(token_R.shape[0] - 1)
        value_C = value_MR[self.row_C, column_C].float()
        missing_C = (token_R[column_C] != self.token_C) & ~value_C.isnan()
        return torch.where(missing_C, outside, value_C)


def prob(rows: Rows) -> torch.Tensor:
    if rows.sampling.temperature == 0:
        return (rows.token_C == rows.argmax_M[rows.row_C]).float()
    return rows.at_drafts(rows.prob_MV)


def log_prob(rows: Rows) -> torch.Tensor:
    """Exact where P itself is too small for a float32."""
    if rows.sampling.temperature == 0:
        return prob(rows).log()
    return rows.at_drafts(rows.log_prob_MV)


def raw_prob(rows: Rows) -> torch.Tensor:
    return rows.at_drafts(rows.raw_prob_MV)


def regret(rows: Rows) -> torch.Tensor:
    return rows.best_M[rows.row_C] - rows.at_drafts(rows.target_MV)


def rank(rows: Rows) -> torch.Tensor:
    own_C1 = rows.at_drafts(rows.target_MV)[:, None]
    return (rows.target_MV[rows.row_C] > own_C1).sum(-1).float()


def supported(rows: Rows) -> torch.Tensor:
    return (rows.at_drafts(rows.filtered_MV) > -math.inf).float()


def draft_logit(rows: Rows) -> torch.Tensor:
    return rows.at_drafts_of_drafter(rows.draft_MR, -math.inf)


def draft_prob(rows: Rows) -> torch.Tensor:
    prob_MR = torch.softmax(rows.draft_MR, dim=-1, dtype=torch.float32)
    return rows.at_drafts_of_drafter(prob_MR, 0.0)


def top1(rows: Rows) -> torch.Tensor:
    return rows.raw_prob_MV.amax(-1)


def entropy(rows: Rows) -> torch.Tensor:
    return torch.special.entr(rows.raw_prob_MV).sum(-1)


def log_goes_on(rows: Rows) -> torch.Tensor:
    """Exact where an end is all but certain, and what is left too small for 1 - P."""
    left_MV = rows.log_prob_MV.clone()
    for token in rows.stop_token_ids:
        left_MV[:, token : token + 1] = -math.inf  # an id beyond the vocabulary is no column
    return left_MV.logsumexp(-1)


def raw_divergence(rows: Rows, *, name: str) -> torch.Tensor:
    return divergence(name, rows.target_MV, rows.draft_MR, rows.draft_token_R)


Column = Callable[[Rows], torch.Tensor]
PLACES: dict[str, Column] = {
    "top1": top1,
    "entropy": entropy,
    "log_goes_on": log_goes_on,
    **{name: partial(raw_divergence, name=name) for name in DIVERGENCES},
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

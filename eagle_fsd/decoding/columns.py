"""Columns: what a rule may know of a place (a node) or of a draft, each a pure row function.

A column takes Rows and gives one value a row ([M], of a place: the distribution after that node) or
one a token asked about ([M, C], of a draft: a token after that node), for any number of rows.

    prob           P, the target's distribution after temperature, top-k and top-p
    log_prob       its logarithm
    max_prob       of the likeliest token
    raw_prob       the target's probability without any filter
    regret         log P(argmax) - log P(token), raw, nats: what a step costs beside the best one
    rank           how many tokens have a larger raw logit
    top1           the raw probability of the target's likeliest token
    entropy        of the target's raw distribution, nats
    flatness       the same over that of a uniform distribution, 0 to 1
    supported      1 where explicitly set top-k and top-p leave the token, else 0
    draft_logit    the draft's raw logit; Q is its softmax
    draft_prob     Q
    sampled_prob   the same after temperature, top-k and top-p: what a sampled draft was drawn from
    js, tv, ...    every divergence of the two raw rows, and X_processed after the sampling filters

Axes: N nodes, M of them, V vocabulary, R draft vocabulary, C tokens asked about.
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
    """Nodes of a verified tree with the target's raw logits, and the tokens asked about, the same
    after every node."""

    tree: DraftTree
    target_logits_NV: torch.Tensor
    node_M: torch.Tensor | slice
    token_C: torch.Tensor
    sampling: SamplingConfig

    @cached_property
    def target_MV(self) -> torch.Tensor:
        return self.target_logits_NV[self.node_M].float()

    @cached_property
    def argmax_M(self) -> torch.Tensor:
        return self.target_MV.argmax(-1)

    @cached_property
    def best_M1(self) -> torch.Tensor:
        """The largest logit; NaN where it is infinite, so that no regret is a number there."""
        best_M1 = self.target_MV.amax(-1, keepdim=True)
        return best_M1 + 0 * best_M1

    @cached_property
    def filtered_MV(self) -> torch.Tensor:
        """The target's logits after the sampling filters; at temperature 0 as at 1."""
        warm = replace(self.sampling, temperature=self.sampling.temperature or 1.0)
        return filter_logits(self.target_MV, warm)

    @cached_property
    def raw_prob_MV(self) -> torch.Tensor:
        return torch.softmax(self.target_MV, dim=-1)

    @cached_property
    def prob_MV(self) -> torch.Tensor:
        """P, float32."""
        if self.sampling.temperature == 0:
            return next_token_probs(self.target_MV, self.sampling)
        return torch.softmax(self.filtered_MV, dim=-1)

    @cached_property
    def draft_MR(self) -> torch.Tensor:
        """The draft's raw logits; NaN where it has none."""
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

    def of_tokens(self, value_MV: torch.Tensor) -> torch.Tensor:
        """A table's values at the tokens asked about, float32 [M, C]."""
        return value_MV.index_select(1, self.token_C).float()

    def of_draft_tokens(self, value_MR: torch.Tensor, outside: float) -> torch.Tensor:
        """The same for a table over the draft vocabulary; `outside` for tokens that are not in it
        (text that was looked up), NaN where the draft has no row."""
        token_R = self.tree.draft_token_R
        if token_R is None:
            return self.of_tokens(value_MR)
        column_C = torch.searchsorted(token_R, self.token_C).clamp_max(token_R.shape[0] - 1)
        value_MC = value_MR.index_select(1, column_C).float()
        known_MC = (token_R[column_C] == self.token_C) | value_MC.isnan()
        return value_MC.masked_fill(~known_MC, outside)


def prob(rows: Rows) -> torch.Tensor:
    if rows.sampling.temperature == 0:
        return (rows.token_C == rows.argmax_M[:, None]).float()
    return rows.of_tokens(rows.prob_MV)


def log_prob(rows: Rows) -> torch.Tensor:
    """Exact where P itself is too small for a float32."""
    if rows.sampling.temperature == 0:
        return prob(rows).log()
    return rows.of_tokens(torch.log_softmax(rows.filtered_MV, dim=-1))


def max_prob(rows: Rows) -> torch.Tensor:
    return rows.prob_MV.amax(-1)


def raw_prob(rows: Rows) -> torch.Tensor:
    return rows.of_tokens(torch.log_softmax(rows.target_MV, dim=-1)).exp()


def regret(rows: Rows) -> torch.Tensor:
    return rows.best_M1 - rows.of_tokens(rows.target_MV)


def rank(rows: Rows) -> torch.Tensor:
    columns = [rows.target_MV > own_M[:, None] for own_M in rows.of_tokens(rows.target_MV).T]
    return torch.stack([above_MV.sum(1) for above_MV in columns], dim=1).float()


def top1(rows: Rows) -> torch.Tensor:
    return rows.raw_prob_MV.amax(-1)


def entropy(rows: Rows) -> torch.Tensor:
    return torch.special.entr(rows.raw_prob_MV).sum(-1)


def flatness(rows: Rows) -> torch.Tensor:
    return entropy(rows) / math.log(rows.target_MV.shape[1])


def supported(rows: Rows) -> torch.Tensor:
    """Temperature alone removes nothing; at 0 the filters are taken of the raw row."""
    return (rows.of_tokens(rows.filtered_MV) > -math.inf).float()


def draft_logit(rows: Rows) -> torch.Tensor:
    return rows.of_draft_tokens(rows.draft_MR, -math.inf)


def draft_prob(rows: Rows) -> torch.Tensor:
    return rows.of_draft_tokens(torch.softmax(rows.draft_MR, dim=-1, dtype=torch.float32), 0.0)


def sampled_prob(rows: Rows) -> torch.Tensor:
    return rows.of_tokens(rows.draft_distribution_MV)


def judged(rows: Rows, *, name: str, processed: bool) -> torch.Tensor:
    """D of the two rows (divergence.py), NaN where the draft has none."""
    target_MV, draft_MR = rows.target_MV, rows.draft_MR
    if processed:
        target_MV, draft_MR = rows.filtered_MV, filter_logits(draft_MR, rows.sampling)
    return divergence(name, target_MV, draft_MR, rows.tree.draft_token_R)


def divergence_column(name: str, logits: str) -> str:
    return name if logits == "raw" else f"{name}_processed"


COLUMNS: dict[str, Callable[[Rows], torch.Tensor]] = {
    "prob": prob,
    "log_prob": log_prob,
    "max_prob": max_prob,
    "raw_prob": raw_prob,
    "regret": regret,
    "rank": rank,
    "top1": top1,
    "entropy": entropy,
    "flatness": flatness,
    "supported": supported,
    "draft_logit": draft_logit,
    "draft_prob": draft_prob,
    "sampled_prob": sampled_prob,
    **{
        divergence_column(name, logits): partial(judged, name=name, processed=logits == "processed")
        for name in DIVERGENCES
        for logits in ("raw", "processed")
    },
}

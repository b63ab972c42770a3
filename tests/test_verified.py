"""Columns against float64 formulas.

Axes: N nodes, M rows, V vocabulary, R draft vocabulary.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from reference_accept import (
    REFERENCE_DIVERGENCES,
    SAMPLINGS,
    WARM,
    slow_divergence,
    slow_filter,
    slow_p,
)

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows

V, R = 13, 7
COLUMNS = PLACES | DRAFTS
# those of the tables with a formula here; a further entry is tested by its own tests
REFERENCE_COLUMNS = ("top1", "entropy", "prob", "log_prob", "raw_prob", "regret")
REFERENCE_COLUMNS += ("rank", "supported", "draft_logit", "draft_prob", *REFERENCE_DIVERGENCES)


def random_rows(seed: int, sampling: SamplingConfig, reduced: bool) -> Rows:
    """Five nodes, of which the second has no draft; after each all tokens are asked about."""
    generator = torch.Generator().manual_seed(seed)
    target_NV = 2 * torch.randn(5, V, generator=generator)
    if not sampling.top_k:  # transformers' top-k keeps all that are tied for the last place
        target_NV = target_NV.round()
    token_R = torch.randperm(V, generator=generator)[:R].sort().values if reduced else None
    draft_ER = torch.randn(3, R if reduced else V, generator=generator)
    asked = torch.arange(5).repeat_interleave(V), torch.arange(V).repeat(5)
    draft_row_M = torch.tensor([2, -1, 0, 1, 2])
    return Rows(target_NV, *asked, sampling, draft_ER, draft_row_M, token_R)


def slow_column(name: str, target: list[float], draft: list[float] | None, sampling):
    """A column's value at a place, or of all tokens after it, in float64."""
    p, raw = slow_p(target, sampling), slow_p(target, WARM)
    if name in REFERENCE_DIVERGENCES:
        return math.nan if draft is None else slow_divergence(name, target, draft)
    if name in ("draft_logit", "draft_prob") and draft is None:
        return [math.nan] * len(target)
    warm = replace(sampling, temperature=sampling.temperature or 1.0)
    entropy = -math.fsum(x * math.log(x) for x in raw)
    return {
        "rank": lambda: [sum(other > x for other in target) for x in target],
        "top1": lambda: max(raw),
        "entropy": lambda: entropy,
        "prob": lambda: p,
        "log_prob": lambda: [math.log(x) if x else -math.inf for x in p],
        "raw_prob": lambda: raw,
        "regret": lambda: [math.log(max(raw) / x) for x in raw],
        "supported": lambda: [float(x > -math.inf) for x in slow_filter(target, warm)],
        "draft_logit": lambda: draft,
        "draft_prob": lambda: slow_p(draft, WARM),
    }[name]()


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", REFERENCE_COLUMNS)
def test_columns_are_their_formulas(name, reduced):
    """In float32 to 1e-5; NaN where the draft has no row; Q = 0 outside a reduced vocabulary.

    Bug held down: a token outside the draft vocabulary got the value of its neighbour in it.
    """
    for seed, sampling in itertools.product(range(2), SAMPLINGS):
        rows = random_rows(seed, sampling, reduced)
        got = COLUMNS[name](rows)
        assert got.dtype == torch.float32 and got.ndim == 1
        got = got.reshape(5, -1).squeeze(1).tolist()  # of a place, or of each token after it
        token_R = rows.draft_token_R.tolist() if reduced else range(V)
        for node, row in enumerate(rows.draft_row_M.tolist()):
            draft = None
            if row >= 0:
                values = rows.draft_logits_ER[row].double().tolist()
                drafted = dict(zip(token_R, values, strict=True))
                draft = [drafted.get(token, -math.inf) for token in range(V)]
            want = slow_column(name, rows.target_MV[node].double().tolist(), draft, sampling)
            want = pytest.approx(want, rel=1e-4, abs=1e-5, nan_ok=True)
            assert got[node] == want, (seed, node, sampling)


@pytest.mark.parametrize("reduced", [False, True])
def test_rejection_sees_the_draft_s_distribution_over_the_whole_vocabulary(reduced):
    """After the filters of P, which see the tokens that can be drafted; 0 outside them."""
    for sampling in SAMPLINGS:
        rows = random_rows(4, sampling, reduced)
        token_R = rows.draft_token_R.tolist() if reduced else range(V)
        for row, got in zip(rows.draft_row_M, rows.draft_distribution_MV.tolist(), strict=True):
            if row < 0:
                assert all(map(math.isnan, got))
                continue
            drafted = slow_p(rows.draft_logits_ER[row].double().tolist(), sampling)
            want = dict(zip(token_R, drafted, strict=True))
            assert got == pytest.approx([want.get(token, 0.0) for token in range(V)], abs=1e-6)


def test_logarithms_hold_where_float32_has_no_p():
    """A price compares them; e^-150 is 0 in float32."""
    logits_1V = torch.tensor([[0.0] + [-150.0] * 12])
    asked = {"row_C": torch.zeros(2, dtype=torch.int64), "token_C": torch.arange(2)}
    rows = replace(random_rows(0, WARM, False), target_MV=logits_1V, stop_token_ids={0}, **asked)
    assert COLUMNS["log_prob"](rows).tolist() == pytest.approx([0.0, -150.0])
    assert COLUMNS["prob"](rows)[1] == 0
    assert COLUMNS["log_goes_on"](rows).item() == pytest.approx(math.log(12) - 150)


def test_an_answer_goes_on_with_what_is_no_stop_token():
    """Of what top-k and top-p leave; a stop token that the model does not have is none of it."""
    for sampling, stop in itertools.product(SAMPLINGS[1:], ((), (3,), (3, 5, 10**6))):
        rows = replace(random_rows(0, sampling, False), stop_token_ids=stop)
        for got, row in zip(COLUMNS["log_goes_on"](rows), rows.target_MV.tolist(), strict=True):
            p = slow_p(row, sampling)
            left = math.fsum(x for token, x in enumerate(p) if token not in stop)
            assert math.exp(got) == pytest.approx(left, abs=1e-6)

"""Columns against float64 formulas, and what a verified tree tells a rule.

Axes: N nodes, V vocabulary, R draft vocabulary, M questions.
"""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from reference_accept import (
    REFERENCE_DIVERGENCES,
    random_round,
    slow_divergence,
    slow_filter,
    slow_p,
)

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.verified import Rule
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.rules.price import PathRule, Ratio

GREEDY, FILTERED, WARM = SamplingConfig(), SamplingConfig(0.7, 7, 0.9), SamplingConfig(1.0)
V, R = 13, 7
COLUMNS = PLACES | DRAFTS
# those of the tables with a formula here; a further entry is tested by its own tests
REFERENCE_COLUMNS = ("top1", "entropy", "flatness", "prob", "log_prob", "raw_prob", "regret")
REFERENCE_COLUMNS += ("rank", "supported", "draft_logit", "draft_prob", *REFERENCE_DIVERGENCES)


# --- columns --------------------------------------------------------------------------------------


def random_rows(seed: int, sampling: SamplingConfig, reduced: bool) -> Rows:
    """Five nodes, of which the second has no draft; after each all tokens are asked about."""
    generator = torch.Generator().manual_seed(seed)
    target_NV = 2 * torch.randn(5, V, generator=generator)
    if not sampling.top_k:  # transformers' top-k keeps all that are tied for the last place
        target_NV = target_NV.round()
    token_R = torch.randperm(V, generator=generator)[:R].sort().values if reduced else None
    zero_N, row_N = torch.zeros(5, dtype=torch.int64), torch.tensor([2, -1, 0, 1, 2])
    draft_ER = torch.randn(3, R if reduced else V, generator=generator)
    tree = DraftTree(zero_N, zero_N, row_N, draft_ER, 0, token_R)
    asked = torch.arange(5).repeat_interleave(V), torch.arange(V).repeat(5)
    return Rows(tree, target_NV, slice(None), *asked, sampling)


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
        "flatness": lambda: entropy / math.log(len(raw)),
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
    for seed, sampling in itertools.product(range(2), (GREEDY, FILTERED, WARM)):
        rows = random_rows(seed, sampling, reduced)
        got = COLUMNS[name](rows)
        assert got.dtype == torch.float32 and got.ndim == 1
        got = got.reshape(5, -1).squeeze(1).tolist()  # of a place, or of each token after it
        tree = rows.tree
        token_R = tree.draft_token_R.tolist() if reduced else range(V)
        for node, row in enumerate(tree.draft_row_N.tolist()):
            draft = None
            if row >= 0:
                values = tree.draft_logits_ER[row].double().tolist()
                drafted = dict(zip(token_R, values, strict=True))
                draft = [drafted.get(token, -math.inf) for token in range(V)]
            want = slow_column(name, rows.target_MV[node].double().tolist(), draft, sampling)
            want = pytest.approx(want, rel=1e-4, abs=1e-5, nan_ok=True)
            assert got[node] == want, (seed, node, sampling)


def test_of_a_whole_tree_a_column_is_one_float_a_node():
    """Of a draft after its parent, of a place after the node itself."""
    tree, logits_NV, _ = random_round(3)
    rows = Rows.of_tree(tree, logits_NV, WARM)
    for node, parent in enumerate(tree.parent_N.tolist()):
        raw = slow_p(logits_NV[parent].tolist(), WARM)
        assert COLUMNS["raw_prob"](rows)[node] == pytest.approx(raw[tree.token_N[node]], rel=1e-4)
        own = slow_p(logits_NV[node].tolist(), WARM)
        assert COLUMNS["top1"](rows)[node] == pytest.approx(max(own), rel=1e-4)


@pytest.mark.parametrize("reduced", [False, True])
def test_rejection_sees_the_draft_s_distribution_over_the_whole_vocabulary(reduced):
    """After the filters of P, which see the tokens that can be drafted; 0 outside them."""
    for sampling in (GREEDY, FILTERED, WARM):
        rows = random_rows(4, sampling, reduced)
        token_R = rows.tree.draft_token_R.tolist() if reduced else range(V)
        for row, got in zip(
            rows.tree.draft_row_N, rows.draft_distribution_MV.tolist(), strict=True
        ):
            if row < 0:
                assert all(map(math.isnan, got))
                continue
            drafted = slow_p(rows.tree.draft_logits_ER[row].double().tolist(), sampling)
            want = dict(zip(token_R, drafted, strict=True))
            assert got == pytest.approx([want.get(token, 0.0) for token in range(V)], abs=1e-6)


def test_log_prob_holds_where_float32_has_no_p():
    """A price compares logarithms; e^-150 is 0 in float32."""
    logits_1V = torch.tensor([[0.0] + [-150.0] * 12])
    asked = {"row_C": torch.zeros(2, dtype=torch.int64), "token_C": torch.arange(2)}
    rows = replace(random_rows(0, WARM, False), target_logits_NV=logits_1V, **asked)
    assert COLUMNS["log_prob"](rows).tolist() == pytest.approx([0.0, -150.0])
    assert COLUMNS["prob"](rows)[1] == 0


# --- what may be asked ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking(Rule):
    """Asks for a column of the first child, or of the root."""

    column: str = "prob"
    named: str = "raw_prob"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.named,)

    def after(self, tree, accepted, state):
        return tree.value(self.column, 0 if self.column in PLACES else tree.children[0][0])


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_column_that_was_not_named_raises(sampling):
    """One that was named gives its number. `regret` is always there: acceptance records it.

    Bugs held down: `prob` at temperature 0 needed no name, and `log_prob` at temperature 0 raised
    though it was named.
    """
    round_ = random_round(3)
    target = round_[1][0].double().tolist()
    token = round_[0].token_N[1].item()
    for column in COLUMNS:
        policy = Policy(Asking(column), sampling)
        if column not in ("raw_prob", "regret"):
            with pytest.raises(KeyError, match=column):
                accept(*round_, policy=policy)
        _, got = accept(*round_, policy=Policy(Asking(column, column), sampling))
        assert isinstance(got, float)
        if column not in REFERENCE_COLUMNS:
            continue
        draft = round_[0].draft_logits_ER[round_[0].draft_row_N[0]].double().tolist()
        want = slow_column(column, target, draft, sampling)
        want = want[token] if isinstance(want, list) else want
        assert got == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_full_records_judge_every_visited_parent_lean_ones_only_where_asked():
    """D of rules without one is js in full records, and absent from lean ones."""
    some = 0
    for seed, sampling in itertools.product(range(8), (GREEDY, WARM)):
        tree, *_ = round_ = random_round(seed)
        for rule in (Exact(), Ratio(1.0), PathRule(1.0), Fsd(0.0), Fsd(0.2, divergence="tv")):
            lean, _ = accept(*round_, policy=Policy(rule, sampling))
            full, _ = accept(*round_, policy=Policy(rule, sampling, record="full"))
            parents = [v in tree.parent_N[1:] for v in full.path]
            assert [not math.isnan(d) for d in full.divergence] == parents
            assert (lean.path, lean.tokens) == (full.path, full.tokens)
            if not (isinstance(rule, Fsd) and sampling is WARM):  # its TV would ask for D
                assert lean.tv == full.tv
            if isinstance(rule, Fsd):
                for d, other in zip(lean.divergence, full.divergence, strict=True):
                    assert d == other or math.isnan(d)
                missed = [v for v, d in zip(lean.path, lean.divergence, strict=True) if d == d]
                some += 0 < len(missed) < sum(parents)
            else:
                assert all(math.isnan(d) for d in lean.divergence)
    assert some > 0

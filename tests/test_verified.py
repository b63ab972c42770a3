"""Columns against float64 formulas, laws of rules, and what a verified tree tells whom.

Axes: N nodes, V vocabulary, R draft vocabulary, C tokens asked about.
"""

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from reference_accept import (
    chi_square_p,
    random_round,
    slow_divergence,
    slow_draw,
    slow_filter,
    slow_p,
)

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.columns import COLUMNS, Rows
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.rule import Rule
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.rules.price import PathRule, Ratio

GREEDY, FILTERED, WARM = SamplingConfig(), SamplingConfig(0.7, 7, 0.9), SamplingConfig(1.0)
V, R = 13, 7


# --- columns --------------------------------------------------------------------------------------


def random_rows(seed: int, sampling: SamplingConfig, reduced: bool) -> Rows:
    """Five nodes, of which the second has no draft; each asks about all tokens."""
    generator = torch.Generator().manual_seed(seed)
    target_NV = 2 * torch.randn(5, V, generator=generator)
    if not sampling.top_k:  # transformers' top-k keeps all that are tied for the last place
        target_NV = target_NV.round()
    token_R = torch.randperm(V, generator=generator)[:R].sort().values if reduced else None
    zero_N, row_N = torch.zeros(5, dtype=torch.int64), torch.tensor([2, -1, 0, 1, 2])
    draft_ER = torch.randn(3, R if reduced else V, generator=generator)
    tree = DraftTree(zero_N, zero_N, row_N, draft_ER, 0, token_R)
    return Rows(tree, target_NV, slice(None), torch.arange(V), sampling)


def slow_column(name: str, target: list[float], draft: list[float] | None, sampling):
    """A column's value at a place, or of all tokens, in float64; for processed divergences the
    draft comes after the filters."""
    p, raw = slow_p(target, sampling), slow_p(target, WARM)
    if name in DIVERGENCES or name.endswith("_processed"):
        if draft is None:
            return math.nan
        processed = name.endswith("_processed")
        rows = [slow_filter(target, sampling) if processed else target, draft]
        return slow_divergence(name.removesuffix("_processed"), *rows)
    if name in ("draft_logit", "draft_prob", "sampled_prob") and draft is None:
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
        "sampled_prob": lambda: slow_p(draft, sampling),
        "max_prob": lambda: max(p),
    }[name]()


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_their_formulas(name, reduced):
    """In float32 to 1e-5; NaN where the draft has no row; Q = 0 outside a reduced vocabulary.

    Bug held down: a token outside the draft vocabulary got the value of its neighbour in it.
    """
    for seed, sampling in itertools.product(range(2), (GREEDY, FILTERED, WARM)):
        if name.endswith("_processed") and sampling == GREEDY:
            continue
        rows = random_rows(seed, sampling, reduced)
        got = COLUMNS[name](rows)
        assert got.dtype == torch.float32
        tree = rows.tree
        token_R = tree.draft_token_R.tolist() if reduced else range(V)
        for m, row in enumerate(tree.draft_row_N.tolist()):
            draft = None
            if row >= 0:
                values = tree.draft_logits_ER[row].double().tolist()
                if name.endswith("_processed"):  # the filters see the tokens that can be drafted
                    values = slow_filter(values, sampling)
                drafted = dict(zip(token_R, values, strict=True))
                draft = [drafted.get(token, -math.inf) for token in range(V)]
            want = slow_column(name, rows.target_MV[m].double().tolist(), draft, sampling)
            want = pytest.approx(want, rel=1e-4, abs=1e-5, nan_ok=True)
            assert got[m].tolist() == want, (seed, m, sampling)


@pytest.mark.parametrize("reduced", [False, True])
def test_a_law_sees_the_draft_s_distribution_over_the_whole_vocabulary(reduced):
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
    rows = replace(random_rows(0, WARM, False), target_logits_NV=logits_1V)
    assert COLUMNS["log_prob"](rows)[0, :2].tolist() == pytest.approx([0.0, -150.0])
    assert COLUMNS["prob"](rows)[0, 1] == 0


# --- what may be asked ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking(Rule):
    """Asks for a column of the first child, or of the root."""

    column: str = "prob"
    named: str = "raw_prob"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.named,)

    def after(self, tree, path, state):
        place = COLUMNS[self.column](random_rows(0, WARM, False)).ndim == 1
        return tree.at(self.column, 0) if place else tree.of(self.column, tree.children[0][0])


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_column_that_was_not_named_raises(sampling, each_way):
    """One that was named gives its number.

    Bugs held down: `prob` at temperature 0 and `regret` on an accelerator needed no name, and
    `log_prob` at temperature 0 raised though it was named.
    """
    round_ = random_round(3)
    target = round_[1][0].double().tolist()
    token = round_[0].token_N[1].item()
    for column in COLUMNS:
        policy = Policy(Asking(column), sampling)
        if column != "raw_prob":
            with pytest.raises(KeyError, match=column):
                accept(*round_, policy=policy)
        if column.endswith("_processed") and sampling == GREEDY:
            continue
        _, (got,) = accept(*round_, policy=Policy(Asking(column, column), sampling))
        draft = round_[0].draft_logits_ER[round_[0].draft_row_N[0]].double().tolist()
        draft = slow_filter(draft, sampling) if column.endswith("_processed") else draft
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
            if isinstance(rule, Fsd) and rule.threshold:
                for d, other in zip(lean.divergence, full.divergence, strict=True):
                    assert d == other or math.isnan(d)
                missed = [v for v, d in zip(lean.path, lean.divergence, strict=True) if d == d]
                some += 0 < len(missed) < sum(parents)
            else:
                assert all(math.isnan(d) for d in lean.divergence)
    assert some > 0


# --- rules with a law -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture(Rule):
    """Emits from half P, half Q; from P alone where there is no Q."""

    columns: ClassVar[tuple[str, ...]] = ("prob", "log_prob")

    @staticmethod
    def law(prob_MV, draft_prob_MV, is_child_MV):
        return torch.where(draft_prob_MV.isnan(), prob_MV, 0.5 * (prob_MV + draft_prob_MV))

    def after(self, tree, path, state):
        return [tree.of("prob", c) for c in tree.children[0]]


def mixture(tree, logits_NV, sampling) -> list[list[float]]:
    """The law of every node, in float64."""
    laws = []
    for v, logits in enumerate(logits_NV.double().tolist()):
        p, row = slow_p(logits, sampling), tree.draft_row_N[v]
        q = slow_p(tree.draft_logits_ER[row].double().tolist(), sampling) if row >= 0 else p
        laws.append([(a + b) / 2 for a, b in zip(p, q, strict=True)])
    return laws


@pytest.mark.parametrize("sampling", [GREEDY, FILTERED, WARM])
def test_a_law_is_drawn_from_with_the_uniform_of_x(sampling, each_way):
    """y by the law, x by P, both by the same number; TV by the formula; fuzzy means y is not x.

    Bugs held down: at temperature 0 a node without a draft row had a draft distribution, and
    `prob` was that of y.
    """
    fuzzy = 0
    for seed in range(25):
        tree, logits_NV, uniform_S3 = random_round(seed)
        laws = mixture(tree, logits_NV, sampling)
        policy = Policy(Mixture(), sampling)
        got, (probs,) = accept(tree, logits_NV, uniform_S3, policy=policy)
        p_of = [slow_p(logits, sampling) for logits in logits_NV.double().tolist()]
        children = [c for c in range(1, tree.size) if tree.parent_N[c] == 0]
        want = [p_of[0][tree.token_N[c]] for c in children]
        assert probs == pytest.approx(want, abs=1e-6)
        for depth, (v, token) in enumerate(zip(got.path, got.tokens, strict=True)):
            uniform = uniform_S3[depth, 0].item()
            assert token == slow_draw(laws[v], uniform)
            assert got.fuzzy[depth] == (token != slow_draw(p_of[v], uniform))
            tv = 0.5 * math.fsum(abs(a - b) for a, b in zip(laws[v], p_of[v], strict=True))
            assert got.tv[depth] == pytest.approx(tv, abs=1e-6)
        fuzzy += sum(got.fuzzy)
    assert fuzzy > 2


def test_a_law_emits_what_it_says():
    """The first token of 1,200 rounds, by chi-square; y != x overstates how fuzzy that is."""
    tree, logits_NV, _ = random_round(4)
    block_RS3 = torch.rand(1200, 5, 3, generator=torch.Generator().manual_seed(1))
    policy, count, fuzzy = Policy(Mixture(), WARM), Counter(), 0
    for uniform_S3 in block_RS3:
        got, _ = accept(tree, logits_NV, uniform_S3, policy=policy)
        count[got.tokens[0]] += 1
        fuzzy += got.fuzzy[0]
    assert chi_square_p(count, dict(enumerate(mixture(tree, logits_NV, WARM)[0]))) > 1e-4
    assert fuzzy / 1200 > got.tv[0] - 0.03


def test_law_masks_the_drafted_tokens(each_way):
    """A law that keeps to drafted tokens: the mask is that of the node's children.

    Bug held down: on an accelerator it held drafts behind a stop token, which are nobody's.
    """

    @dataclass(frozen=True)
    class Confined(Rule):
        @staticmethod
        def law(prob_MV, draft_prob_MV, is_child_MV):
            return torch.where(is_child_MV.any(-1, keepdim=True), is_child_MV * prob_MV, prob_MV)

    ended = 0
    for seed in range(20):
        tree, *_ = round_ = random_round(seed)
        stop = set(tree.token_N[tree.parent_N[1:]].tolist()[1::3])
        for stops in ((), stop):
            got, _ = accept(*round_, policy=Policy(Confined(), WARM), stop_token_ids=stops)
            last = got.path[-1]
            at_end = last > 0 and tree.token_N[last].item() in stops
            assert at_end or last not in tree.parent_N[1:]
            assert not at_end or got.tv[-1] == 0
            ended += at_end and last in tree.parent_N[1:]
    assert ended > 2

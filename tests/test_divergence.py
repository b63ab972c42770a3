"""Divergences: against float64 references, by identity, and at the limits."""

import itertools
import math

import pytest
import torch
from reference_accept import REFERENCE_DIVERGENCES, slow_divergence

from eagle_fsd.decoding.divergence import DIVERGENCES, divergence


def logits_pairs(vocab: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Target and draft logits [V] of every kind: flat, peaked, one-hot, with zeros, both, near."""
    target_V, draft_V = torch.randn(2, vocab, generator=torch.Generator().manual_seed(0))
    hot_V = torch.full((vocab,), -math.inf).index_fill(0, torch.tensor(3), 1.5)
    return [
        (0.1 * target_V, 0.1 * draft_V),
        (9 * target_V, 9 * draft_V),
        (hot_V, draft_V),
        # each side has zeros that the other has not, and both share one
        (
            target_V.index_fill(0, torch.tensor([1, 2]), -math.inf),
            draft_V.index_fill(0, torch.tensor([2, 4]), -math.inf),
        ),
        (torch.zeros(vocab), 9 * draft_V),
        (target_V, target_V + 0.01 * draft_V),
    ]


@pytest.mark.parametrize("vocab", [5, 9973])
def test_agrees_with_float64(vocab):
    """Every divergence == the plain-Python float64 formula, in both directions; float32 result, of
    bfloat16 rows too."""
    for one_V, other_V in logits_pairs(vocab):
        pairs = [(one_V, other_V), (other_V, one_V), (one_V.bfloat16(), other_V)]
        for (target_V, draft_V), name in itertools.product(pairs, REFERENCE_DIVERGENCES):
            want = slow_divergence(name, target_V.tolist(), draft_V.tolist())
            got = divergence(name, target_V, draft_V)
            assert got.dtype == torch.float32 and got.shape == ()
            assert got.item() == pytest.approx(want, rel=1e-4, abs=2e-6), name


def test_bounds_are_kept_and_reached():
    """js in [0, ln 2], tv in [0, 1], others >= 0; disjoint supports reach the tops; D(p, p)
    is 0, and a constant added to a row's logits changes nothing."""
    pairs = logits_pairs(101)
    for target_V, draft_V in [*pairs, *((9 * t, 9 * d) for t, d in pairs)]:
        value = {name: divergence(name, target_V, draft_V) for name in DIVERGENCES}
        assert all(v >= 0 for v in value.values())
        assert value["js"] <= torch.tensor(math.log(2)) and value["tv"] <= 1
        assert all(0 <= divergence(name, target_V, target_V + 4) < 1e-5 for name in DIVERGENCES)
    apart_2V = torch.tensor([[0.3, -math.inf, 0.7], [-math.inf, 2.0, -math.inf]])
    assert divergence("js", *apart_2V).item() == pytest.approx(math.log(2))
    assert divergence("tv", *apart_2V).item() == pytest.approx(1)
    for name in ("kl_target_draft", "kl_draft_target", "js_reference"):
        assert divergence(name, *apart_2V) == math.inf


@pytest.mark.parametrize("name", ["kl_target_draft", "kl_draft_target", "js_reference"])
def test_underflowing_mass_is_not_nan(name):
    """Bug held down: mass of e^-120, which float32 rounds to 0, against none: 0 * inf was NaN."""
    low_V, none_V = torch.tensor([0.0, -120.0, 0.5]), torch.tensor([0.0, -math.inf, 0.5])
    pair = (none_V, low_V) if name == "kl_draft_target" else (low_V, none_V)
    assert not divergence(name, *pair).isnan(), "NaN never passes, even at T = inf"


@pytest.mark.parametrize("name", DIVERGENCES)
def test_nan_stays_nan(name):
    """A NaN logit anywhere in either row, +inf logits, and rows without any mass give NaN."""
    good_V = torch.tensor([0.3, -1.0, 2.0, -math.inf])
    for bad_V in (
        torch.tensor([0.3, math.nan, 2.0, 0.0]),
        torch.tensor([math.inf, 0.0, 0.0, 0.0]),
        torch.full((4,), -math.inf),
    ):
        assert divergence(name, good_V, bad_V).isnan()
        assert divergence(name, bad_V, good_V).isnan()

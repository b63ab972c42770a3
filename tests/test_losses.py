"""Losses that form their gradient in chunks, against the obvious version with all logits.

Axes: S unrolled steps, M positions, C positions of a chunk, D hidden size, R draft vocabulary.
"""

import math

import pytest
import torch
from torch.nn import functional

from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.training import losses
from eagle_fsd.training.losses import DISTRIBUTION_LOSSES, distribution_losses, feature_smooth_l1
from eagle_fsd.training.recipe import parse_losses

S, M, D, R = 3, 11, 7, 13
MIX = {"js": 0.3, "ce": 1.0, "tv": 2.0, "rkl": 0.7, "kl": 0.05}
# which divergence of eagle_fsd.decoding.divergence a loss is, target first
SAME_AS = {"kl": "kl_target_draft", "rkl": "kl_draft_target", "js": "js", "tv": "tv"}


def obvious(name: str, logp: torch.Tensor, logq: torch.Tensor) -> torch.Tensor:
    """A loss as it is written in a paper, over the last axis, for autograd."""
    p, q = logp.exp(), logq.exp()
    mean = (p + q) / 2
    return {
        "ce": lambda: -(p * logq),
        "kl": lambda: p * (p / q).log(),
        "rkl": lambda: q * (q / p).log(),
        "js": lambda: (p * (p / mean).log() + q * (q / mean).log()) / 2,
        "tv": lambda: (p - q).abs() / 2,
    }[name]().sum(-1)


def random_inputs(*, seed: int = 0, dtype=torch.float32, own: bool = False):
    """Arguments of distribution_losses before the mix; an own lm_head differs from the target's."""
    generator = torch.Generator().manual_seed(seed)
    hidden_SMD = torch.randn(S, M, D, generator=generator).to(dtype)
    target_MD = torch.randn(M, D, generator=generator).to(dtype)
    rows_RD = torch.randn(R, D, generator=generator).to(dtype)
    own_RD = torch.randn(R, D, generator=generator) if own else rows_RD
    weight_SM = torch.rand(S, M, generator=generator)
    return hidden_SMD, own_RD, target_MD, rows_RD, weight_SM


def obvious_mix(hidden_SMD, own_RD, target_MD, rows_RD, weight_SM, mix):
    """All logits at once in float64; the mix, and each loss [S, losses]."""
    hidden_SMD, own_RD, target_MD, rows_RD = (
        t.double() for t in (hidden_SMD, own_RD, target_MD, rows_RD)
    )
    logp_MR = torch.log_softmax(target_MD @ rows_RD.T, dim=-1)
    logq_SMR = torch.log_softmax(hidden_SMD @ own_RD.T, dim=-1)
    value_SK = torch.stack(
        [(obvious(name, logp_MR, logq_SMR) * weight_SM).sum(-1) for name in mix], dim=1
    )
    return (value_SK * torch.tensor(list(mix.values()), dtype=torch.float64)).sum(), value_SK


def with_gradients(loss, inputs, mix):
    """Mix, single values, gradients by the head's hidden states and by its lm_head."""
    hidden_SMD, own_RD = (t.clone().requires_grad_() for t in inputs[:2])
    total, value_SK = loss(hidden_SMD, own_RD, *inputs[2:], mix)
    grads = torch.autograd.grad(total, (hidden_SMD, own_RD))
    return total.detach(), value_SK.detach(), *grads


@pytest.mark.parametrize("name", DISTRIBUTION_LOSSES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
def test_written_out_gradients_equal_autograd(name, scale):
    """Value and gradient by the draft's logits of every loss, float64, near to and far from P."""
    generator = torch.Generator().manual_seed(5)
    target_CR, logits_CR = scale * torch.randn(2, M, R, generator=generator, dtype=torch.float64)
    logits_CR = logits_CR.requires_grad_()
    logp_CR = torch.log_softmax(target_CR, -1)
    wanted_C = obvious(name, logp_CR, torch.log_softmax(logits_CR, -1))
    (wanted_CR,) = torch.autograd.grad(wanted_C.sum(), logits_CR)
    with torch.no_grad():
        loss_C, grad_CR = DISTRIBUTION_LOSSES[name](logp_CR, torch.log_softmax(logits_CR, -1))
    torch.testing.assert_close(loss_C, wanted_C.detach(), atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(grad_CR, wanted_CR, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("name", SAME_AS)
def test_values_are_those_of_the_acceptance_rules(name):
    """A head is trained on the divergence that it will be judged by, direction included."""
    hidden_SMD, own_RD, target_MD, rows_RD, _ = random_inputs()
    one_SM = torch.ones(S, M)
    _, value_SK = distribution_losses(hidden_SMD, own_RD, target_MD, rows_RD, one_SM, {name: 1.0})
    target_SMR = (target_MD @ rows_RD.T).expand(S, M, R)
    wanted_SM = DIVERGENCES[SAME_AS[name]](target_SMR, hidden_SMD @ own_RD.T)
    torch.testing.assert_close(value_SK[:, 0], wanted_SM.sum(-1), rtol=1e-5, atol=1e-5)


# 1: one position a chunk; 3 and 4 positions leave a rest of 11; from 11 on it is one chunk
@pytest.mark.parametrize("elements", [1, R, 3 * R, 4 * R + 1, M * R, 2**22])
@pytest.mark.parametrize("mix", [*({name: 1.0} for name in DISTRIBUTION_LOSSES), MIX], ids=str)
def test_chunks_and_mixes_equal_the_obvious(monkeypatch, elements, mix):
    """Total, losses, gradients of the hidden states and of an own lm_head, whatever the chunk."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    inputs = random_inputs(own=True)
    total, value_SK, grad_SMD, grad_RD = with_gradients(distribution_losses, inputs, mix)
    assert total.dtype == value_SK.dtype == torch.float32 and value_SK.shape == (S, len(mix))
    wanted = with_gradients(obvious_mix, inputs, mix)
    got = (total, value_SK, grad_SMD, grad_RD)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", DISTRIBUTION_LOSSES)
def test_least_at_the_target(name):
    """There it is zero (ce: the entropy) without a gradient; everywhere else it is more."""
    _, _, target_MD, rows_RD, weight_SM = random_inputs()
    same = (target_MD.expand(S, M, D), rows_RD, target_MD, rows_RD, weight_SM)
    at, _, grad_SMD, _ = with_gradients(distribution_losses, same, {name: 1.0})
    logp_MR = torch.log_softmax(target_MD @ rows_RD.T, -1)
    least = (obvious("ce", logp_MR, logp_MR) * weight_SM).sum() if name == "ce" else 0.0
    assert at.item() == pytest.approx(float(least), abs=1e-5, rel=1e-6)
    assert grad_SMD.abs().max() < 1e-6
    for seed in range(5):
        noise_SMD = 0.3 * torch.randn(S, M, D, generator=torch.Generator().manual_seed(seed))
        off = (target_MD + noise_SMD, *same[1:])
        assert distribution_losses(*off, {name: 1.0})[0] > at + 1e-3


def test_bounds_of_far_distributions():
    """Logits of +-1e4: tv is 1, js ln 2, the others large and finite; no gradient is NaN."""
    rows_RD = torch.tensor([[1e4], [-1e4]])
    hidden_SMD = torch.tensor([[[-1.0], [1.0]]])  # wrong, right
    inputs = (hidden_SMD, rows_RD, torch.ones(2, 1), rows_RD, torch.ones(1, 2))
    wanted = {"tv": 1.0, "js": math.log(2), "kl": 2e4, "rkl": 2e4, "ce": 2e4}
    for name, far in wanted.items():
        total, _, grad_SMD, _ = with_gradients(distribution_losses, inputs, {name: 1.0})
        assert total.item() == pytest.approx(far), name
        assert torch.isfinite(grad_SMD).all() and grad_SMD[0, 1] == 0, name


def test_one_position_by_hand():
    """Two tokens, target (3/4, 1/4), draft (1/2, 1/2): ln 2, slope 1/2 - 3/4 times the weight."""
    rows_RD = torch.tensor([[1.0], [0.0]])
    hidden_SMD, target_MD = torch.zeros(1, 1, 1), torch.tensor([[math.log(3)]])
    inputs = (hidden_SMD, rows_RD, target_MD, rows_RD, torch.full((1, 1), 0.5))
    total, value_SK, grad_SMD, _ = with_gradients(distribution_losses, inputs, {"ce": 4.0})
    assert value_SK.item() == pytest.approx(0.5 * math.log(2))
    assert total.item() == pytest.approx(2 * math.log(2))
    assert grad_SMD.item() == pytest.approx(-0.25 * 2)


@pytest.mark.parametrize("elements", [1, 4 * R, 2**22])
@pytest.mark.parametrize("hidden_dtype", [torch.bfloat16, torch.float32])
def test_bfloat16_rows(monkeypatch, elements, hidden_dtype):
    """A half-precision lm_head: losses in float32, gradients near, in the dtype of their inputs."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    hidden_SMD, _, target_MD, rows_RD, weight_SM = random_inputs(dtype=torch.bfloat16)
    own_RD = random_inputs(own=True)[1]  # an own lm_head stays float32 in training
    inputs = (hidden_SMD.to(hidden_dtype), own_RD, target_MD, rows_RD, weight_SM)
    total, value_SK, grad_SMD, grad_RD = with_gradients(distribution_losses, inputs, MIX)
    assert total.dtype == value_SK.dtype == grad_RD.dtype == torch.float32
    assert grad_SMD.dtype == hidden_dtype
    wanted = with_gradients(obvious_mix, inputs, MIX)
    torch.testing.assert_close(value_SK.double(), wanted[1], atol=0.05, rtol=0.02)
    for got, theirs in zip((grad_SMD, grad_RD), wanted[2:], strict=True):
        error = (got.double() - theirs).norm() / theirs.norm()
        assert error < 0.03, error


def test_autocast_changes_nothing():
    """A step runs in autocast; what is half precision is settled by the lm_head's dtype alone."""
    inputs = random_inputs(own=True)
    plain = with_gradients(distribution_losses, inputs, MIX)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = with_gradients(distribution_losses, inputs, MIX)
        feature_S = feature_smooth_l1(inputs[0], inputs[2], inputs[4])
    assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))
    assert torch.equal(feature_S, feature_smooth_l1(inputs[0], inputs[2], inputs[4]))


def test_only_the_head_gets_a_gradient():
    """Neither the target's rows nor its features; the inputs are as they were."""
    inputs = [t.requires_grad_() for t in random_inputs(own=True)]
    kept = [t.detach().clone() for t in inputs]
    total, value_SK = distribution_losses(*inputs, MIX)
    total.backward()
    assert [t.grad is not None for t in inputs] == [True, True, False, False, False]
    assert not value_SK.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(inputs, kept, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_smooth_l1_equals_the_obvious(dtype):
    """torch's own with beta 1, mean over width, positions weighted; value and gradient."""
    hidden_SMD, _, target_MD, _, weight_SM = random_inputs(dtype=dtype)
    hidden_SMD = (3 * hidden_SMD).requires_grad_()  # both branches
    loss_S = feature_smooth_l1(hidden_SMD, target_MD, weight_SM)
    assert loss_S.dtype == torch.float32 and loss_S.shape == (S,)
    gap_SMD = (hidden_SMD - target_MD).detach().double()
    both_SMD = torch.where(gap_SMD.abs() < 1, gap_SMD**2 / 2, gap_SMD.abs() - 0.5)
    wanted_S = (both_SMD.mean(-1) * weight_SM).sum(-1)
    near = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}
    torch.testing.assert_close(loss_S.double(), wanted_S, **near)
    (grad_SMD,) = torch.autograd.grad(loss_S.sum(), hidden_SMD)
    wanted_SMD = gap_SMD.clamp(-1, 1) * weight_SM[..., None] / D
    torch.testing.assert_close(grad_SMD.double(), wanted_SMD, atol=2e-3, rtol=2e-2)
    reference = functional.smooth_l1_loss(hidden_SMD[0].float(), target_MD.float())
    flat_SM = torch.full((S, M), 1 / M)
    assert feature_smooth_l1(hidden_SMD, target_MD, flat_SM)[0].item() == pytest.approx(
        reference.item(), rel=1e-5
    )


def test_parse_losses():
    """Names with weights, by spaces or commas; no weight is 1; the order is kept."""
    assert parse_losses("feature=1 ce=0.1") == {"feature": 1.0, "ce": 0.1}
    assert list(parse_losses("tv,js=2.5e-1").items()) == [("tv", 1.0), ("js", 0.25)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no loss"),
        (" , ", "no loss"),
        ("l2=1", "l2"),
        ("ce=x", "ce=x"),
        ("ce=0", "ce=0"),
        ("ce=-1", "ce=-1"),
        ("ce=nan", "ce=nan"),
        ("ce=inf", "ce=inf"),
        ("=1", "''"),
        ("ce=1 js=1 ce=2", "'ce'.*twice"),
    ],
)
def test_bad_mixes_are_told(text, told):
    """An unknown name or a weight that is no positive number; a loss named twice is a slip."""
    with pytest.raises(ValueError, match=told):
        parse_losses(text)

"""Losses that form their gradient in chunks, against the obvious version with all logits."""

import math

import pytest
import torch
from torch.nn import functional

from eagle_fsd.training import losses
from eagle_fsd.training.losses import feature_smooth_l1, soft_cross_entropy

S, M, D, V = 3, 11, 7, 13


def random_inputs(*, steps: int = S, positions: int = M, dtype=torch.float32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    hidden_SMD = torch.randn(steps, positions, D, generator=generator).to(dtype)
    target_MD = torch.randn(positions, D, generator=generator).to(dtype)
    lm_head_VD = torch.randn(V, D, generator=generator).to(dtype)
    return hidden_SMD, target_MD, lm_head_VD


def obvious_cross_entropy(hidden_SMD, target_MD, lm_head_VD):
    """All logits at once, in float32, differentiated by autograd; [S]."""
    prob_MV = torch.softmax(target_MD.float() @ lm_head_VD.float().T, dim=-1)
    logp_SMV = torch.log_softmax(hidden_SMD.float() @ lm_head_VD.float().T, dim=-1)
    return -(prob_MV * logp_SMV).sum(-1).mean(-1)


def value_and_gradient(loss, hidden_SMD, *others):
    """The losses [S], and the gradient of a sum that weighs each step differently."""
    hidden_SMD = hidden_SMD.clone().requires_grad_()
    loss_S = loss(hidden_SMD, *others)
    weight_S = torch.tensor([1.0, -2.0, 0.25])[: loss_S.shape[0]]
    return loss_S.detach(), torch.autograd.grad((weight_S * loss_S).sum(), hidden_SMD)[0]


# 0 and 1 mean one position a chunk; 3 and 4 positions leave a rest of 11; 11 and more are one chunk
@pytest.mark.parametrize("elements", [1, V, 3 * V, 4 * V + 1, M * V, 2**22])
@pytest.mark.parametrize("steps", [1, S])
def test_cross_entropy_equals_autograd(monkeypatch, elements, steps):
    """Value and gradient, whatever the chunk."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    inputs = random_inputs(steps=steps)
    loss_S, grad_SMD = value_and_gradient(soft_cross_entropy, *inputs)
    wanted_S, wanted_SMD = value_and_gradient(obvious_cross_entropy, *inputs)
    assert loss_S.shape == (steps,) and loss_S.dtype == torch.float32
    torch.testing.assert_close(loss_S, wanted_S)
    torch.testing.assert_close(grad_SMD, wanted_SMD, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("elements", [1, 4 * V, 2**22])
def test_cross_entropy_in_bfloat16(monkeypatch, elements):
    """Half-precision features: a float32 loss, a bfloat16 gradient, both near the exact ones."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    inputs = random_inputs(dtype=torch.bfloat16)
    loss_S, grad_SMD = value_and_gradient(soft_cross_entropy, *inputs)
    wanted_S, wanted_SMD = value_and_gradient(
        obvious_cross_entropy, *(tensor.float() for tensor in inputs)
    )
    assert loss_S.dtype == torch.float32 and grad_SMD.dtype == torch.bfloat16
    torch.testing.assert_close(loss_S, wanted_S, atol=0.02, rtol=0.01)
    error = (grad_SMD.float() - wanted_SMD).norm() / wanted_SMD.norm()
    assert error < 0.02, error


def test_cross_entropy_of_float32_features_with_a_bfloat16_lm_head():
    """As in training under autocast: the gradient has the features' dtype."""
    hidden_SMD, target_MD, lm_head_VD = random_inputs()
    args = (hidden_SMD, target_MD.bfloat16(), lm_head_VD.bfloat16())
    loss_S, grad_SMD = value_and_gradient(soft_cross_entropy, *args)
    wanted_S, wanted_SMD = value_and_gradient(obvious_cross_entropy, *args)
    assert grad_SMD.dtype == torch.float32
    torch.testing.assert_close(loss_S, wanted_S, atol=0.02, rtol=0.01)
    assert (grad_SMD - wanted_SMD).norm() / wanted_SMD.norm() < 0.02


def test_cross_entropy_of_one_position():
    """M = 1, by hand: two tokens, target (3/4, 1/4), draft (1/2, 1/2)."""
    lm_head_VD = torch.tensor([[1.0], [0.0]])
    hidden_SMD, target_MD = torch.zeros(1, 1, 1), torch.tensor([[math.log(3)]])
    loss_S, grad_SMD = value_and_gradient(soft_cross_entropy, hidden_SMD, target_MD, lm_head_VD)
    assert loss_S.item() == pytest.approx(math.log(2))
    # d loss / d logit of token 0 is Q - P = 1/2 - 3/4; token 1's logit is always 0
    assert grad_SMD.item() == pytest.approx(-0.25)


def test_cross_entropy_far_out():
    """Logits of +-1e4 give a large finite loss, and no NaN where P is 0."""
    lm_head_VD = torch.tensor([[1e4], [-1e4]])
    target_MD = torch.tensor([[1.0], [1.0]])
    loss_S, grad_SMD = value_and_gradient(
        soft_cross_entropy, torch.tensor([[[-1.0], [1.0]]]), target_MD, lm_head_VD
    )
    assert loss_S.item() == pytest.approx(1e4)  # 2e4 nats at the first position, 0 at the second
    assert torch.isfinite(grad_SMD).all() and grad_SMD[0, 1].item() == 0


def test_cross_entropy_is_least_at_the_target():
    """There it is the target's entropy with a gradient of zero; everywhere else it is more."""
    _, target_MD, lm_head_VD = random_inputs()
    logp_MV = torch.log_softmax(target_MD @ lm_head_VD.T, dim=-1)
    entropy = -(logp_MV.exp() * logp_MV).sum(-1).mean()
    at_S, grad_SMD = value_and_gradient(soft_cross_entropy, target_MD[None], target_MD, lm_head_VD)
    torch.testing.assert_close(at_S[0], entropy)
    assert grad_SMD.abs().max() < 1e-6
    for seed in range(20):
        noise_1MD = 0.1 * torch.randn(1, M, D, generator=torch.Generator().manual_seed(seed))
        assert soft_cross_entropy(target_MD + noise_1MD, target_MD, lm_head_VD).item() > entropy


def test_the_frozen_sides_get_no_gradient():
    """Neither the lm_head nor the target's features are trained."""
    hidden_SMD, target_MD, lm_head_VD = (t.requires_grad_() for t in random_inputs())
    soft_cross_entropy(hidden_SMD, target_MD, lm_head_VD).sum().backward()
    assert lm_head_VD.grad is None and target_MD.grad is None
    assert hidden_SMD.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_forward_does_not_spoil_its_input(dtype):
    """Twice the same call, twice the same loss: in-place steps stay inside."""
    inputs = random_inputs(dtype=dtype)
    kept = [t.clone() for t in inputs]
    first = value_and_gradient(soft_cross_entropy, *inputs)
    second = value_and_gradient(soft_cross_entropy, *inputs)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert all(torch.equal(a, b) for a, b in zip(inputs, kept, strict=True))


def slow_smooth_l1(hidden_SMD, target_MD) -> list[float]:
    """0.5 d^2 below 1, |d| - 0.5 above, by entry."""
    means = []
    for step_MD in hidden_SMD.tolist():
        terms = []
        for row, wanted in zip(step_MD, target_MD.tolist(), strict=True):
            gaps = [abs(a - b) for a, b in zip(row, wanted, strict=True)]
            terms += [0.5 * gap**2 if gap < 1 else gap - 0.5 for gap in gaps]
        means.append(sum(terms) / len(terms))
    return means


@pytest.mark.parametrize(("steps", "positions"), [(1, 1), (1, M), (S, M)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_smooth_l1_equals_the_obvious(steps, positions, dtype):
    """Entry by entry, mean over positions and width, one figure a step, in float32."""
    hidden_SMD, target_MD, _ = random_inputs(steps=steps, positions=positions, dtype=dtype)
    loss_S = feature_smooth_l1(hidden_SMD, target_MD)
    assert loss_S.dtype == torch.float32
    assert loss_S.tolist() == pytest.approx(slow_smooth_l1(hidden_SMD, target_MD), rel=1e-5)


def test_smooth_l1_is_least_at_the_target():
    """Zero with zero gradient there; its gradient elsewhere is the clipped gap over M D."""
    hidden_SMD, target_MD, _ = random_inputs()
    at_S, grad_SMD = value_and_gradient(feature_smooth_l1, target_MD.expand(S, M, D), target_MD)
    assert at_S.eq(0).all() and grad_SMD.eq(0).all()
    _, grad_SMD = value_and_gradient(feature_smooth_l1, hidden_SMD, target_MD)
    gap_MD = (hidden_SMD[0] - target_MD).clamp(-1, 1)
    torch.testing.assert_close(grad_SMD[0], gap_MD / (M * D))


def test_losses_agree_with_autograd_under_autocast():
    """A training step runs them in autocast, which must not round a float32 lm_head's loss."""
    hidden_SMD, target_MD, lm_head_VD = random_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_S = soft_cross_entropy(hidden_SMD, target_MD, lm_head_VD)
        feature_S = feature_smooth_l1(hidden_SMD, target_MD)
    assert loss_S.dtype == feature_S.dtype == torch.float32
    plain_S = obvious_cross_entropy(hidden_SMD, target_MD, lm_head_VD)
    torch.testing.assert_close(loss_S, plain_S, atol=0.02, rtol=0.01)
    wanted_S = functional.smooth_l1_loss(
        hidden_SMD, target_MD.expand(S, M, D), reduction="none"
    ).mean(dim=(1, 2))
    torch.testing.assert_close(feature_S, wanted_S)

"""A loss that forms its gradient in chunks, against the obvious version with all logits; and the
step's loss: one mean over all positions, however they are shared out. Recipes: the learning rate
over the budget, texts.

Axes: B dialogues, T positions, S unrolled steps, M positions that count, C of a chunk, D hidden
size, F features, R draft vocabulary.
"""

import math
from dataclasses import replace

import pytest
import torch
from tiny import tiny_head, tiny_target

from eagle_fsd.heads.draft_head import unroll
from eagle_fsd.training import losses
from eagle_fsd.training.head_run import optimizers_of
from eagle_fsd.training.losses import Objective, cross_entropy
from eagle_fsd.training.recipe import FINAL_RATE, RECIPES, WARMUP, Recipe, parse_recipe

S, M, D, R = 3, 11, 7, 13


def random_inputs(dtype=torch.float32, scale=1.0):
    """Arguments of cross_entropy; the head's own lm_head is another than the target's."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(S, M, D), (M, D), (R, D)]
    drawn = [scale * torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    hidden_SMD, target_MD, rows_RD = drawn
    own_RD = scale * torch.randn(R, D, generator=generator)  # it stays float32 in training
    return hidden_SMD, own_RD, target_MD, rows_RD, torch.rand(S, M, generator=generator)


def obvious(hidden_SMD, own_RD, target_MD, rows_RD, weight_SM):
    """All logits at once in float64, as it is written in a paper, for autograd."""
    p_MR = torch.softmax(target_MD.double() @ rows_RD.double().T, dim=-1)
    logq_SMR = torch.log_softmax(hidden_SMD.double() @ own_RD.double().T, dim=-1)
    return (-(p_MR * logq_SMR).sum(-1) * weight_SM).sum()


def with_gradients(loss, inputs):
    """Value, gradients by the head's hidden states and by its lm_head."""
    hidden_SMD, own_RD = (t.clone().requires_grad_() for t in inputs[:2])
    total = loss(hidden_SMD, own_RD, *inputs[2:])
    grads = torch.autograd.grad(total, (hidden_SMD, own_RD))
    return total.detach(), *grads


# one position a chunk; 4, which leave a rest of 11; all in one chunk
@pytest.mark.parametrize("elements", [1, 4 * R + 1, 2**22])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_written_out_gradients_equal_autograd(monkeypatch, scale, elements):
    """Gradients in float64, near to and far from P, whatever the chunk; the value is summed in
    float32. In autocast as without; neither the target's rows nor its states get a gradient."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    *inputs, weight_SM = random_inputs(scale=scale)
    inputs = [*(t.double() for t in inputs), weight_SM]  # which is float32 in training too
    got, wanted = (with_gradients(loss, inputs) for loss in (cross_entropy, obvious))
    torch.testing.assert_close(got[0].double(), wanted[0], atol=0, rtol=1e-6)
    torch.testing.assert_close(got[1], wanted[1], atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(got[2].double(), wanted[2], atol=1e-5, rtol=1e-5)
    inputs = [t.requires_grad_() for t in random_inputs(scale=scale)]
    got = with_gradients(cross_entropy, inputs)
    assert got[0].dtype == torch.float32
    for ours, theirs in zip(got, with_gradients(obvious, inputs), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=2e-5, rtol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = with_gradients(cross_entropy, inputs)
    assert all(torch.equal(a, b) for a, b in zip(got, cast, strict=True))
    cross_entropy(*inputs).backward()
    assert [t.grad is not None for t in inputs] == [True, True, False, False, False]


def test_bounds_of_far_distributions():
    """Logits of +-1e4: large and finite where the draft is wrong, 0 where it is right; no gradient
    is NaN."""
    rows_RD = torch.tensor([[1e4], [-1e4]])
    hidden_SMD = torch.tensor([[[-1.0], [1.0]]])  # wrong, right
    inputs = (hidden_SMD, rows_RD, torch.ones(2, 1), rows_RD, torch.ones(1, 2))
    total, grad_SMD, _ = with_gradients(cross_entropy, inputs)
    assert total.item() == pytest.approx(2e4)
    assert torch.isfinite(grad_SMD).all() and grad_SMD[0, 1] == 0


def test_bfloat16_rows(monkeypatch):
    """A half-precision lm_head: the loss in float32, gradients near, in the dtype of their
    inputs."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", 4 * R)
    inputs = random_inputs(torch.bfloat16)
    total, grad_SMD, grad_RD = with_gradients(cross_entropy, inputs)
    assert total.dtype == grad_RD.dtype == torch.float32
    assert grad_SMD.dtype == torch.bfloat16
    wanted = with_gradients(obvious, inputs)
    torch.testing.assert_close(total.double(), wanted[0], atol=0.05, rtol=0.02)
    for got, theirs in zip((grad_SMD, grad_RD), wanted[1:], strict=True):
        assert (got.double() - theirs).norm() < 0.03 * theirs.norm()


# --- a step's loss --------------------------------------------------------------------------------

B, T = 5, 13
WEIGHTS = {"feature": 0.5, "ce": 3.0}


@pytest.fixture(scope="module", params=["eagle", "eagle part", "eagle3", "eagle3 part"])
def objective(request) -> Objective:
    """EAGLE-1/2 or 3, over all tokens or 37 of them."""
    target = tiny_target("llama")
    size = 37 if "part" in request.param else None
    head = tiny_head(head_type=request.param.split()[0], draft_vocab_size=size)
    rows_RD = target.readout.rows(head.draft_token_R)
    return Objective(head, rows_RD, Recipe(**WEIGHTS, unroll_steps=3, step_decay=0.7))


@pytest.fixture
def batch(objective) -> tuple[torch.Tensor, ...]:
    """Features, embeddings, target's hidden states, mask; some rows have nothing that counts."""
    generator = torch.Generator().manual_seed(0)
    D = objective.head.config.hidden_size
    F = 3 * D if objective.head.config.eagle3 else D
    parts = [2 * torch.randn(B, T, width, generator=generator) for width in (F, D, D)]
    mask_BT = torch.rand(B, T, generator=generator) < 0.4
    mask_BT[:, :2] = False
    mask_BT[3] = False
    return *parts, mask_BT


def gradients(objective: Objective, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(total, list(objective.parameters()))


def near(got, wanted) -> None:
    torch.testing.assert_close(tuple(got), tuple(wanted), rtol=1e-3, atol=1e-4)


def test_equals_the_obvious(objective, batch):
    """All logits at once: per step, per position, weights 1, 0.7, 0.49 over their sum."""
    feature, embedding, hidden, mask = batch
    total, parts = objective(*batch, int(mask.sum()))
    head, rows_RD = objective.head, objective._target_lm_head[0]
    own_RD = rows_RD if head.lm_head is None else head.lm_head.weight
    p = torch.softmax(hidden[mask] @ rows_RD.T, -1)
    wanted = torch.zeros(2)
    weights = torch.tensor([1.0, 0.7, 0.49]) / 2.19
    for weight, out in zip(weights, unroll(head, feature, embedding, steps=3), strict=True):
        logq = torch.log_softmax(head.normed(out[mask]) @ own_RD.T, -1)
        each = [torch.nn.functional.smooth_l1_loss(out[mask], hidden[mask])]
        each += [-(p * logq).sum(-1).mean()]
        wanted = wanted + weight * torch.stack(each)
    assert list(parts) == list(WEIGHTS) and not any(part.requires_grad for part in parts.values())
    torch.testing.assert_close(
        torch.stack(list(parts.values())), wanted.detach(), rtol=1e-4, atol=0
    )
    wanted_total = wanted @ torch.tensor(list(WEIGHTS.values()))
    torch.testing.assert_close(total, wanted_total, rtol=1e-4, atol=1e-5)
    near(gradients(objective, total), gradients(objective, wanted_total))


def test_shares_of_batches_sum_to_the_steps_mean(objective, batch):
    """Split in any way, one share without a position that counts: same loss, same gradient."""
    counted = int(batch[-1].sum())
    total, parts = objective(*batch, counted)
    for split in ([1, 4], [2, 1, 1, 1]):  # the last but one is row 3, which is empty
        parted = zip(*(t.split(split) for t in batch), strict=True)
        shares = [objective(*share, counted) for share in parted]
        summed = sum(share for share, _ in shares)
        near([summed], [total])
        near([sum(own[name] for _, own in shares) for name in parts], parts.values())
        near(gradients(objective, summed), gradients(objective, objective(*batch, counted)[0]))


def test_what_does_not_count_changes_nothing(objective, batch):
    """Targets outside the mask, and everything behind the last position that counts. Where nothing
    counts every parameter takes part, which distributed training needs; no NaN."""
    feature, embedding, hidden, mask = batch
    total, parts = objective(feature, embedding, hidden, mask & False, 1)
    assert total == 0 and all(part == 0 for part in parts.values())
    assert all(grad.eq(0).all() for grad in gradients(objective, total))
    mask[:, 9:] = False
    before = objective(feature, embedding, hidden, mask, 7)
    feature[:, 9:], embedding[:, 9:], hidden[~mask] = 9.0, -9.0, 1e3
    torch.testing.assert_close(before, objective(*batch, 7), rtol=1e-5, atol=1e-5)


def test_optimizers_share_out_the_parameters(objective):
    """Every one has an optimizer, and one only; norms and an lm_head of its own are never Muon's,
    which are no maps between hidden states."""
    names = {id(p): name for name, p in objective.named_parameters()}
    found = [*optimizers_of(objective, Recipe())]
    found += optimizers_of(objective, Recipe(optimizer="muon"))
    adamw, muon, rest = ([id(p) for p in o.param_groups[0]["params"]] for o in found)
    assert sorted(names) == sorted(adamw) == sorted(muon + rest)
    layers = ("fc", *(f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down")))
    linear = {f"{layer}.weight" for layer in layers}
    assert {".".join(names[p].split(".")[-2:]) for p in muon} == linear
    assert not linear & {".".join(names[p].split(".")[-2:]) for p in rest}


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_rate_over_the_budget(schedule):
    """Rises in a line to the peak at the end of the warm-up, and never again; ends at the floor."""
    recipe = Recipe(learning_rate=2e-3, schedule=schedule)
    rise = [recipe.rate(x * WARMUP) for x in (0.0, 0.25, 1)]
    assert rise == pytest.approx([0.0, 0.5e-3, 2e-3])
    behind = [recipe.rate(WARMUP + x * (1 - WARMUP)) for x in (0.25, 0.5, 1)]
    left = [{"linear": 0.75, "cosine": (2 + math.sqrt(2)) / 4}[schedule], 0.5, 0]
    wanted = [2e-3 * (FINAL_RATE + (1 - FINAL_RATE) * share) for share in left]
    assert behind == pytest.approx(wanted) and recipe.rate(1.3) == behind[-1]  # the clock ran over
    rates = [recipe.rate(WARMUP + (1 - WARMUP) * i / 50) for i in range(51)]
    assert rates == sorted(rates, reverse=True)


def test_a_learning_rate_follows_the_width_unless_it_is_given():
    """1.5e-3 up to 576 channels, 1e-4 from 4,096 on, and on a line of logarithms between; of an MTP
    layer, which is trained already, the same at all."""
    widths = (64, 576, 576 * math.sqrt(4096 / 576), 4096, 8192)
    rates = [parse_recipe("eagle3", width).learning_rate for width in widths]
    assert rates == pytest.approx([1.5e-3, 1.5e-3, math.sqrt(1.5e-3 * 1e-4), 1e-4, 1e-4])
    assert parse_recipe("eagle3,learning_rate=2e-3,noise=1", 4096).learning_rate == 2e-3
    assert parse_recipe("mtp", 4096) == parse_recipe("mtp") == RECIPES["mtp"]


def test_a_preset_with_changes():
    """The rest stays the preset's."""
    recipe = parse_recipe("eagle,unroll_steps=2,feature=0,schedule=cosine")
    changes = {"unroll_steps": 2, "feature": 0.0, "schedule": "cosine"}
    assert recipe == replace(RECIPES["eagle"], **changes) and recipe.ce == 0.1

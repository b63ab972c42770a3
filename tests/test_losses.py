"""Losses that form their gradient in chunks, against the obvious version with all logits; and the
step's loss: one mean over all positions, however they are shared out. Recipes: upstream's numbers
in the presets, the learning rate over the budget, texts.

Axes: B dialogues, T positions, S unrolled steps, M positions that count, C of a chunk, D hidden
size, F features, R draft vocabulary.
"""

import math

import pytest
import torch
from tiny import tiny_head, tiny_target

from eagle_fsd.decoding.divergence import divergence as divergence_of
from eagle_fsd.heads.unroll import unroll
from eagle_fsd.training import losses
from eagle_fsd.training.head_run import optimizers_of
from eagle_fsd.training.losses import DISTRIBUTION_LOSSES, Objective, Rows, distribution_losses
from eagle_fsd.training.recipe import LOSSES, RECIPES, SCHEDULES, Recipe, parse_recipe

S, M, D, R = 3, 11, 7, 13
MIX = {"js": 0.3, "ce": 1.0, "tv": 2.0, "rkl": 0.7}


def obvious(name: str, logp: torch.Tensor, logq: torch.Tensor) -> torch.Tensor:
    """A loss as it is written in a paper, over the last axis, for autograd."""
    p, q = logp.exp(), logq.exp()
    mean = (p + q) / 2
    return {
        "ce": lambda: -(p * logq),
        "rkl": lambda: q * (q / p).log(),
        "js": lambda: (p * (p / mean).log() + q * (q / mean).log()) / 2,
        "tv": lambda: (p - q).abs() / 2,
    }[name]().sum(-1)


def random_inputs(dtype=torch.float32):
    """Arguments of distribution_losses before the mix; the head's own lm_head is another."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(S, M, D), (M, D), (R, D)]
    drawn = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    hidden_SMD, target_MD, rows_RD = drawn
    own_RD = torch.randn(R, D, generator=generator)  # it stays float32 in training
    return hidden_SMD, own_RD, target_MD, rows_RD, torch.rand(S, M, generator=generator)


def obvious_mix(hidden_SMD, own_RD, target_MD, rows_RD, weight_SM, mix):
    """All logits at once in float64; the mix, and each loss [losses]."""
    logp_MR = torch.log_softmax(target_MD.double() @ rows_RD.double().T, dim=-1)
    logq_SMR = torch.log_softmax(hidden_SMD.double() @ own_RD.double().T, dim=-1)
    value_K = torch.stack([(obvious(name, logp_MR, logq_SMR) * weight_SM).sum() for name in mix])
    return value_K @ value_K.new_tensor(list(mix.values())), value_K


def with_gradients(loss, inputs, mix):
    """Mix, single values, gradients by the head's hidden states and by its lm_head."""
    hidden_SMD, own_RD = (t.clone().requires_grad_() for t in inputs[:2])
    total, value_K = loss(hidden_SMD, own_RD, *inputs[2:], mix)
    grads = torch.autograd.grad(total, (hidden_SMD, own_RD))
    return total.detach(), value_K.detach(), *grads


@pytest.mark.parametrize("name", DISTRIBUTION_LOSSES)
@pytest.mark.parametrize("scale", [0.1, 6.0])
def test_written_out_gradients_equal_autograd(name, scale):
    """Value and gradient by the draft's logits of every loss, float64, near to and far from P."""
    generator = torch.Generator().manual_seed(5)
    target_CR, logits_CR = scale * torch.randn(2, M, R, generator=generator, dtype=torch.float64)
    logits_CR = logits_CR.requires_grad_()
    logp_CR = torch.log_softmax(target_CR, -1)
    wanted_C = obvious(name, logp_CR, torch.log_softmax(logits_CR, -1))
    (wanted_CR,) = torch.autograd.grad(wanted_C.sum(), logits_CR)
    with torch.no_grad():
        target, draft = (Rows(x, torch.softmax(x, -1)) for x in (target_CR, logits_CR))
        loss_C, grad_CR = DISTRIBUTION_LOSSES[name](target, draft)
    torch.testing.assert_close(loss_C, wanted_C.detach(), atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(grad_CR, wanted_CR, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "divergence"), [("rkl", "kl_draft_target"), ("js", "js"), ("tv", "tv")]
)
def test_values_are_those_of_the_acceptance_rules(name, divergence):
    """A head is trained on the divergence that it will be judged by, direction included."""
    hidden_SMD, own_RD, target_MD, rows_RD, _ = inputs = random_inputs()
    _, (value,) = distribution_losses(*inputs[:4], torch.ones(S, M), {name: 1.0})
    target_SMR = (target_MD @ rows_RD.T).expand(S, M, R)
    wanted_SM = divergence_of(divergence, target_SMR, hidden_SMD @ own_RD.T)
    torch.testing.assert_close(value, wanted_SM.sum(), rtol=1e-5, atol=1e-5)


# 1: one position a chunk; 3 and 4 positions leave a rest of 11; from 11 on it is one chunk
@pytest.mark.parametrize("elements", [1, 3 * R, 4 * R + 1, M * R, 2**22])
@pytest.mark.parametrize("mix", [{"ce": 1.0}, MIX], ids=str)
def test_chunks_and_mixes_equal_the_obvious(monkeypatch, elements, mix):
    """Total, losses, gradients of the hidden states and of an own lm_head, whatever the chunk, and
    in autocast as without; neither the target's rows nor its states get a gradient."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", elements)
    inputs = random_inputs()
    got = with_gradients(distribution_losses, inputs, mix)
    assert got[0].dtype == got[1].dtype == torch.float32
    for ours, theirs in zip(got, with_gradients(obvious_mix, inputs, mix), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=2e-5, rtol=1e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = with_gradients(distribution_losses, inputs, mix)
    assert all(torch.equal(a, b) for a, b in zip(got, cast, strict=True))
    inputs = [t.requires_grad_() for t in inputs]
    total, value_K = distribution_losses(*inputs, mix)
    total.backward()
    assert [t.grad is not None for t in inputs] == [True, True, False, False, False]
    assert not value_K.requires_grad


def test_bounds_of_far_distributions():
    """Logits of +-1e4: tv is 1, js ln 2, the others large and finite; no gradient is NaN."""
    rows_RD = torch.tensor([[1e4], [-1e4]])
    hidden_SMD = torch.tensor([[[-1.0], [1.0]]])  # wrong, right
    inputs = (hidden_SMD, rows_RD, torch.ones(2, 1), rows_RD, torch.ones(1, 2))
    wanted = {"tv": 1.0, "js": math.log(2), "rkl": 2e4, "ce": 2e4}
    for name, far in wanted.items():
        total, _, grad_SMD, _ = with_gradients(distribution_losses, inputs, {name: 1.0})
        assert total.item() == pytest.approx(far), name
        assert torch.isfinite(grad_SMD).all() and grad_SMD[0, 1] == 0, name


def test_bfloat16_rows(monkeypatch):
    """A half-precision lm_head: losses in float32, gradients near, in the dtype of their inputs."""
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", 4 * R)
    inputs = random_inputs(torch.bfloat16)
    total, value_K, grad_SMD, grad_RD = with_gradients(distribution_losses, inputs, MIX)
    assert total.dtype == value_K.dtype == grad_RD.dtype == torch.float32
    assert grad_SMD.dtype == torch.bfloat16
    wanted = with_gradients(obvious_mix, inputs, MIX)
    torch.testing.assert_close(value_K.double(), wanted[1], atol=0.05, rtol=0.02)
    for got, theirs in zip((grad_SMD, grad_RD), wanted[2:], strict=True):
        assert (got.double() - theirs).norm() < 0.03 * theirs.norm()


# --- a step's loss --------------------------------------------------------------------------------

B, T = 5, 13
WEIGHTS = {"feature": 0.5, "ce": 1.0, "js": 3.0}


@pytest.fixture(scope="module", params=["eagle", "eagle part", "eagle3", "eagle3 part"])
def objective(request) -> Objective:
    """EAGLE-1/2 or 3, over all tokens or 37 of them."""
    target = tiny_target("llama")
    size = 37 if "part" in request.param else None
    head = tiny_head(head_type=request.param.split()[0], draft_vocab_size=size)
    rows_RD = target.lm_head.weight if size is None else target.lm_head.weight[head.draft_token_R]
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
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_equals_the_obvious(objective, batch):
    """All logits at once: per step, per position, weights 1, 0.7, 0.49 over their sum."""
    feature, embedding, hidden, mask = batch
    total, parts = objective(*batch, int(mask.sum()))
    head, rows_RD = objective.head, objective._target_lm_head[0]
    own_RD = rows_RD if head.lm_head is None else head.lm_head.weight
    logp = torch.log_softmax(hidden[mask] @ rows_RD.T, -1)
    wanted = torch.zeros(3)
    weights = torch.tensor([1.0, 0.7, 0.49]) / 2.19
    for weight, out in zip(weights, unroll(head, feature, embedding, steps=3), strict=True):
        logq = torch.log_softmax(head.normed(out[mask]) @ own_RD.T, -1)
        each = [torch.nn.functional.smooth_l1_loss(out[mask], hidden[mask])]
        each += [obvious(name, logp, logq).mean() for name in ("ce", "js")]
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
    # the target's rows are a constant: neither parameter, nor buffer, nor saved
    own = {key.removeprefix("head.") for key in objective.state_dict()}
    assert own == set(objective.head.state_dict())
    assert len(list(objective.parameters())) == len(list(objective.head.parameters()))


def test_optimizers_share_out_the_parameters(objective):
    """Every one has an optimizer, and one only; norms and an lm_head of its own are never Muon's,
    which are no maps between hidden states."""
    names = {id(p): name for name, p in objective.named_parameters()}
    (adamw,) = optimizers_of(objective, Recipe())
    assert names.keys() == {id(p) for p in adamw.param_groups[0]["params"]}
    muon, rest = (o.param_groups[0] for o in optimizers_of(objective, Recipe(optimizer="muon")))
    theirs = [
        [".".join(names[id(p)].split(".")[-2:]) for p in group["params"]] for group in (muon, rest)
    ]
    layers = ("fc", *(f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down")))
    linear = {f"{layer}.weight" for layer in layers}
    assert set(theirs[0]) == linear and len(theirs[0]) + len(theirs[1]) == len(names)
    assert not linear & set(theirs[1])
    assert ("lm_head.weight" in theirs[1]) == (objective.head.lm_head is not None)


# --- recipes --------------------------------------------------------------------------------------


def test_the_presets_are_upstreams():
    """SafeAILab/EAGLE: branch v1, eagle/train/main.py; eagle/traineagle3."""
    recipe = RECIPES["eagle"]
    assert recipe.losses == {"feature": 1.0, "ce": 0.1}
    assert (recipe.unroll_steps, recipe.noise) == (1, 0.1)
    assert (recipe.clip_value, recipe.clip_norm) == (0.5, 0.0)
    assert (recipe.schedule, recipe.weight_decay) == ("linear", 0.01)
    recipe = RECIPES["eagle3"]
    assert recipe.losses == {"ce": 1.0}
    assert (recipe.unroll_steps, recipe.step_decay, recipe.noise) == (7, 0.8, 0.0)
    assert (recipe.clip_norm, recipe.weight_decay) == (0.5, 0.0)
    assert set(LOSSES) == {"feature", *DISTRIBUTION_LOSSES}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rate_over_the_budget(schedule):
    """Rises in a line to the peak at the end of the warm-up, and never again; ends at the floor."""
    recipe = Recipe(learning_rate=2e-3, warmup=0.2, schedule=schedule, final_rate=0.1)
    assert [recipe.rate(x) for x in (0.0, 0.05, 0.2)] == pytest.approx([0.0, 0.5e-3, 2e-3])
    quarter = {"linear": 0.775, "cosine": 0.1 + 0.9 * (2 + math.sqrt(2)) / 4}[schedule]
    assert recipe.rate(0.4) == pytest.approx(2e-3 * quarter)
    assert recipe.rate(0.6) == pytest.approx(2e-3 * 0.55)
    assert recipe.rate(1.0) == recipe.rate(1.3) == pytest.approx(2e-4)  # the clock ran over
    rates = [recipe.rate(0.2 + 0.8 * i / 50) for i in range(51)]
    assert rates == sorted(rates, reverse=True)
    for warmup in (0.0, 1.0):  # the peak at once, or only at the end
        recipe = Recipe(learning_rate=3.0, warmup=warmup, final_rate=0.0)
        assert recipe.rate(0.0) == 3.0 * (1 - warmup)
        assert all(0 <= recipe.rate(i / 10) < math.inf for i in range(12))


def test_step_weights():
    """They fall by the decay and sum to 1, so that steps change no learning rate."""
    weights = RECIPES["eagle3"].step_weights()
    assert weights == pytest.approx([weights[0] * 0.8**step for step in range(7)])
    assert sum(weights) == pytest.approx(1.0)


def test_a_preset_with_changes():
    """The rest stays the preset's; a loss of weight 0 is left out."""
    assert parse_recipe("unrolled") == Recipe()
    recipe = parse_recipe("eagle,unroll_steps=2,feature=0,js=1.5,schedule=cosine,noise=0")
    assert recipe.losses == {"ce": 0.1, "js": 1.5} and recipe.unroll_steps == 2
    assert (recipe.schedule, recipe.noise, recipe.clip_value) == ("cosine", 0.0, 0.5)
    assert RECIPES["eagle"].losses == {"feature": 1.0, "ce": 0.1}

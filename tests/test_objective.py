"""The step's loss: one mean over all positions, however they are shared out.

Axes: B dialogues, T positions, S unrolled steps, D hidden size, F features, R draft vocabulary.
"""

import pytest
import torch
from tiny import tiny_head, tiny_target
from tiny_eagle3 import draft_tokens, tiny_head3

from eagle_fsd.training.losses import Objective
from eagle_fsd.training.recipe import Recipe
from eagle_fsd.training.unroll import unroll

B, T = 5, 13
MIX = {"feature": 0.5, "ce": 1.0, "js": 3.0}


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def make(target, kind: str, **changes) -> Objective:
    """EAGLE-1/2 or 3, over all tokens or 37 of them."""
    recipe = Recipe(**{"losses": MIX, "unroll_steps": 3, "step_decay": 0.7} | changes)
    size = 37 if "part" in kind else None
    rows_VD = target.lm_head.weight
    token_R = torch.arange(rows_VD.shape[0]) if size is None else draft_tokens(size)
    make_head = tiny_head3 if "eagle3" in kind else lambda **kw: tiny_head(target, **kw)
    return Objective(make_head(draft_vocab_size=size), rows_VD[token_R], recipe)


KINDS = ["eagle", "eagle part", "eagle3", "eagle3 part"]


def random_batch(objective: Objective, *, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Features, embeddings, target's hidden states, mask; some rows have nothing that counts."""
    generator = torch.Generator().manual_seed(seed)
    D = objective.head.config.hidden_size
    F = 3 * D if objective.head.config.eagle3 else D
    parts = [torch.randn(B, T, width, generator=generator) for width in (F, D, D)]
    mask_BT = torch.rand(B, T, generator=generator) < 0.4
    mask_BT[:, :2] = False
    mask_BT[3] = False
    return *parts, mask_BT


def gradients(objective: Objective, total: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(total, list(objective.parameters())))


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_obvious(target, kind):
    """All logits at once: per step, per position, weights 1, 0.7, 0.49 over their sum."""
    objective = make(target, kind)
    feature, embedding, hidden, mask = random_batch(objective)
    total, parts = objective(feature, embedding, hidden, mask, mask.sum().float())
    head, rows_RD = objective.head, objective._target_lm_head[0]
    weights = torch.tensor([1.0, 0.7, 0.49]) / 2.19
    logp = torch.log_softmax(hidden[mask] @ rows_RD.T, -1)
    wanted = torch.zeros(3)
    for weight, out in zip(weights, unroll(head, feature, embedding, steps=3), strict=True):
        own_RD = rows_RD if head.lm_head is None else head.lm_head.weight
        logq = torch.log_softmax(head.normed(out[mask]) @ own_RD.T, -1)
        mean = torch.logaddexp(logp, logq) - torch.tensor(2.0).log()
        kls = [(p.exp() * (p - mean)).sum(-1) for p in (logp, logq)]
        l1 = torch.nn.functional.smooth_l1_loss(out[mask], hidden[mask])
        ce = -(logp.exp() * logq).sum(-1).mean()
        wanted = wanted + weight * torch.stack([l1, ce, (kls[0] + kls[1]).mean() / 2])
    assert objective.names == ["feature", "ce", "js"]
    torch.testing.assert_close(parts, wanted.detach(), rtol=1e-4, atol=1e-5)
    assert not parts.requires_grad
    wanted_total = (wanted * torch.tensor([0.5, 1.0, 3.0])).sum()
    torch.testing.assert_close(total, wanted_total, rtol=1e-4, atol=1e-5)
    for got, theirs in zip(
        gradients(objective, total), gradients(objective, wanted_total), strict=True
    ):
        torch.testing.assert_close(got, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_batches_sum_to_the_steps_mean(target, kind):
    """Split in any way, one share without a position that counts: same loss, same gradient."""
    objective = make(target, kind)
    batch = random_batch(objective)
    counted = batch[-1].sum().float()
    total, parts = objective(*batch, counted)
    whole = gradients(objective, total)
    for split in ([B], [1, 4], [2, 1, 1, 1]):  # the last but one is row 3, which is empty
        shares = [
            objective(*share, counted)
            for share in zip(*(t.split(split) for t in batch), strict=True)
        ]
        summed = sum(share for share, _ in shares)
        torch.testing.assert_close(summed, total, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sum(own for _, own in shares), parts, rtol=1e-5, atol=1e-6)
        for got, wanted in zip(gradients(objective, summed), whole, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_where_nothing_counts_has_a_gradient_of_zero(target, kind):
    """Every parameter takes part, which distributed training needs; no NaN."""
    objective = make(target, kind)
    feature, embedding, hidden, mask = random_batch(objective)
    total, parts = objective(feature, embedding, hidden, mask & False, torch.tensor(1.0))
    assert total == 0 and parts.eq(0).all()
    assert all(grad.eq(0).all() for grad in gradients(objective, total))


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_count_changes_nothing(target, kind):
    """Targets outside the mask, and everything behind the last position that counts."""
    objective = make(target, kind)
    feature, embedding, hidden, mask = random_batch(objective)
    mask[:, 9:] = False
    before = objective(feature, embedding, hidden, mask, torch.tensor(7.0))
    feature[:, 9:], embedding[:, 9:], hidden[~mask] = 9.0, -9.0, 1e3
    after = objective(feature, embedding, hidden, mask, torch.tensor(7.0))
    torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_head_is_in_the_state(target, kind):
    """The target's rows are a constant: neither parameter, nor buffer, nor saved."""
    objective = make(target, kind)
    assert {key.removeprefix("head.") for key in objective.state_dict()} == set(
        objective.head.state_dict()
    )
    assert len(list(objective.parameters())) == len(list(objective.head.parameters()))

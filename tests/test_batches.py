"""What is trained on, when and with which noise: by seed and number alone.

Axes: B dialogues, T positions, F features, W width of a row, D hidden size, L tokens, V vocabulary.
"""

import pytest
import torch

from eagle_fsd.training.batches import Batches
from eagle_fsd.training.data import Dialogue

D, V = 5, 31
LENGTHS = [5, 23, 11, 17, 11, 31, 9, 8, 13, 29, 7, 19, 41]


class Rows:
    """States that tell where they are from: row of token i of dialogue n is 100 n + i + column / 64
    (to the last bit in float32)."""

    def __init__(self, dialogues, width: int):
        self.dialogues, self.width = dialogues, width

    def rows(self, indices):
        column_W = torch.arange(self.width) / 64
        return [
            100.0 * n + torch.arange(len(self.dialogues[n].ids))[:, None] + column_W
            for n in indices
        ]


@pytest.fixture(scope="module")
def dialogues():
    generator = torch.Generator().manual_seed(0)
    made = []
    for n in LENGTHS:
        ids = torch.randint(0, V, (n,), generator=generator).tolist()
        mask = (torch.rand(n, generator=generator) < 0.7).tolist()
        made.append(Dialogue(ids, mask[:-1] + [True]))
    return made


def make(dialogues, *, width: int = D, **changes) -> Batches:
    settings = {"hidden_size": D, "tokens_per_batch": 64, "held_out": 3, "seed": 0} | changes
    return Batches(Rows(dialogues, width), **settings)


def everything(batches: Batches, epochs: int = 2) -> list[list[int]]:
    return [batches.indices(number) for number in range(epochs * batches.per_epoch)]


def test_order_depends_on_seed_and_number_alone(dialogues):
    """Asked for in any order, by another object, after other epochs: the same dialogues."""
    first = everything(make(dialogues))
    other = make(dialogues, noise=0.3)
    backwards = [other.indices(n) for n in reversed(range(len(first)))][::-1]
    assert backwards == first
    assert everything(make(dialogues, seed=1)) != first


def test_every_epoch_has_each_dialogue_and_its_own_order(dialogues):
    """Nothing twice, nothing left out, no batch over the limit but a lone long dialogue."""
    batches = make(dialogues)
    for epoch in range(4):
        numbers = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        chosen = [batches.indices(number) for number in numbers]
        for indices in chosen:
            padded = len(indices) * max(LENGTHS[i] for i in indices)
            assert padded <= 64 or len(indices) == 1
        seen = [i for indices in chosen for i in indices]
        assert len(seen) == len(set(seen))
        if len(batches._order(epoch)) == batches.per_epoch:
            assert sorted(seen) == batches.training
    orders = [everything(batches, 3)[e * batches.per_epoch :][: batches.per_epoch] for e in (0, 1)]
    assert orders[0] != orders[1]


def test_held_out_dialogues_are_never_trained_on(dialogues):
    """The same ones whatever the seed; together with the others they are all."""
    held = {tuple(make(dialogues, seed=seed).held_out) for seed in range(4)}
    assert len(held) == 1
    batches = make(dialogues)
    trained = {i for indices in everything(batches, 5) for i in indices}
    assert trained.isdisjoint(batches.held_out) and len(batches.held_out) == 3
    assert trained | set(batches.held_out) == set(range(len(dialogues)))


def test_noise_depends_on_seed_and_number_alone(dialogues):
    """On the features alone; uniform in +-noise * 512 / T; the next epoch's is another."""
    clean, noisy = make(dialogues), make(dialogues, noise=0.01)
    for number in (0, 2, 3):
        batch, wanted = noisy.batch(number), clean.batch(number)
        again = make(dialogues, noise=0.01).batch(number)
        assert torch.equal(batch.feature_BTD, again.feature_BTD)
        assert torch.equal(batch.target_feature_BTD, wanted.target_feature_BTD)
        difference_BTD = batch.feature_BTD - wanted.feature_BTD
        largest = 0.01 * 512 / batch.feature_BTD.shape[1]
        assert difference_BTD.abs().max() <= largest * 1.001
        assert difference_BTD.min() < -0.8 * largest and difference_BTD.max() > 0.8 * largest
    other = make(dialogues, noise=0.01, seed=1)
    assert not torch.equal(other._noisy(wanted.feature_BTD, 3), batch.feature_BTD)
    assert not torch.equal(noisy._noisy(wanted.feature_BTD, 4), batch.feature_BTD)
    (held,) = noisy.validation(dialogues=3)
    (wanted,) = clean.validation(dialogues=3)
    assert torch.equal(held.feature_BTD, wanted.feature_BTD), "validation has no noise"


def test_noise_of_bfloat16_features_stays_bfloat16(dialogues):
    """A cache's dtype is kept."""
    noisy = make(dialogues, noise=0.1)
    assert noisy._noisy(torch.zeros(2, 3, D, dtype=torch.bfloat16), 0).dtype == torch.bfloat16


MASKS = {
    "shifted": {},
    "unshifted": {"shift": False},
    "skip": {"skip": 4},
    "vocabulary": {"token_allowed_V": torch.arange(V) % 3 > 0},
    "all": {"shift": False, "skip": 2, "token_allowed_V": torch.arange(V) % 2 > 0},
}


@pytest.mark.parametrize("kind", MASKS)
def test_counted_is_what_the_mask_of_the_batch_holds(dialogues, kind):
    """`counted` reads no states; position by position the mask is that of the definition."""
    changes = MASKS[kind]
    batches = make(dialogues, **changes)
    allowed_V = changes.get("token_allowed_V", torch.ones(V, dtype=torch.bool))
    for number in range(batches.per_epoch):
        batch, indices = batches.batch(number), batches.indices(number)
        assert batches.counted(number) == batch.mask_BT.sum()
        for b, i in enumerate(indices):
            ids, own = dialogues[i].ids, dialogues[i].mask
            shift = 2 if changes.get("shift", True) else 0
            wanted = [
                t >= changes.get("skip", 0) and own[t + shift] and bool(allowed_V[ids[t + 2]])
                for t in range(len(ids) - 2)
            ]
            padding = batch.mask_BT.shape[1] - len(wanted)
            assert batch.mask_BT[b].tolist() == wanted + [False] * padding


@pytest.mark.parametrize("width", [D, 4 * D])
def test_rows_are_split_into_features_and_targets(dialogues, width):
    """F columns of token i, D of token i+1: the same ones, or those behind them (EAGLE-3)."""
    batches = make(dialogues, width=width)
    F = D if width == D else 3 * D
    for batch, indices in [
        (batches.batch(1), batches.indices(1)),
        (next(batches.validation(dialogues=2)), batches.held_out[:2]),
    ]:
        assert batch.feature_BTD.shape[-1] == F and batch.target_feature_BTD.shape[-1] == D
        for b, i in enumerate(indices):
            length = len(dialogues[i].ids) - 1
            rows_LW = Rows(dialogues, width).rows([i])[0]
            assert torch.equal(batch.feature_BTD[b, :length], rows_LW[:-1, :F])
            assert torch.equal(batch.target_feature_BTD[b, :length], rows_LW[1:, width - D :])
            assert batch.next_token_BT[b, :length].tolist() == dialogues[i].ids[1:]


def test_validation_counts_every_answer_position(dialogues):
    """The training masks do not bind it: what is drafted outside of them counts as a miss."""
    batches = make(dialogues, **MASKS["all"])
    held = [mask_T for batch in batches.validation(dialogues=2) for mask_T in batch.mask_BT]
    assert len(held) == 3
    for i, mask_T in zip(batches.held_out, held, strict=True):
        assert mask_T.sum() == sum(dialogues[i].mask[2:])

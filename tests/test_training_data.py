"""Reading dialogues, the shift between tokens, features and mask, and what is trained on when: by
seed and number alone.

Axes: B dialogues, T positions, F features, W width of a row, D hidden size, L tokens, V vocabulary.
"""

import gzip
import json

import pytest
import torch

from eagle_fsd.config import BadInput
from eagle_fsd.training.data import (
    Batches,
    Dialogue,
    HeadBatch,
    digest,
    make_batch,
    read_dialogues,
    supervised,
)


def answered(ids: list[int], start: int) -> Dialogue:
    """A dialogue of one answer, which begins at token `start`."""
    return Dialogue(ids, [i >= start for i in range(len(ids))])


def batch_of(dialogues, features_LD, *, shift: bool = True) -> HeadBatch:
    return make_batch(dialogues, features_LD, [supervised(d, shift=shift) for d in dialogues])


def row(prompt: list, answer: list, **other) -> str:
    return json.dumps({"prompt_ids": prompt, "answer_ids": answer, **other}) + "\n"


def masked(ids: list, mask: list, **other) -> str:
    return json.dumps({"input_ids": ids, "loss_mask": mask, **other}) + "\n"


def written(path, *lines: str):
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_reads_plain_and_gzipped(tmp_path, name):
    """Same dialogues from both; other keys are ignored; the answer starts behind the prompt."""
    path = tmp_path / name
    text = row([5, 6, 7], [8, 9], id="a") + row([1], [2, 3, 4])
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert read_dialogues(path, max_length=100) == [
        answered([5, 6, 7, 8, 9], 3),
        answered([1, 2, 3, 4], 1),
    ]


def test_reads_masks_of_several_turns_and_several_files(tmp_path):
    """The mask as it stands, cut with the tokens; files one after the other, in either format."""
    text = masked([5, 6, 7, 8, 9, 10], [0, 1, 1, 0, 0, 1], source="self") + masked([1] * 9, [1] * 9)
    first = written(tmp_path / "a.jsonl", text)
    second = tmp_path / "b.jsonl.gz"
    second.write_bytes(gzip.compress(row([1], [2, 3, 4]).encode()))
    f, t = False, True
    one = [Dialogue([5, 6, 7, 8, 9, 10], [f, t, t, f, f, t]), Dialogue([1] * 9, [t] * 9)]
    assert read_dialogues(first, max_length=100) == one
    assert read_dialogues([first, str(second)], max_length=100) == [*one, answered([1, 2, 3, 4], 1)]
    assert read_dialogues(first, max_length=4)[0] == Dialogue([5, 6, 7, 8], [f, t, t, f])
    with pytest.raises(ValueError, match="gone.jsonl"):
        read_dialogues([first, tmp_path / "gone.jsonl"], max_length=9)
    with pytest.raises(ValueError, match="at least one file"):
        read_dialogues([], max_length=9)


@pytest.mark.parametrize("mask", [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
def test_dialogues_with_nothing_to_learn_are_dropped(tmp_path, mask):
    """No token of the assistant from the third on and inside max_length: no position counts."""
    lines = [masked([1, 2, 3, 4], mask), masked([5, 6, 7, 8], [0, 0, 1, 0])]
    path = written(tmp_path / "data.jsonl", *lines)
    assert [d.ids for d in read_dialogues(path, max_length=3)] == [[5, 6, 7]]


def test_cuts_at_max_length_and_drops_what_lies_outside(tmp_path):
    """A cut dialogue keeps its answer's start; one whose answer is cut away is left out."""
    lines = [
        row([1, 2], [3, 4, 5, 6, 7]),
        row([1, 2, 3, 4, 5], [6, 7]),
        row([1, 2, 3, 4, 5, 6], [7]),
    ]
    path = written(tmp_path / "data.jsonl", *lines)
    assert read_dialogues(path, max_length=5) == [answered([1, 2, 3, 4, 5], 2)]
    assert [d.ids for d in read_dialogues(path, max_length=7)][:2] == [
        [1, 2, 3, 4, 5, 6, 7],
        [1, 2, 3, 4, 5, 6, 7],
    ]


def test_every_dialogue_that_is_kept_trains_something(tmp_path):
    """Whatever the lengths of prompt and answer, a kept dialogue has a position that counts.

    A batch without one has a loss of NaN. (An empty prompt with two answer tokens was kept.)
    """
    for prompt in range(4):
        for answer in range(4):
            path = written(
                tmp_path / "data.jsonl", row([1] * 9, [2] * 9), row([3] * prompt, [4] * answer)
            )
            for dialogue in read_dialogues(path, max_length=30)[1:]:
                features = torch.zeros(len(dialogue.ids), 2)
                assert batch_of([dialogue], [features]).mask_BT.any(), (prompt, answer)


BROKEN = {
    "no JSON": "{torn",
    "no object": "[1, 2]",
    "null": "null",
    "no answer": '{"prompt_ids": [1, 2]}',
    "text": '{"prompt_ids": "ab", "answer_ids": "cd"}',
    "lists do not match": '{"prompt_ids": [1, 2], "answer_ids": "cd"}',
    "token that is no number": '{"prompt_ids": [1, 2], "answer_ids": [3, null]}',
    "mask is missing": '{"input_ids": [1, 2, 3]}',
    "mask of another length": '{"input_ids": [1, 2, 3], "loss_mask": [0, 1]}',
    "mask is no list": '{"input_ids": [1, 2, 3], "loss_mask": "011"}',
    "mask of other numbers": '{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 2]}',
    "nested": '{"prompt_ids": [[1, 2]], "answer_ids": [3, 4]}',
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_line_is_named(tmp_path, fault):
    """File and line number, as one ValueError."""
    good = row([1, 2, 3], [4, 5])
    path = written(tmp_path / "data.jsonl", good, good, BROKEN[fault] + "\n", good)
    with pytest.raises(ValueError, match=r"data\.jsonl, line 3"):
        read_dialogues(path, max_length=100)


def test_a_missing_file_and_an_empty_one_are_told(tmp_path):
    """Both name the path; nothing usable names max_length too."""
    with pytest.raises(ValueError, match="gone.jsonl"):
        read_dialogues(tmp_path / "gone.jsonl", max_length=10)
    with pytest.raises(ValueError, match="empty.jsonl"):
        read_dialogues(written(tmp_path / "empty.jsonl"), max_length=10)
    with pytest.raises(ValueError, match="inside 3 tokens"):
        read_dialogues(written(tmp_path / "a.jsonl", row([1, 2, 3], [4, 5])), max_length=3)


def numbered(first: int, length: int) -> torch.Tensor:
    """Feature of token j is [first + j, -(first + j), 0.5]: a shift or swap is seen."""
    value_L = torch.arange(first, first + length, dtype=torch.float32)
    return torch.stack([value_L, -value_L, torch.full_like(value_L, 0.5)], dim=1)


def test_the_drawn_example():
    """HeadBatch's docstring, entry by entry: 5 tokens, answer from token 3."""
    batch = batch_of([answered([20, 21, 22, 23, 24], 3)], [numbered(100, 5)])
    assert batch.feature_BTD[0, :, 0].tolist() == [100, 101, 102, 103]
    assert batch.next_token_BT.tolist() == [[21, 22, 23, 24]]
    assert batch.target_feature_BTD[0, :, 0].tolist() == [101, 102, 103, 104]
    assert batch.target_feature_BTD[0, :, 1].tolist() == [-101, -102, -103, -104]
    assert batch.mask_BT.tolist() == [[False, True, True, False]]


def test_the_second_drawn_example():
    """HeadBatch's docstring: an answer inside the dialogue, with the mask shifted and not."""
    dialogue = Dialogue([20, 21, 22, 23, 24, 25, 26], [bool(m) for m in (0, 1, 1, 1, 0, 0, 0)])
    shifted, unshifted = (
        batch_of([dialogue], [numbered(0, 7)], shift=shift).mask_BT[0].int().tolist()
        for shift in (True, False)
    )
    assert shifted == [1, 1, 0, 0, 0, 0]
    assert unshifted == [0, 1, 1, 1, 0, 0]


def test_two_turns():
    """Both answers count, and not the user's turn between them; by hand."""
    mask = [bool(m) for m in (0, 0, 0, 1, 1, 0, 0, 0, 1, 1)]
    dialogue = Dialogue(list(range(20, 30)), mask)
    assert supervised(dialogue).int().tolist() == [0, 1, 1, 0, 0, 0, 1, 1, 0]
    assert supervised(dialogue, shift=False).int().tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert supervised(dialogue, skip=2).int().tolist() == [0, 0, 1, 0, 0, 0, 1, 1, 0]
    allowed_V = torch.ones(40, dtype=torch.bool)
    allowed_V[[23, 29]] = False  # tokens 3 and 9, which positions 1 and 7 predict
    wanted = [0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert supervised(dialogue, token_allowed_V=allowed_V).int().tolist() == wanted
    given = [torch.tensor([bool(m) for m in wanted])]
    assert make_batch([dialogue], [numbered(0, 10)], given).mask_BT[0].int().tolist() == wanted


def test_padding_on_the_right():
    """Shorter dialogues get zero features, token 0 and no mask behind their end."""
    dialogues = [answered([20, 21, 22], 1), answered([30, 31, 32, 33, 34, 35], 4)]
    batch = batch_of(dialogues, [numbered(100, 3), numbered(200, 6)])
    assert batch.next_token_BT.tolist() == [[21, 22, 0, 0, 0], [31, 32, 33, 34, 35]]
    assert batch.feature_BTD[..., 0].tolist() == [[100, 101, 0, 0, 0], [200, 201, 202, 203, 204]]
    target = batch.target_feature_BTD[..., 0].tolist()
    assert target == [[101, 102, 0, 0, 0], [201, 202, 203, 204, 205]]
    assert batch.feature_BTD[0, 2:].eq(0).all() and batch.target_feature_BTD[0, 2:].eq(0).all()
    # token i + 2 of the first is token 2 at i = 0 alone; of the second tokens 4, 5 at i = 2, 3
    assert batch.mask_BT.int().tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 1, 0]]


@pytest.mark.parametrize("token", [2.5, 3.0, "4", True, None])
def test_a_token_that_is_no_whole_number_is_refused(tmp_path, token):
    """2.5 was read as 2, and "4" as 4."""
    path = tmp_path / "data.jsonl"
    for row in (
        {"input_ids": [1, 2, token, 3], "loss_mask": [0, 0, 1, 1]},
        {"prompt_ids": [1, 2], "answer_ids": [token, 3]},
    ):
        path.write_text(json.dumps(row) + "\n")
        with pytest.raises(BadInput, match="line 1"):
            read_dialogues(path, max_length=9)


def test_the_digest_is_of_the_mask_too():
    """Another loss_mask went on under the digest of the old one."""
    ids = [3, 5, 7, 11]
    one, other = (Dialogue(ids, [False, False, True, last]) for last in (True, False))
    assert digest([one]) != digest([other])


D, V = 5, 31
LENGTHS = [5, 23, 11, 17, 11, 31, 9, 8, 13, 29, 7, 19, 41]


def telling_rows(dialogues, width: int):
    """States that tell where they are from: row of token i of dialogue n is 100 n + i + column / 64
    (to the last bit in float32)."""
    column_W = torch.arange(width) / 64

    def rows(indices):
        return [
            100.0 * n + torch.arange(len(dialogues[n].ids))[:, None] + column_W for n in indices
        ]

    return rows


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
    return Batches(dialogues, telling_rows(dialogues, width), **settings)


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
            rows_LW = telling_rows(dialogues, width)([i])[0]
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

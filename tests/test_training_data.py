"""Reading dialogues, the shift between tokens, features and mask, and what is trained on when: by
seed and number alone.

Axes: B dialogues, T positions, F features, D hidden size, L tokens, V vocabulary.
"""

import json
from threading import get_ident

import pytest
import torch

from eagle_fsd.config import BadInput
from eagle_fsd.training.data import Batches, Dialogue, read_dialogues, split, supervised
from eagle_fsd.training.read_ahead import ReadAhead

V = 31


def masked(ids: list, mask: str) -> Dialogue:
    """A dialogue whose mask is written as a text of 0 and 1."""
    return Dialogue(ids, [m == "1" for m in mask])


def row(ids: list, mask: str, **other) -> str:
    return json.dumps({"input_ids": ids, "loss_mask": [int(m) for m in mask], **other}) + "\n"


def test_every_dialogue_that_is_kept_trains_something(tmp_path):
    """A kept one has a position that counts, a dropped one none (a batch without one has a loss of
    NaN; an empty prompt with two answer tokens was kept). Masks are cut with the tokens, other keys
    ignored."""
    path = tmp_path / "data.jsonl"
    path.write_text(row([5, 6, 7, 8, 9], "00011", id="a") + row([5, 6, 7, 8, 9, 10], "011001"))
    cut = read_dialogues(path, vocab_size=V, max_length=4)
    assert cut == [masked([5, 6, 7, 8], "0001"), masked([5, 6, 7, 8], "0110")]
    for prompt in range(4):
        for answer in range(4):
            mask = "0" * prompt + "1" * answer
            path.write_text(row([1, 2, 3], "001") + row([3] * len(mask), mask))
            kept = read_dialogues(path, vocab_size=V, max_length=30)[1:]
            assert all(supervised(dialogue).any() for dialogue in kept)
            assert bool(kept) == (answer > 0 and prompt + answer > 2)


# --- batches --------------------------------------------------------------------------------------

F, D = 7, 5
LENGTHS = [5, 23, 11, 17, 11, 31, 9, 8, 13, 29, 7, 19, 41]


def told(dialogues, n: int, width: int) -> torch.Tensor:
    """States that tell where they are from, to the last bit in float32: 100 n + i + column / 64
    for token i of dialogue n. A shift or swap is seen."""
    place_L1 = 100.0 * n + torch.arange(len(dialogues[n].ids))[:, None]
    return place_L1 + torch.arange(width) / 64


@pytest.fixture(scope="module")
def dialogues():
    generator = torch.Generator().manual_seed(0)
    made = []
    for n in LENGTHS:
        ids = torch.randint(0, V, (n,), generator=generator).tolist()
        mask = (torch.rand(n, generator=generator) < 0.7).tolist()
        made.append(Dialogue(ids, mask[:-1] + [True]))
    return made


def make(dialogues, **changes) -> Batches:
    ids = [dialogue.ids for dialogue in dialogues]

    def states_of(texts):
        numbers = [ids.index(text) for text in texts]
        return [(told(dialogues, n, F), -told(dialogues, n, D)) for n in numbers]

    sources = {"states_of": states_of, "kept_of": states_of}
    sources |= {key: changes.pop(key) for key in sources if key in changes}
    masks = {key: changes.pop(key) for key in ("skip", "allowed_V") if key in changes}
    masks_T = [supervised(dialogue, **masks) for dialogue in dialogues]
    settings = {"tokens_per_batch": 64, "seed": 0, "noise": 0.0} | sources | changes
    return Batches(dialogues, masks_T, **settings)


def test_a_part_of_the_answers_lies_within_a_larger_part(dialogues):
    """Held out and training are all."""
    training, held = split(dialogues, held_out=3)
    assert len(held) == 3 and len(training) == len(dialogues) - 3
    assert all(dialogue in training + held for dialogue in dialogues)
    limits = (1, 60, 10**9)
    parts = [split(dialogues, held_out=3, answer_tokens=n) for n in limits]
    assert all(part[1] == held for part in parts) and parts[-1][0] == training
    for n, (smaller, _), (larger, _) in zip(limits, parts, parts[1:], strict=False):
        tokens = [sum(dialogue.mask) for dialogue in smaller]
        assert sum(tokens) >= n > sum(tokens[:-1]) and smaller == larger[: len(smaller)] != larger


def test_what_equals_a_held_out_dialogue_is_not_trained_on(dialogues):
    """Bug held down: of data that holds dialogues twice, or of two files that share some, half of
    what was held out was trained on too. Tokens decide, not who is said to have written them; what
    is held out are different dialogues, and those that stand once are split as ever."""
    other = [Dialogue(d.ids, [True] * len(d.ids)) for d in dialogues]
    training, held = split(dialogues + other, held_out=8)
    texts = {tuple(dialogue.ids) for dialogue in held}
    assert len(held) == len(texts) == 8
    assert not texts & {tuple(dialogue.ids) for dialogue in training}
    assert len(training) == 2 * (len(dialogues) - 8)
    with pytest.raises(BadInput, match="leaves none of 5 dialogues"):
        split([dialogues[0]] * 5, held_out=1)
    # of a template that forgets thoughts, a dialogue has a row a turn
    rows = [Dialogue(d.ids, d.mask, number=n // 2) for n, d in enumerate(dialogues)]
    training, held = split(rows, held_out=8)
    assert len(held) == 8 and training
    assert not {row.number for row in held} & {row.number for row in training}


def test_every_epoch_has_each_dialogue_and_its_own_order(dialogues):
    """Nothing twice, nothing left out, no batch over the limit but a lone long dialogue; asked for
    in any order, by another object, after other epochs: the same dialogues."""
    batches, noisy, other = make(dialogues), make(dialogues, noise=0.3), make(dialogues, seed=1)
    orders = []
    for epoch in range(4):
        numbers = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        orders.append([batches.indices(number) for number in numbers])
        assert [noisy.indices(number) for number in numbers[::-1]] == orders[-1][::-1]
        for indices in orders[-1]:
            assert len(indices) * max(LENGTHS[i] for i in indices) <= 64 or len(indices) == 1
        seen = [i for indices in orders[-1] for i in indices]
        assert len(seen) == len(set(seen))
        if len(batches._shuffled(epoch)) == batches.per_epoch:
            assert sorted(seen) == list(range(len(LENGTHS)))
    assert orders[0] != orders[1]
    assert orders[0] != [other.indices(number) for number in range(batches.per_epoch)]


def test_noise_depends_on_seed_and_number_alone(dialogues):
    """On the features alone; uniform in +-noise * 512 / T; the next epoch's is another."""
    clean, noisy, again = (make(dialogues, noise=noise) for noise in (0, 0.01, 0.01))
    for number in (3, 0, 2):
        batch, wanted = noisy.batch(number), clean.batch(number)
        assert torch.equal(batch.target_hidden_BTD, wanted.target_hidden_BTD)
        difference_BTF = batch.feature_BTF - wanted.feature_BTF
        largest = 0.01 * 512 / batch.feature_BTF.shape[1]
        assert 0.8 * largest < difference_BTF.max() <= 1.001 * largest
        assert 0.8 * largest < -difference_BTF.min() <= 1.001 * largest
    assert torch.equal(batch.feature_BTF, again.batch(number).feature_BTF)
    same = [Dialogue(dialogues[0].ids, dialogues[0].mask)] * 3  # a batch each, alike but for noise
    first, second = (make(same, noise=0.01, tokens_per_batch=1, seed=seed) for seed in (0, 1))
    drawn = [first.batch(0), first.batch(1), first.batch(first.per_epoch), second.batch(0)]
    assert len({batch.feature_BTF.sum().item() for batch in drawn}) == 4


@pytest.mark.parametrize("kept", [True, False])
def test_the_next_batch_is_read_by_a_thread(dialogues, kept):
    """And is the batch that it is without. What is not kept is computed by who asks for it."""
    plain, here = make(dialogues, noise=0.01), get_ident()
    threads: dict[str, list[int]] = {"read": [], "computed": []}

    def kept_of(texts):
        threads["read"].append(get_ident())
        return plain.states_of(texts) if kept else None

    def states_of(texts):
        threads["computed"].append(get_ident())
        return plain.states_of(texts)

    batches = make(dialogues, noise=0.01, kept_of=kept_of, states_of=states_of)
    with ReadAhead(batches, torch.device("cpu"), stride=2) as ahead:
        for number in (1, 3, 5):
            for part, wanted in zip(ahead.batch(number), plain.batch(number), strict=True):
                assert torch.equal(part, wanted)
    first, *others = threads["read"]
    assert first == here and len(others) >= 2 and here not in others
    assert threads["computed"] == ([] if kept else [here] * 3)


def test_an_error_of_the_thread_is_raised_where_its_batch_is_asked_for(dialogues):
    plain = make(dialogues)

    def kept_of(texts):
        if texts == plain.texts(1):
            raise BadInput("the second batch is damaged")
        return plain.states_of(texts)

    with ReadAhead(make(dialogues, kept_of=kept_of), torch.device("cpu"), stride=1) as ahead:
        ahead.batch(0)
        with pytest.raises(BadInput, match="the second batch is damaged"):
            ahead.batch(1)


@pytest.mark.parametrize(
    "changes", [{}, {"skip": 4}, {"skip": 2, "allowed_V": torch.arange(V) % 3 > 0}], ids=str
)
def test_a_batch_is_that_of_the_drawn_example(dialogues, changes):
    """HeadBatch's: feature of token i, token and hidden state i+1, whether token i+2 counts, in all
    turns, behind the first positions and if it may be drafted; zeros behind a dialogue's end.
    `counted` says how many, and reads no states."""
    batches = make(dialogues, **changes)
    allowed_V = changes.get("allowed_V", torch.ones(V, dtype=torch.bool))
    for number in range(batches.per_epoch):
        batch, indices = batches.batch(number), batches.indices(number)
        assert batches.counted(number) == batch.mask_BT.sum()
        for b, i in enumerate(indices):
            ids, own, end = dialogues[i].ids, dialogues[i].mask, len(dialogues[i].ids) - 1
            assert torch.equal(batch.feature_BTF[b, :end], told(dialogues, i, F)[:-1])
            assert torch.equal(batch.target_hidden_BTD[b, :end], -told(dialogues, i, D)[1:])
            assert batch.next_token_BT[b, :end].tolist() == ids[1:]
            wanted = [
                t >= changes.get("skip", 0) and own[t + 2] and bool(allowed_V[ids[t + 2]])
                for t in range(end - 1)
            ]
            padding = batch.mask_BT.shape[1] - len(wanted)
            assert batch.mask_BT[b].tolist() == wanted + [False] * padding
            for part in batch:
                assert part[b, end:].eq(0).all()

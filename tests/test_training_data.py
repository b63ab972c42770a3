"""Reading dialogues, and the shift between tokens, features and mask in a batch."""

import gzip
import json

import pytest
import torch

from eagle_fsd.config import BadInput
from eagle_fsd.training.data import Dialogue, digest, make_batch, read_dialogues, supervised


def answered(ids: list[int], start: int) -> Dialogue:
    """A dialogue of one answer, which begins at token `start`."""
    return Dialogue(ids, [i >= start for i in range(len(ids))])


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


def test_tokens_and_mask_must_match():
    with pytest.raises(ValueError, match="3 tokens, but a mask of 2"):
        Dialogue([1, 2, 3], [True, False])


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
                assert make_batch([dialogue], [features]).mask_BT.any(), (prompt, answer)


BROKEN = {
    "no JSON": "{torn",
    "empty line": "",
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


@pytest.mark.parametrize("fault", ["truncated", "damaged", "not gzip"])
def test_a_broken_gzip_is_told(tmp_path, fault):
    """A file whose copy was cut short, say: one ValueError that names it, not gzip's own errors."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 10**6, (2000,), generator=generator).tolist()
    data = gzip.compress(row(ids, ids).encode())
    damaged = data[:500] + bytes(b ^ 255 for b in data[500:600]) + data[600:]
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes({"truncated": data[:-50], "damaged": damaged, "not gzip": b"{}\n"}[fault])
    with pytest.raises(ValueError, match=r"data\.jsonl\.gz"):
        read_dialogues(path, max_length=10**6)


def numbered(first: int, length: int) -> torch.Tensor:
    """Feature of token j is [first + j, -(first + j), 0.5]: a shift or swap is seen."""
    value_L = torch.arange(first, first + length, dtype=torch.float32)
    return torch.stack([value_L, -value_L, torch.full_like(value_L, 0.5)], dim=1)


def test_the_drawn_example():
    """HeadBatch's docstring, entry by entry: 5 tokens, answer from token 3."""
    batch = make_batch([answered([20, 21, 22, 23, 24], 3)], [numbered(100, 5)])
    assert batch.feature_BTD[0, :, 0].tolist() == [100, 101, 102, 103]
    assert batch.next_token_BT.tolist() == [[21, 22, 23, 24]]
    assert batch.target_feature_BTD[0, :, 0].tolist() == [101, 102, 103, 104]
    assert batch.target_feature_BTD[0, :, 1].tolist() == [-101, -102, -103, -104]
    assert batch.mask_BT.tolist() == [[False, True, True, False]]


def test_the_drawn_example_unshifted():
    """Upstream's mask on the same dialogue: nothing counts, since the last position never does."""
    dialogue = answered([20, 21, 22, 23, 24], 3)
    batch = make_batch([dialogue], [numbered(100, 5)], shift_mask=False)
    assert batch.mask_BT.tolist() == [[False, False, False, False]]
    shifted = make_batch([dialogue], [numbered(100, 5)])
    assert torch.equal(batch.target_feature_BTD, shifted.target_feature_BTD)


def test_the_second_drawn_example():
    """HeadBatch's docstring: an answer inside the dialogue, with the mask shifted and not."""
    dialogue = Dialogue([20, 21, 22, 23, 24, 25, 26], [bool(m) for m in (0, 1, 1, 1, 0, 0, 0)])
    shifted, unshifted = (
        make_batch([dialogue], [numbered(0, 7)], shift_mask=shift).mask_BT[0].int().tolist()
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
    """Shorter dialogues get zero features, the pad token and no mask behind their end."""
    dialogues = [answered([20, 21, 22], 1), answered([30, 31, 32, 33, 34, 35], 4)]
    batch = make_batch(dialogues, [numbered(100, 3), numbered(200, 6)], pad_token=7)
    assert batch.next_token_BT.tolist() == [[21, 22, 7, 7, 7], [31, 32, 33, 34, 35]]
    assert batch.feature_BTD[..., 0].tolist() == [[100, 101, 0, 0, 0], [200, 201, 202, 203, 204]]
    target = batch.target_feature_BTD[..., 0].tolist()
    assert target == [[101, 102, 0, 0, 0], [201, 202, 203, 204, 205]]
    assert batch.feature_BTD[0, 2:].eq(0).all() and batch.target_feature_BTD[0, 2:].eq(0).all()
    # token i + 2 of the first is token 2 at i = 0 alone; of the second tokens 4, 5 at i = 2, 3
    assert batch.mask_BT.int().tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 1, 0]]


@pytest.mark.parametrize("start", range(6))
def test_the_mask_is_whether_token_i_plus_2_is_in_the_answer(start):
    """Its definition, read off the tokens, for every start of the answer."""
    ids = [10, 11, 12, 13, 14, 15]
    batch = make_batch([answered(ids, start)], [numbered(0, 6)])
    wanted = [i + 2 < len(ids) and i + 2 >= start for i in range(len(ids) - 1)]
    assert batch.mask_BT[0].tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    """Features keep theirs; tokens are int64 and the mask bool, as the embedding and index need."""
    batch = make_batch([answered([1, 2, 3, 4], 2)], [numbered(0, 4).to(dtype)])
    assert batch.feature_BTD.dtype == batch.target_feature_BTD.dtype == dtype
    assert batch.next_token_BT.dtype == torch.int64 and batch.mask_BT.dtype == torch.bool
    moved = batch.to(torch.device("cpu"))
    assert all(
        torch.equal(a, b) for a, b in zip(vars(batch).values(), vars(moved).values(), strict=True)
    )


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_features_of_another_length_are_refused(rows):
    """One row per token, or an error: two rows for four tokens were broadcast over all of them."""
    with pytest.raises((ValueError, RuntimeError, AssertionError)):
        make_batch([answered([1, 2, 3, 4], 2)], [numbered(0, rows)])


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

"""The draft vocabulary: what the assistant wrote most often, and a head confined to it."""

import pytest
import torch

from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import build_head
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.vocabulary import (
    answer_counts,
    coverage,
    cut_vocabulary,
    draft_tokens,
    frequent_tokens,
)


def dialogue(prompt: list[int], answer: list[int]) -> Dialogue:
    return Dialogue(prompt + answer, [False] * len(prompt) + [True] * len(answer))


# answers: 7 three times, 2 and 9 twice, 11 and 4 once; 5 only in prompts
DIALOGUES = [dialogue([5, 5, 5, 5], [7, 9, 7, 2]), dialogue([5, 1], [11, 9, 7, 2, 4])]


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (1, [7]),
        (2, [2, 7]),  # 2 and 9 are equal: the lower id
        (3, [2, 7, 9]),
        (4, [2, 4, 7, 9]),
        (5, [2, 4, 7, 9, 11]),
        (8, [0, 1, 2, 3, 4, 7, 9, 11]),  # filled from below; 5 is prompt alone and no better
        (13, list(range(13))),
    ],
)
def test_the_most_frequent_tokens_of_answers(size, wanted):
    """Ascending, ties to the lower id, filled up from below, whatever the data's order."""
    for data in (DIALOGUES, DIALOGUES[::-1]):
        token_R = frequent_tokens(data, size, vocab_size=13)
        assert token_R.dtype == torch.int64 and token_R.tolist() == wanted


@pytest.mark.parametrize("size", [0, -1, 14])
def test_an_impossible_size_is_told(size):
    """With the vocabulary's own."""
    with pytest.raises(ValueError, match=f"{size} must be 1 to 13"):
        frequent_tokens(DIALOGUES, size, vocab_size=13)


def test_coverage():
    """Of the assistant's tokens, each as often as it was written; prompts do not count."""
    assert coverage(DIALOGUES, torch.tensor([2, 7])) == pytest.approx(5 / 9)
    assert coverage(DIALOGUES, torch.arange(13)) == 1.0
    assert coverage(DIALOGUES, torch.tensor([5])) == 0.0
    assert coverage([Dialogue([1, 2], [False, False])], torch.tensor([1])) == 0.0
    assert answer_counts(DIALOGUES) == {7: 3, 2: 2, 9: 2, 4: 1, 11: 1}


def test_the_most_frequent_of_some_tokens():
    """Others are passed over, and fill nothing up."""
    among_R = torch.tensor([1, 4, 6, 9, 12])
    for size, wanted in ((1, [9]), (2, [4, 9]), (3, [1, 4, 9]), (5, [1, 4, 6, 9, 12])):
        token_R = frequent_tokens(DIALOGUES, size, vocab_size=13, among_R=among_R)
        assert token_R.tolist() == wanted
    with pytest.raises(ValueError, match="6 must be 1 to 5"):
        frequent_tokens(DIALOGUES, 6, vocab_size=13, among_R=among_R)


def small_head(**changes) -> tuple[HeadConfig, dict]:
    sizes = {"hidden_size": 8, "intermediate_size": 11, "num_attention_heads": 2, "vocab_size": 13}
    head = build_head(HeadConfig(**sizes | changes))
    if head.d2t is not None:
        head.set_draft_tokens(torch.tensor([2, 5, 7, 9]))
    return head.config, head.state_dict()


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_cutting_a_vocabulary(kind):
    """The docstring's example; what is cut still loads, and the head given is unchanged."""
    config, tensors = small_head(head_type=kind, draft_vocab_size=4)
    former = {key: tensor.clone() for key, tensor in tensors.items()}
    smaller, cut = cut_vocabulary(config, tensors, torch.tensor([5, 9]))
    assert cut["d2t"].tolist() == [5, 8] and draft_tokens(smaller, cut).tolist() == [5, 9]
    if kind == "eagle3":
        assert torch.equal(cut["lm_head.weight"], tensors["lm_head.weight"][[1, 3]])
        assert cut["t2d"].nonzero()[:, 0].tolist() == [5, 9]
    build_head(smaller).load_state_dict(cut)
    assert config.draft_vocab_size == 4
    assert all(torch.equal(tensors[key], former[key]) for key in former)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_cutting_a_head_over_all_tokens(kind):
    """d2t appears, and EAGLE-3's lm_head shrinks."""
    config, tensors = small_head(head_type=kind)
    assert draft_tokens(config, tensors).tolist() == list(range(13))
    smaller, cut = cut_vocabulary(config, tensors, torch.tensor([0, 5, 12]))
    assert cut["d2t"].tolist() == [0, 4, 10] and smaller.draft_vocab_size == 3
    build_head(smaller).load_state_dict(cut)


def test_tokens_that_a_head_cannot_draft_are_told():
    """Their number and one of them; an EAGLE-3 head has no row for them."""
    config, tensors = small_head(head_type="eagle3", draft_vocab_size=4)
    with pytest.raises(
        ValueError, match=r"drafts 4 of 13 tokens, and 2 of the 3 .* \(token 6, say"
    ):
        cut_vocabulary(config, tensors, torch.tensor([5, 6, 10]))

"""The draft vocabulary: what the assistant wrote most often."""

import pytest
import torch

from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.vocabulary import coverage, frequent_tokens


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

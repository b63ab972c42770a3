"""The draft vocabulary: what the assistant wrote most often, and a head confined to it."""

import pytest
import torch

from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import (
    answer_counts,
    build_head,
    coverage,
    cut_vocabulary,
    frequent_tokens,
)
from eagle_fsd.training.data import Dialogue


def dialogue(prompt: list[int], answer: list[int]) -> Dialogue:
    return Dialogue(prompt + answer, [False] * len(prompt) + [True] * len(answer))


# answers: 7 three times, 2 and 9 twice, 11 and 4 once; 5 only in prompts
DIALOGUES = [dialogue([5, 5, 5, 5], [7, 9, 7, 2]), dialogue([5, 1], [11, 9, 7, 2, 4])]
COUNTS = answer_counts(DIALOGUES)


@pytest.mark.parametrize(
    ("among", "size", "wanted"),
    [
        (range(13), 1, [7]),
        (range(13), 2, [2, 7]),  # 2 and 9 are equal: the lower id
        (range(13), 3, [2, 7, 9]),
        (range(13), 5, [2, 4, 7, 9, 11]),
        (range(13), 8, [0, 1, 2, 3, 4, 7, 9, 11]),  # filled from below; 5 is prompt alone
        (range(13), 13, list(range(13))),
        ([1, 4, 6, 9, 12], 1, [9]),  # of some tokens: others are passed over, and fill nothing up
        ([1, 4, 6, 9, 12], 3, [1, 4, 9]),
        ([1, 4, 6, 9, 12], 5, [1, 4, 6, 9, 12]),
    ],
)
def test_the_most_frequent_tokens_of_answers(among, size, wanted):
    """Ascending, ties to the lower id, filled up from below, whatever the data's order."""
    for data in (DIALOGUES, DIALOGUES[::-1]):
        token_R = frequent_tokens(answer_counts(data), size, torch.tensor(among))
        assert token_R.dtype == torch.int64 and token_R.tolist() == wanted


def test_coverage():
    """Of the assistant's tokens, each as often as it was written; prompts do not count."""
    assert COUNTS == {7: 3, 2: 2, 9: 2, 4: 1, 11: 1}
    assert coverage(COUNTS, torch.tensor([2, 7])) == pytest.approx(5 / 9)
    assert coverage(COUNTS, torch.arange(13)) == 1.0
    assert coverage(COUNTS, torch.tensor([5])) == 0.0
    unanswered = answer_counts([Dialogue([1, 2], [False, False])])
    assert coverage(unanswered, torch.tensor([1])) == 0.0


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_cutting_a_head_over_all_tokens(kind):
    """d2t appears, and EAGLE-3's lm_head shrinks. Others are cut in test_convert_head.py."""
    sizes = {"hidden_size": 8, "intermediate_size": 11, "num_attention_heads": 2, "vocab_size": 13}
    head = build_head(HeadConfig(**sizes, head_type=kind))
    cut = cut_vocabulary(head, torch.tensor([0, 5, 12]))
    assert cut.d2t.tolist() == [0, 4, 10]
    if kind == "eagle3":
        assert torch.equal(cut.lm_head.weight, head.lm_head.weight[[0, 5, 12]])

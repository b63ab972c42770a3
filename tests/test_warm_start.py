"""What a new head takes over from another one, and what is left and named."""

import pytest
import torch
from tiny import tiny_head, tiny_target
from tiny_eagle3 import tiny_head3

from eagle_fsd.config import BadInput
from eagle_fsd.training.head_run import start_from_head


def test_a_head_of_another_shape_gives_what_fits():
    """Another intermediate size: the MLP is left; of EAGLE-1/2 nothing fits EAGLE-3."""
    target = tiny_target("llama")
    head, other = tiny_head(target), tiny_head(target, seed=1, intermediate_size=61)
    left = start_from_head(head, other)
    assert {key.split(".")[2] for key in left} == {"mlp"} and len(left) == 3
    assert torch.equal(head.fc.weight, other.fc.weight)
    with pytest.raises(BadInput, match="no weight of this head"):
        start_from_head(tiny_head3(), tiny_head(target))


@pytest.mark.parametrize(("ours", "theirs"), [(None, 37), (37, 37), (37, None), (23, 37)])
def test_an_eagle3_lm_head_goes_by_token(ours, theirs):
    """The same row number is another token in another draft vocabulary.

    (Where both had as many tokens, rows were copied by number.)
    """
    head, other = tiny_head3(draft_vocab_size=ours), tiny_head3(draft_vocab_size=theirs, seed=1)
    before = {key: tensor.clone() for key, tensor in head.state_dict().items()}
    left = start_from_head(head, other)
    own, given = (
        list(range(101)) if h.d2t is None else h.draft_token_R.tolist() for h in (head, other)
    )
    for r, token in enumerate(own):
        wanted = other.lm_head.weight[given.index(token)] if token in given else None
        wanted = before["lm_head.weight"][r] if wanted is None else wanted
        assert torch.equal(head.lm_head.weight[r], wanted), token
    assert ("lm_head.weight" in left) == (theirs is not None)
    assert torch.equal(head.fc.weight, other.fc.weight)
    assert head.d2t is None or torch.equal(head.d2t, before["d2t"])

"""Weights that a new head takes over from another one."""

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.heads.models import DraftHead


@torch.no_grad()
def start_from_head(head: DraftHead, other: DraftHead) -> list[str]:
    """Copy what has one name and one shape in both; returns the keys left as they were.

    The draft vocabulary is not copied; rows of an EAGLE-3 lm_head go by token, and its key is
    returned if some tokens of this head's vocabulary have no row there.

    Raises:
        BadInput: nothing fits.
    """
    theirs, own = other.state_dict(), dict(head.named_parameters())
    left = []
    for key, parameter in own.items():
        if key == "lm_head.weight" and key in theirs:
            whole = _copy_token_rows(head, other)
        elif whole := key in theirs and theirs[key].shape == parameter.shape:
            parameter.copy_(theirs[key])
        if not whole:
            left.append(key)
    if len(left) == len(own):
        raise BadInput("the head to start from has no weight of this head's names and shapes")
    return left


def _copy_token_rows(head: DraftHead, other: DraftHead) -> bool:
    """The other's lm_head rows of the tokens that both draft; whether those are all of ours."""
    every_V = torch.arange(head.config.vocab_size)
    own_R, their_R = (
        every_V if h.draft_token_R is None else h.draft_token_R for h in (head, other)
    )
    shared_R = torch.isin(own_R, their_R)
    row_R = torch.searchsorted(their_R, own_R[shared_R])
    head.lm_head.weight[shared_R] = other.lm_head.weight[row_R].to(head.lm_head.weight)
    return bool(shared_R.all())

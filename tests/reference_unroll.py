"""The head unrolled one root at a time: the slow obvious version of heads/draft_head.py.

Axes: B dialogues, T positions, L of them up to a level, D hidden size, F features, S steps.
"""

import torch

from eagle_fsd.heads.draft_head import DraftHead, unroll


def slow_unroll(head, feature_BTF, embedding_BTD, root: int, steps: int) -> torch.Tensor:
    """[steps, B, D]: true features up to `root`, then the head's own, each time from scratch."""
    feature_BLD, outputs = head.fuse(feature_BTF)[:, : root + 1], []
    for _ in range(steps):
        L = feature_BLD.shape[1]
        hidden_BLD = head(feature_BLD, embedding_BTD[:, :L], head.angles(torch.arange(L))[None])
        outputs.append(hidden_BLD[:, -1])
        feature_BLD = torch.cat([feature_BLD, hidden_BLD[:, -1:]], dim=1)
    return torch.stack(outputs)


@torch.no_grad()
def assert_unrolled(
    head: DraftHead, feature_BTF, embedding_BTD, *, steps: int, tolerance: float
) -> None:
    """Entry [s-1, :, root+s-1] is the s-th level below `root`, wherever a root exists; so nothing
    depends on later text, and right padding needs no mask."""
    hidden_SBTD = unroll(head, feature_BTF, embedding_BTD, steps=steps)
    assert hidden_SBTD.shape == (steps, *embedding_BTD.shape)
    T = embedding_BTD.shape[1]
    for root in range(T):
        levels = range(min(steps, T - root))
        wanted_SBD = slow_unroll(head, feature_BTF, embedding_BTD, root, len(levels))
        got_SBD = torch.stack([hidden_SBTD[s, :, root + s] for s in levels])
        torch.testing.assert_close(got_SBD, wanted_SBD, atol=tolerance, rtol=tolerance)

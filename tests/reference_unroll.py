"""The head unrolled one root at a time: the slow obvious version of heads/draft_head.py.

Axes: B dialogues, T positions, L of them up to a level, D hidden size, F features, S steps.
"""

import torch


def slow_unroll(head, feature_BTF, embedding_BTD, root: int, steps: int) -> torch.Tensor:
    """[steps, B, D]: true features up to `root`, then the head's own, each time from scratch."""
    feature_BLD, outputs = head.fuse(feature_BTF)[:, : root + 1], []
    for _ in range(steps):
        L = feature_BLD.shape[1]
        hidden_BLD = head(feature_BLD, embedding_BTD[:, :L], head.angles(torch.arange(L)))
        outputs.append(hidden_BLD[:, -1])
        feature_BLD = torch.cat([feature_BLD, hidden_BLD[:, -1:]], dim=1)
    return torch.stack(outputs)

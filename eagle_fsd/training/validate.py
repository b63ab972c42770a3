"""How good a head is on held-out answers: in tokens per round, by replay."""

from collections.abc import Sequence
from itertools import groupby

import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import visited_roots
from eagle_fsd.heads.models import DraftHead
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import TargetStates


@torch.no_grad()
def expected_tokens_per_round(
    head: DraftHead, states: TargetStates, dialogues: Sequence[Dialogue], tree: TreeConfig
) -> float | None:
    """Tokens a round that exact decoding of these answers would have had, by replay.

    For answers that the target wrote greedily this is what decoding them gives; drawn at a
    temperature, it is what drawing them again would have given. None if no answer is long enough.

    Args:
        head: on the target's device, in its dtype, as it will be decoded with.
    """
    target = states.target
    drafter = EagleDrafter(head, target, tree)
    tokens = rounds = 0
    for dialogue in dialogues:
        ((feature_LF, _),) = states.of([dialogue.ids])
        ids_L = torch.tensor(dialogue.ids, device=target.device)
        text = HeadOnText(drafter, ids_L, feature_LF.to(target.device, target.dtype), tree)
        for first, end in answer_spans(dialogue):
            # from each root on, as many tokens as the tree is deep must be the answer's
            root_B = torch.arange(first, max(first, end - tree.tree_depth), device=ids_L.device)
            if len(root_B):
                accepted_B = grow(text, root_B, tree).accepted(tree)
                visited = visited_roots(accepted_B)
                rounds += len(visited)
                tokens += len(visited) + int(accepted_B[visited].sum())
    return tokens / rounds if rounds else None


def answer_spans(dialogue: Dialogue) -> list[tuple[int, int]]:
    """[first, end) of every run of tokens that the assistant wrote.

    Example: mask 0 1 1 0 0 1 has the spans (1, 3) and (5, 6).
    """
    spans, end = [], 0
    for own, run in groupby(dialogue.mask):
        first, end = end, end + len(list(run))
        if own:
            spans.append((first, end))
    return spans

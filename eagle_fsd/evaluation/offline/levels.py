"""Draft and target compared along a text, level by level below every root.

Axes: L tokens of the text, B roots, C some of them, S levels, V vocabulary, R draft vocabulary.
"""

import math
from collections import Counter

import torch

from eagle_fsd.decoding.divergence import divergence
from eagle_fsd.drafters.growth import HeadOnText
from eagle_fsd.drafters.pool import NOWHERE

JUDGED_ROOTS = 32  # roots whose rows over the whole vocabulary are compared at once


def judge_levels(
    on_text: HeadOnText,
    hidden_LD: torch.Tensor,
    root_B: torch.Tensor,
    end: int,
    *,
    levels: int,
    divergences: tuple[str, ...],
) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """What the head and the target say after the root and after the text's own next tokens.

    Args:
        on_text: the head on this text.
        hidden_LD: the target's hidden states of the text, after the final norm.
        root_B: indices of the roots, one after the other.
        end: index behind the answer.
        divergences: names in DIVERGENCES.

    Returns:
        Counts of every level, over the positions whose next token is the answer's: positions; top1
        and top8 (the text's token is the draft's best, among its best 8); js (a sum); agree (it is
        the target's argmax in this forward: all but ties). And of every divergence asked for D at
        the text's node of each level, 0 being the root, [B, S].
    """
    counts = [Counter() for _ in range(levels)]
    parts: list[dict[str, torch.Tensor]] = []
    for root_C in root_B.split(JUDGED_ROOTS):
        first, C = int(root_C[0]), root_C.shape[0]
        # roots follow each other, so levels share the target's rows
        target_NV = on_text.target.logits(hidden_LD[first : first + C - 1 + levels]).float()
        found: dict[str, list[torch.Tensor]] = {name: [] for name in ("js", *divergences)}
        for level, hidden_CD in enumerate(on_text.chain(root_C, levels)):
            target_CV = target_NV[level : level + C]
            label_C = on_text.ids_L[root_C + level + 1]
            draft_CR = on_text.drafter.readout(hidden_CD).float()
            draft_CV = _over_vocabulary(draft_CR, on_text.drafter.draft_token_R, target_CV)
            for name, kept in found.items():
                kept.append(divergence(name, target_CV, draft_CV))
            own_C = draft_CV.gather(1, label_C[:, None])[:, 0]
            rank_C = (draft_CV > own_C[:, None]).sum(1).masked_fill(own_C == -math.inf, NOWHERE)
            values = {
                "positions": torch.ones_like(rank_C),
                "top1": rank_C < 1,
                "top8": rank_C < 8,
                "js": found["js"][-1],
                "agree": target_CV.argmax(1) == label_C,
            }
            in_answer_C = root_C + level + 1 < end
            for name, value_C in values.items():
                counts[level][name] += value_C[in_answer_C].sum().item()
        parts.append({name: torch.stack(kept, dim=1) for name, kept in found.items()})
    return counts, {name: torch.cat([part[name] for part in parts]) for name in divergences}


def _over_vocabulary(
    draft_CR: torch.Tensor, draft_token_R: torch.Tensor | None, like_CV: torch.Tensor
) -> torch.Tensor:
    """-inf for tokens that cannot be drafted, as DraftTree.draft_logits."""
    if draft_token_R is None:
        return draft_CR
    return torch.full_like(like_CV, -math.inf).index_copy_(1, draft_token_R, draft_CR)

"""One head replayed on one text: a JSON-able record of counts.

Counts only, so that questions can be added up, resampled and resumed (replay_metrics.py).

Axes: L tokens of the text, B roots, C some of them, V vocabulary, R draft vocabulary.
"""

import math
from collections import Counter
from collections.abc import Sequence

import torch

from eagle_fsd.config import TreeConfig, tree_name
from eagle_fsd.decoding.divergence import divergence
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import NOWHERE, visited_roots
from eagle_fsd.evaluation.offline.texts import PlainText

JUDGED_ROOTS = 32  # roots whose rows over the whole vocabulary are compared at once


def growth_shapes(trees: Sequence[TreeConfig]) -> list[TreeConfig]:
    """One shape per branch_top_k, wide and deep enough for all trees with it."""
    alike: dict[int, list[TreeConfig]] = {}
    for tree in trees:
        alike.setdefault(tree.branch_top_k, []).append(tree)
    return [
        TreeConfig(max(t.num_draft_tokens for t in trees), max(t.tree_depth for t in trees), k)
        for k, trees in alike.items()
    ]


@torch.inference_mode()
def replay_text(drafter: EagleDrafter, text: PlainText, trees: Sequence[TreeConfig]) -> dict:
    """Replay one head, of a drafter with any tree, on one text.

    Returns:
        {"levels", "trees"}: levels as judge_levels counts them; of every tree, by name, the
        accepted drafts of all rounds of exact decoding.
    """
    target = drafter.target
    ids_L = torch.tensor(text.ids, device=target.device)
    root_B = torch.tensor(list(text.roots), dtype=torch.int64, device=target.device)
    if not len(root_B):  # prefill's token ended the answer
        return {"levels": [], "trees": {tree_name(tree): [] for tree in trees}}
    hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    shapes = growth_shapes(trees)
    largest = max(shapes, key=lambda shape: shape.num_expanded)
    on_text = HeadOnText(drafter, ids_L, features_1LF[0], largest)
    end = len(text.prompt) + len(text.answer)
    deepest = max(tree.tree_depth for tree in trees)
    levels = judge_levels(on_text, hidden_1LD[0], root_B, end, levels=deepest)
    growths = {shape.branch_top_k: grow(on_text, root_B, shape) for shape in shapes}
    rounds = {}
    for tree in trees:
        accepted_B = growths[tree.branch_top_k].accepted(tree)
        rounds[tree_name(tree)] = accepted_B[visited_roots(accepted_B)].tolist()
    return {"levels": levels, "trees": rounds}


def judge_levels(
    on_text: HeadOnText, hidden_LD: torch.Tensor, root_B: torch.Tensor, end: int, *, levels: int
) -> list[dict]:
    """What the head and the target say after the root and after the text's own next tokens.

    Args:
        hidden_LD: the target's hidden states of the text, after the final norm.
        root_B: indices of the roots, one after the other.
        end: index behind the answer.

    Returns:
        Counts of every level, over the positions whose next token is the answer's: positions; top1
        and top8 (the text's token is the draft's best, among its best 8); js, a sum in nats.
    """
    counts = [Counter() for _ in range(levels)]
    for root_C in root_B.split(JUDGED_ROOTS):
        first, C = int(root_C[0]), root_C.shape[0]
        # roots follow each other, so levels share the target's rows
        target_NV = on_text.target.logits(hidden_LD[first : first + C - 1 + levels]).float()
        for level, hidden_CD in enumerate(on_text.chain(root_C, levels)):
            target_CV = target_NV[level : level + C]
            label_C = on_text.ids_L[root_C + level + 1]
            draft_CV = on_text.drafter.readout(hidden_CD).float()
            if (draft_token_R := on_text.drafter.draft_token_R) is not None:
                # -inf for tokens that cannot be drafted, as DraftTree.draft_logits
                nowhere_CV = torch.full_like(target_CV, -math.inf)
                draft_CV = nowhere_CV.index_copy_(1, draft_token_R, draft_CV)
            own_C = draft_CV.gather(1, label_C[:, None])[:, 0]
            rank_C = (draft_CV > own_C[:, None]).sum(1).masked_fill(own_C == -math.inf, NOWHERE)
            values = {
                "positions": torch.ones_like(rank_C),
                "top1": rank_C < 1,
                "top8": rank_C < 8,
                "js": divergence("js", target_CV, draft_CV),
            }
            in_answer_C = root_C + level + 1 < end
            for name, value_C in values.items():
                counts[level][name] += value_C[in_answer_C].sum().item()
    return counts

"""One head replayed on one text: a JSON-able record of counts.

Counts only, so that questions can be added up, resampled and resumed (replay_metrics.py).

Axes: L tokens of the text, B roots, S levels.
"""

from dataclasses import dataclass

import torch

from eagle_fsd.config import BadInput, TreeConfig, tree_name
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import Growth, visited_roots
from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.evaluation.offline.levels import Levels, judge_levels
from eagle_fsd.evaluation.offline.texts import PlainText


@dataclass(frozen=True)
class ReplayPlan:
    """What is replayed, the same for every question.

    Attributes:
        trees: shapes; those of one branch_top_k share a growth.
        arms: of rule fsd or fsd-paper, see check_replayable.
        true_features: also grow trees that see the target's own features (see grow).

    Raises:
        BadInput: an arm that replay cannot follow.
    """

    trees: tuple[TreeConfig, ...]
    arms: tuple[Arm, ...] = ()
    true_features: bool = False

    def __post_init__(self):
        for arm in self.arms:
            plain = arm.kind in WALKS and not arm.guards and not arm.tree
            if not plain or arm.rule.child != "draft" or arm.rule.logits != "raw":
                raise BadInput(
                    f"arm {arm.text!r}: replay follows {' and '.join(WALKS)} with child draft and "
                    "raw logits, without guards and trees of their own"
                )

    @property
    def divergences(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(arm.rule.divergence for arm in self.arms))

    @property
    def levels(self) -> int:
        return max(tree.tree_depth for tree in self.trees)

    def growths(self) -> list[TreeConfig]:
        """One shape per branch_top_k, wide and deep enough for all trees with it."""
        shapes = {}
        for tree in self.trees:
            same = [t for t in self.trees if t.branch_top_k == tree.branch_top_k]
            shapes[tree.branch_top_k] = TreeConfig(
                max(t.num_draft_tokens for t in same),
                max(t.tree_depth for t in same),
                tree.branch_top_k,
            )
        return list(shapes.values())


@torch.inference_mode()
def replay_text(drafter: EagleDrafter, text: PlainText, plan: ReplayPlan) -> dict:
    """Replay one head on one text.

    Args:
        drafter: of any tree; its target gives the features that the head reads.

    Returns:
        The question's record: see `_tree_record`, and `Levels.counts`.
    """
    target = drafter.target
    ids_L = torch.tensor(text.ids, device=target.device)
    hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    root_B = torch.tensor(list(text.roots), dtype=torch.int64, device=target.device)
    record = {
        "question_id": text.question_id,
        "category": text.category,
        "tokens": len(text.answer),
        "trees": {},
        "levels": [],
    }
    if not len(root_B):  # prefill's token ended the answer
        empty = torch.zeros(0, dtype=torch.int64)
        record["trees"] = {tree_name(tree): _counts(empty) for tree in plan.trees}
        return record
    shapes = plan.growths()
    largest = max(shapes, key=lambda shape: shape.num_expanded)
    on_text = HeadOnText(drafter, ids_L, features_1LF[0], largest)
    end = len(text.prompt) + len(text.answer)
    levels = judge_levels(
        on_text, hidden_1LD[0], root_B, end, levels=plan.levels, divergences=plan.divergences
    )
    record["levels"] = levels.counts
    growths, cheats = {}, {}
    for shape in shapes:
        K = shape.branch_top_k
        growths[K] = grow(on_text, root_B, shape)
        if plan.true_features:
            cheats[K] = grow(on_text, root_B, shape, true_features=True)
    for tree in plan.trees:
        K = tree.branch_top_k
        row = _tree_record(growths[K], tree, levels, plan)
        if plan.true_features:
            row["true_features"] = _counts(cheats[K].accepted(tree))
        record["trees"][tree_name(tree)] = row
    return record


def _counts(accepted_B: torch.Tensor) -> dict:
    """Accepted drafts of every visited round, and the sum over all positions, visited or not."""
    accepted = accepted_B.tolist()
    return {
        "accepted": [accepted[place] for place in visited_roots(accepted_B)],
        "positions": len(accepted),
        "accepted_anywhere": sum(accepted),
    }


def _tree_record(growth: Growth, tree: TreeConfig, levels: Levels, plan: ReplayPlan) -> dict:
    """`_counts` of the exact rule, and for every arm what a walk would do."""
    row = _counts(growth.accepted(tree)) | {"rules": {}}
    for arm in plan.arms:
        threshold = arm.rule.threshold
        divergence_BS = levels.divergence_BS[arm.rule.divergence]
        passes_BS = (divergence_BS <= threshold) & (threshold > 0)
        accepted_B, fuzzy_B = WALKS[arm.kind](growth, tree, passes_BS)
        visited = visited_roots(accepted_B)
        accepted, fuzzy = accepted_B.tolist(), fuzzy_B.tolist()
        row["rules"][arm.text] = {
            "rounds": len(visited),
            "emitted": sum(accepted[place] + 1 for place in visited),
            "fuzzy": sum(fuzzy[place] for place in visited),
        }
    return row


def walk_fsd(
    growth: Growth, tree: TreeConfig, passes_BS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rule fsd up to its first fuzzy token: (accepted drafts [B], whether one is taken there [B]).

    The exact path, and at its end a fuzzy token if that node has children and D passes.
    """
    accepted_B = growth.accepted(tree)
    may_BS = growth.has_child(tree) & passes_BS[:, : tree.tree_depth]
    may_BS = torch.nn.functional.pad(may_BS, (0, 1))  # the deepest nodes have no children
    return accepted_B, may_BS.gather(1, accepted_B[:, None])[:, 0]


def walk_fsd_paper(
    growth: Growth, tree: TreeConfig, passes_BS: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rule fsd-paper up to its first fuzzy token, with child `draft`; as walk_fsd.

    It goes on wherever D passes, to the best child: along the text if that is the text's token.
    """
    go_BS = growth.has_child(tree) & passes_BS[:, : tree.tree_depth]
    right_BS = growth.child_is_text_BS[:, : tree.tree_depth]
    on_text_BS = (go_BS & right_BS).cumprod(1)
    accepted_B = on_text_BS.sum(1)
    off_BS = torch.nn.functional.pad(go_BS & ~right_BS, (0, 1))
    return accepted_B, off_BS.gather(1, accepted_B[:, None])[:, 0]


WALKS = {"fsd": walk_fsd, "fsd-paper": walk_fsd_paper}

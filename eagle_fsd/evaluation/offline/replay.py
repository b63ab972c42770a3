"""One head replayed on one text: a JSON-able record of counts.

Counts only, so that questions can be added up, resampled and resumed (replay_metrics.py).

Axes: L tokens of the text, B roots, S levels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from eagle_fsd.config import TreeConfig, tree_name
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import Growth, visited_roots
from eagle_fsd.evaluation.offline.levels import judge_levels
from eagle_fsd.evaluation.offline.texts import PlainText
from eagle_fsd.rules.fsd import Fsd, FsdPaper

Walk = tuple[torch.Tensor, torch.Tensor]
"""Of every root: accepted drafts [B], whether a fuzzy token is taken behind them [B]."""


@dataclass(frozen=True)
class ReplayPlan:
    """What is replayed, the same for every question.

    Attributes:
        trees: shapes; those of one branch_top_k share a growth.
        rules: arm's text -> fsd or fsd-paper (with child draft), judging raw logits.
    """

    trees: tuple[TreeConfig, ...]
    rules: Mapping[str, Fsd] = field(default_factory=dict)

    def growths(self) -> list[TreeConfig]:
        """One shape per branch_top_k, wide and deep enough for all trees with it."""
        alike: dict[int, list[TreeConfig]] = {}
        for tree in self.trees:
            alike.setdefault(tree.branch_top_k, []).append(tree)
        return [
            TreeConfig(max(t.num_draft_tokens for t in trees), max(t.tree_depth for t in trees), k)
            for k, trees in alike.items()
        ]


@torch.inference_mode()
def replay_text(drafter: EagleDrafter, text: PlainText, plan: ReplayPlan) -> dict:
    """Replay one head on one text.

    Args:
        drafter: of any tree; its target gives the features that the head reads.

    Returns:
        {"question_id", "category", "tokens", "levels", "trees"}: levels as judge_levels counts
        them; of every tree the accepted drafts of all visited rounds, their sum over all positions,
        visited or not, and for every rule the rounds, the tokens emitted and the fuzzy ones.
    """
    target = drafter.target
    ids_L = torch.tensor(text.ids, device=target.device)
    root_B = torch.tensor(list(text.roots), dtype=torch.int64, device=target.device)
    record = {"question_id": text.question_id, "category": text.category}
    record |= {"tokens": len(text.answer), "levels": []}
    if not len(root_B):  # prefill's token ended the answer
        nothing = {"accepted": [], "accepted_anywhere": 0, "rules": {}}
        return record | {"trees": {tree_name(tree): nothing for tree in plan.trees}}
    hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    shapes = plan.growths()
    largest = max(shapes, key=lambda shape: shape.num_expanded)
    on_text = HeadOnText(drafter, ids_L, features_1LF[0], largest)
    record["levels"], divergence_BS = judge_levels(
        on_text,
        hidden_1LD[0],
        root_B,
        len(text.prompt) + len(text.answer),
        levels=max(tree.tree_depth for tree in plan.trees),
        divergences=tuple({rule.divergence for rule in plan.rules.values()}),
    )
    passes_BS = {
        arm: (divergence_BS[rule.divergence] <= rule.threshold) & (rule.threshold > 0)
        for arm, rule in plan.rules.items()
    }
    growths = {shape.branch_top_k: grow(on_text, root_B, shape) for shape in shapes}
    record["trees"] = {
        tree_name(tree): _tree_record(growths[tree.branch_top_k], tree, plan.rules, passes_BS)
        for tree in plan.trees
    }
    return record


def _tree_record(
    growth: Growth, tree: TreeConfig, rules: Mapping[str, Fsd], passes_BS: dict[str, torch.Tensor]
) -> dict:
    """What the exact rule accepts, and what every other rule's walks would do."""
    accepted_B = growth.accepted(tree)
    row = {
        "accepted": accepted_B[visited_roots(accepted_B)].tolist(),
        "accepted_anywhere": int(accepted_B.sum()),
        "rules": {},
    }
    for arm, rule in rules.items():
        walked_B, fuzzy_B = WALKS[type(rule)](growth, tree, passes_BS[arm])
        visited = visited_roots(walked_B)
        row["rules"][arm] = {
            "rounds": len(visited),
            "emitted": int(walked_B[visited].sum()) + len(visited),
            "fuzzy": int(fuzzy_B[visited].sum()),
        }
    return row


def walk_fsd(growth: Growth, tree: TreeConfig, passes_BS: torch.Tensor) -> Walk:
    """Rule fsd up to its first fuzzy token.

    The exact path, and at its end a fuzzy token if that node has children and D passes.
    """
    accepted_B = growth.accepted(tree)
    may_BS = growth.has_child(tree) & passes_BS[:, : tree.tree_depth]
    may_BS = torch.nn.functional.pad(may_BS, (0, 1))  # the deepest nodes have no children
    return accepted_B, may_BS.gather(1, accepted_B[:, None])[:, 0]


def walk_fsd_paper(growth: Growth, tree: TreeConfig, passes_BS: torch.Tensor) -> Walk:
    """Rule fsd-paper up to its first fuzzy token, with child `draft`.

    It goes on wherever D passes, to the best child: along the text if that is the text's token.
    """
    go_BS = growth.has_child(tree) & passes_BS[:, : tree.tree_depth]
    right_BS = growth.child_is_text_BS[:, : tree.tree_depth]
    on_text_BS = (go_BS & right_BS).cumprod(1)
    accepted_B = on_text_BS.sum(1)
    off_BS = torch.nn.functional.pad(go_BS & ~right_BS, (0, 1))
    return accepted_B, off_BS.gather(1, accepted_B[:, None])[:, 0]


WALKS = {Fsd: walk_fsd, FsdPaper: walk_fsd_paper}

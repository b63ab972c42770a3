"""One head replayed on one text: a JSON-able record of counts.

Counts only, so that questions can be added up, resampled and resumed (replay_metrics.py).

Axes: L tokens of the text, B roots, C some of them, S levels, V vocabulary, R draft vocabulary.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from eagle_fsd.config import TreeConfig, tree_name
from eagle_fsd.decoding.divergence import divergence
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.growth import HeadOnText, grow
from eagle_fsd.drafters.pool import NOWHERE, Growth, visited_roots
from eagle_fsd.evaluation.offline.texts import PlainText
from eagle_fsd.rules.fsd import Fsd, FsdPaper

JUDGED_ROOTS = 32  # roots whose rows over the whole vocabulary are compared at once
# of every root: accepted drafts [B], whether a fuzzy token is taken behind them [B]
Walk = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ReplayPlan:
    """What is replayed, the same for every question."""

    trees: tuple[TreeConfig, ...]  # those of one branch_top_k share a growth
    # arm's text -> fsd or fsd-paper (with child draft), judging raw logits
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
    """Replay one head, of a drafter with any tree, on one text.

    Returns:
        {"tokens", "levels", "trees"}: levels as judge_levels counts them; of every tree the
        accepted drafts of all visited rounds, their sum over all positions, visited or not, and for
        every rule the rounds, the tokens emitted and the fuzzy ones.
    """
    target = drafter.target
    ids_L = torch.tensor(text.ids, device=target.device)
    root_B = torch.tensor(list(text.roots), dtype=torch.int64, device=target.device)
    if not len(root_B):  # prefill's token ended the answer
        nothing = {"accepted": [], "accepted_anywhere": 0, "rules": {}}
        trees = {tree_name(tree): nothing for tree in plan.trees}
        return {"tokens": len(text.answer), "levels": [], "trees": trees}
    hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    shapes = plan.growths()
    largest = max(shapes, key=lambda shape: shape.num_expanded)
    on_text = HeadOnText(drafter, ids_L, features_1LF[0], largest)
    levels, divergence_BS = judge_levels(
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
    trees = {
        tree_name(tree): _tree_record(growths[tree.branch_top_k], tree, plan.rules, passes_BS)
        for tree in plan.trees
    }
    return {"tokens": len(text.answer), "levels": levels, "trees": trees}


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
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in divergences}
    for root_C in root_B.split(JUDGED_ROOTS):
        first, C = int(root_C[0]), root_C.shape[0]
        # roots follow each other, so levels share the target's rows
        target_NV = on_text.target.logits(hidden_LD[first : first + C - 1 + levels]).float()
        found: dict[str, list[torch.Tensor]] = {name: [] for name in ("js", *divergences)}
        for level, hidden_CD in enumerate(on_text.chain(root_C, levels)):
            target_CV = target_NV[level : level + C]
            label_C = on_text.ids_L[root_C + level + 1]
            draft_CV = on_text.drafter.readout(hidden_CD).float()
            if (draft_token_R := on_text.drafter.draft_token_R) is not None:
                # -inf for tokens that cannot be drafted, as DraftTree.draft_logits
                nowhere_CV = torch.full_like(target_CV, -math.inf)
                draft_CV = nowhere_CV.index_copy_(1, draft_token_R, draft_CV)
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
        for name, kept in parts.items():
            kept.append(torch.stack(found[name], dim=1))
    return counts, {name: torch.cat(kept) for name, kept in parts.items()}


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
    """Rule fsd up to its first fuzzy token: the exact path, and at its end a fuzzy token if that
    node has children and D passes."""
    accepted_B = growth.accepted(tree)
    return accepted_B, _at(growth.has_child(tree) & passes_BS[:, : tree.tree_depth], accepted_B)


def walk_fsd_paper(growth: Growth, tree: TreeConfig, passes_BS: torch.Tensor) -> Walk:
    """Rule fsd-paper up to its first fuzzy token, with child `draft`.

    It goes on wherever D passes, to the best child: along the text if that is the text's token.
    """
    go_BS = growth.has_child(tree) & passes_BS[:, : tree.tree_depth]
    right_BS = growth.child_is_text_BS[:, : tree.tree_depth]
    accepted_B = (go_BS & right_BS).cumprod(1).sum(1)
    return accepted_B, _at(go_BS & ~right_BS, accepted_B)


def _at(flag_BS: torch.Tensor, level_B: torch.Tensor) -> torch.Tensor:
    """A node's flag at each root's level; the deepest nodes have no children and none."""
    return torch.nn.functional.pad(flag_BS, (0, 1)).gather(1, level_B[:, None])[:, 0]


WALKS = {Fsd: walk_fsd, FsdPaper: walk_fsd_paper}

"""Drafters replayed on a text that is known: a JSON-able record of counts.

Greedy exact decoding emits the target's own text whatever is drafted (drafters/walk.py), so the
target runs once over the whole text, for all of them. Other rules are followed to their first fuzzy
token: behind it the text would be another.

Axes: L tokens of the text, B roots, C of them judged at once, S levels, N nodes, V vocabulary, F
features.
"""

import math
from collections import Counter
from collections.abc import Mapping

import torch

from eagle_fsd.arms import Arm
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.divergence import divergence
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.walk import walk
from eagle_fsd.evaluation.offline.texts import PlainText
from eagle_fsd.heads.unroll import unroll
from eagle_fsd.rules.fsd import Exact, FsdPaper

States = tuple[torch.Tensor, torch.Tensor]  # see text_states
JUDGED = 32  # positions whose rows over the whole vocabulary are compared at once


def check_replayed(arm: Arm) -> None:
    """Refuse, by a BadInput, an arm whose rounds are not told by the text's own rows."""
    rule = arm.rule
    alone = arm.drafts and not (arm.guards or rule.whole_tree or rule.ahead or rule.takes_chances)
    if not alone or isinstance(rule, FsdPaper) or rule.start() is not None:
        raise BadInput(
            f"arm {arm.text!r}: replay follows arms that draft, by rules that ask exact's question "
            "first and then judge that node (exact, fsd, ratio, accept-all); without guards or a "
            "memory, and not child=deepest"
        )
    if arm.drafter.learns:
        raise BadInput(
            f"arm {arm.text!r}: replay knows no target's rows beside the text: give recycle=0"
        )


@torch.inference_mode()
def text_states(target: Target, text: PlainText) -> States:
    """The target run over a text: hidden states after the final norm [L, D], features [L, F]."""
    ids_L = torch.tensor(text.ids, device=target.device)
    hidden_1LD, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    return hidden_1LD[0], features_1LF[0]


@torch.inference_mode()
def replay(
    target: Target,
    drafter: Drafter,
    policies: Mapping[str, Policy],
    text: PlainText,
    states: States,
) -> dict[str, dict]:
    """What arms of one drafter would do on a text, by name: the tokens of every round up to and
    with its first fuzzy one, and how many rounds have one.

    Their rounds are exact's: where its path ends, they may take a draft instead of its next token.
    """
    hidden_LD, features_LF = states
    tokens, fuzzy = [], Counter()
    judging = {name: p for name, p in policies.items() if not isinstance(p.rule, Exact)}
    for tree, path, root in walk(drafter, text.ids, text.roots, features_LF):
        tokens.append(len(path))
        if judging:
            logits_NV = hidden_LD.new_zeros(tree.size, target.vocab_size)
            logits_NV[path] = target.logits(hidden_LD[root : root + len(path)])
        for name, policy in judging.items():
            uniform_S3 = torch.zeros(tree.max_depth + 1, 3)  # no rule here asks for chance
            accepted, _ = accept(tree, logits_NV, uniform_S3, policy=policy)
            fuzzy[name] += any(accepted.fuzzy[: len(path)])
    return {name: {"tokens": tokens, "fuzzy": fuzzy[name]} for name in policies}


@torch.inference_mode()
def judge_levels(
    drafter: EagleDrafter, text: PlainText, states: States, *, levels: int
) -> list[dict]:
    """What head and target say after every token of the answer, by drafted level along the text.

    Returns:
        Counts of every level: positions, those whose next token is the answer's; top1 and top8 (the
        text's token is the draft's best, among its best 8); js (a sum). Level 1 drafts from true
        features only.
    """
    target, draft_token_R = drafter.target, drafter.draft_token_R
    hidden_LD, features_LF = states
    ids_L = torch.tensor(text.ids, device=target.device)
    embedding_LD = target.embed(ids_L[1:])
    drafted_SLD = unroll(drafter.head, features_LF[None, :-1], embedding_LD[None], steps=levels)[
        :, 0
    ]
    counts = [Counter() for _ in range(levels)]
    place_B = torch.tensor(text.roots, dtype=torch.int64, device=target.device)
    for place_C in place_B.split(JUDGED):
        target_CV = target.logits(hidden_LD[place_C]).float()
        label_C = ids_L[place_C + 1]
        for level, drafted_LD in enumerate(drafted_SLD):
            draft_CV = drafter.readout(drafted_LD[place_C - 1]).float()
            if draft_token_R is not None:  # -inf for tokens that cannot be drafted
                nowhere_CV = torch.full_like(target_CV, -math.inf)
                draft_CV = nowhere_CV.index_copy_(1, draft_token_R, draft_CV)
            own_C1 = draft_CV.gather(1, label_C[:, None])
            rank_C = (draft_CV > own_C1).sum(1).masked_fill(own_C1[:, 0] == -math.inf, 8)
            values = {
                "positions": torch.ones_like(rank_C),
                "top1": rank_C < 1,
                "top8": rank_C < 8,
                "js": divergence("js", target_CV, draft_CV),
            }
            has_root_C = place_C >= text.roots.start + level
            for name, value_C in values.items():
                counts[level][name] += value_C[has_root_C].sum().item()
    return counts

"""Acceptance: the rule chooses the accepted path; tokens and cost follow from it for all rules."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from eagle_fsd.decoding.policy import Policy
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.tabulate import tabulate
from eagle_fsd.decoding.tree import DraftTree


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round. Entry i of every list is about the token emitted after path[i].

    Attributes:
        path: the accepted path, as node indices, the root first.
        tokens: emitted tokens, the accepted drafts and then the next token; as long as `path`.
        fuzzy: the token is not the one that the exact test would have emitted with the same draw.
        divergence: D at path[i], by the first divergence that the rule or a guard reads; NaN if
            they read none, and at nodes without children.
        tv: 1/2 sum |emitted distribution - P| at path[i]; 0 without children; NaN if unknown.
        regret: log P(argmax) - log P(token) of the raw target distribution, nats.
    """

    path: list[int]
    tokens: list[int]
    fuzzy: list[bool]
    divergence: list[float]
    tv: list[float]
    regret: list[float]

    @property
    def accepted_drafts(self) -> int:
        return len(self.path) - 1


@torch.inference_mode()
def accept(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    *,
    policy: Policy,
    stop_token_ids: Collection[int] = (),
    answer: Sequence[int] = (),
) -> Acceptance:
    """Choose the accepted path, and say what is emitted along it and what that costs. The policy is
    the answer's own (Policy.begin); for the other arguments see tabulate. BadInput: the target's
    logits are no numbers after a node of the accepted path."""
    rule = policy.rule
    given = tree, target_logits_NV, uniform_S3, policy
    verified = tabulate(*given, stop_token_ids=stop_token_ids, answer=answer)
    path = rule.choose(verified)
    tokens, fuzzy_flags, divergences, tvs, regrets = [], [], [], [], []
    # above temperature 0 a guard that reads the exact token leaves the emitted distribution unknown
    tv_is_known = verified.greedy or not any(guard.reads_exact_token for guard in policy.guards)
    for v, child in zip(path, [*path[1:], None], strict=True):
        # 1. The token: the exact one, or a fuzzy one in its place.
        token, regret = verified.exact(v)
        fuzzy = child is not None and verified.tokens[child] != token
        if fuzzy:
            token, regret = verified.tokens[child], verified.value("regret", child)
        if math.isnan(regret):
            raise no_numbers(f"after {len(answer) + len(tokens)} tokens of the answer")
        # 2. What the place costs. Where nothing was drafted every rule is exact.
        divergence, tv = math.nan, 0.0
        if verified.children[v]:
            if policy.divergence is not None:
                divergence = verified.value(policy.divergence, v)
            tv = rule.tv(verified, v) if tv_is_known else math.nan
            if verified.greedy and math.isnan(tv):  # a rule that draws nothing
                tv = float(fuzzy)
        tokens.append(token)
        fuzzy_flags.append(fuzzy)
        divergences.append(divergence)
        tvs.append(tv)
        regrets.append(regret)
    return Acceptance(path, tokens, fuzzy_flags, divergences, tvs, regrets)

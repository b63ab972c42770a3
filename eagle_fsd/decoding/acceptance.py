"""Acceptance: the rule chooses the accepted path; tokens and cost follow from it for all rules."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.columns import DRAFTS, PLACES
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.tree import Drafter, DraftTree
from eagle_fsd.decoding.verified import Guard, Rule, tabulate


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
        dial: see Rule.
    """

    path: list[int]
    tokens: list[int]
    fuzzy: list[bool]
    divergence: list[float]
    tv: list[float]
    regret: list[float]
    dial: float | None = None

    @property
    def accepted_drafts(self) -> int:
        return len(self.path) - 1


@dataclass(frozen=True)
class Policy:
    rule: Rule
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    guards: tuple[Guard, ...] = ()

    def check(self, drafter: Drafter) -> None:
        """Refuse a rule that has no meaning with the sampling, the guards or the drafter, in whose
        place its settings may stand."""
        if self.rule.draw is not None and not drafter.samples:
            raise BadInput(
                "this rule needs drafts that are sampled, since it asks with what probability they "
                "came: add ,sample=1 to the drafter, as in RULE@DRAFTER,sample=1"
            )
        if self.guards and self.sampling.temperature > 0 and not self.rule.takes_guards:
            raise BadInput(
                "guards go with this rule at temperature 0 only: above it the rule weighs all "
                "drafts, and a guard would leave some out"
            )
        _ = self.columns  # that there are such
        self.rule.check(self.sampling, drafter)

    def begin(self) -> "Policy":
        """For one answer; see Rule.begin."""
        return replace(self, rule=self.rule.begin())

    @cached_property
    def columns(self) -> list[str]:
        """What rule and guards read, and what tells a draft's cost and whether it may be taken."""
        names = ["regret", *self.rule.columns]
        names += [name for guard in self.guards for name in guard.columns]
        names += ["supported"] if self.sampling.filters else []
        for name in names:
            check_known("column", name, PLACES | DRAFTS)
        return list(dict.fromkeys(names))

    @cached_property
    def divergence(self) -> str | None:
        """The one that is recorded: the first that the rule or a guard reads."""
        return next((name for name in self.columns if name in DIVERGENCES), None)


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
    verified = tabulate(
        tree,
        target_logits_NV,
        uniform_S3,
        sampling=policy.sampling,
        columns=policy.columns,
        draw=rule.draw,
        guards=policy.guards,
        stop_token_ids=stop_token_ids,
        answer=answer,
    )
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
            if verified.greedy and not rule.takes_chances:
                tv = float(fuzzy)
            else:
                tv = rule.tv(verified, v) if tv_is_known else math.nan
        tokens.append(token)
        fuzzy_flags.append(fuzzy)
        divergences.append(divergence)
        tvs.append(tv)
        regrets.append(regret)
    return Acceptance(path, tokens, fuzzy_flags, divergences, tvs, regrets, rule.dial)

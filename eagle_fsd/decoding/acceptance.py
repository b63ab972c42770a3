"""Acceptance: the rule says the path; tokens and cost follow from it for all rules alike."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.rule import Guard, Rule, State
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.verified import VerifiedTree

ANY_DIVERGENCE = "js"  # recorded in full for rules without a divergence of their own


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round. Entry i of every list is about the token emitted after path[i].

    Attributes:
        path: node indices, the root first.
        tokens: emitted tokens, the accepted drafts and then the next token; as long as `path`.
        fuzzy: the token is not the one that the exact test would have emitted with the same draw.
        divergence: D at path[i]; NaN where it was not computed, and at nodes without children.
        tv: 1/2 sum |emitted distribution - P| at path[i], NaN if unknown; 0 without children.
        regret: log P(argmax) - log P(token) of the raw target distribution, nats.
        dial: the parameter of a rule that adapts it; None of any other.
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
    """How drafts are accepted, and how P comes from the target's logits.

    Attributes:
        record: "full" judges D all along the path; "lean", for timed arms, notes what was asked.
    """

    rule: Rule
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    guards: tuple[Guard, ...] = ()
    record: str = "lean"

    def __post_init__(self):
        if self.record not in ("lean", "full"):
            raise BadInput(f"record must be lean or full, got {self.record!r}")
        if self.guards and not (self.rule.law is None and self.rule.draw is None):
            raise BadInput("guards do not reach tokens that a rule draws itself: leave them out")
        narrowing = any(guard.allows for guard in self.guards)
        if narrowing and self.rule.whole_tree and self.sampling.temperature > 0:
            raise BadInput(
                "guards that leave out drafts (cap, floor, ..) go with this rule at temperature 0 "
                "only: above, it draws from a distribution that counts on all drafts"
            )
        reading = any(guard.reads_x for guard in self.guards)
        if reading and self.rule.ahead and self.sampling.temperature > 0:
            raise BadInput(
                "the guard ends asks which token is drawn, and child=deepest asks it ahead of the "
                "draw, which would bias the text: together at temperature 0 only"
            )
        hiding = any(guard.hides_tv for guard in self.guards)
        if hiding and self.rule.reads_tv and self.sampling.temperature > 0:
            raise BadInput(
                "guards that go by the drawn token or the path (ends, budget, ..) leave the TV "
                "unknown that this rule is to hold: with it at temperature 0 only"
            )

    def check(self, drafter: Drafter) -> None:
        """Refuse, by a BadInput, what has no meaning with the sampling or the drafter; before it is
        built, as far as its settings say."""
        if self.rule.draw is not None and not getattr(drafter, "sample", False):
            name = type(self.rule).__name__.lower()
            raise BadInput(
                f"rule {name} needs drafts that are sampled, since it asks with what probability "
                f"they came: {name}@eagle,sample=1 or {name}@language_model,sample=1"
            )
        token_R = getattr(drafter, "draft_token_R", None)
        self.rule.check(self.sampling, None if token_R is None else len(token_R))

    def start(self) -> list[State]:
        """What rule and guards know before an answer's first round."""
        return [self.rule.start(), *(guard.start() for guard in self.guards)]


@torch.inference_mode()
def accept(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    *,
    policy: Policy,
    states: Sequence[State] | None = None,
    stop_token_ids: Collection[int] = (),
    answer: Sequence[int] = (),
) -> tuple[Acceptance, list[State]]:
    """Choose a path of the tree; returns what came of it, and the states for the next round.

    Args:
        states: from policy.start(), or of the answer's last round; None: an answer begins.
        tree, target_logits_NV, uniform_S3, stop_token_ids, answer: see VerifiedTree.
    """
    states, whole = states or policy.start(), policy.rule
    policy = replace(policy, rule=whole.now(states[0]))
    rule, guards = policy.rule, policy.guards
    judged = rule.divergence_column
    columns = [*rule.columns, *(name for guard in guards for name in guard.columns)]
    if policy.record == "full":
        judged = judged or ANY_DIVERGENCE
        columns.append(judged)
    verified = VerifiedTree(
        tree,
        target_logits_NV,
        uniform_S3,
        sampling=policy.sampling,
        columns=columns,
        ahead=rule.ahead,
        law=rule.law,
        draw=rule.draw,
        allows=[guard.allows for guard in guards if guard.allows],
        stop_token_ids=stop_token_ids,
        answer=answer,
    )
    path = whole.choose(verified, states[0])
    for guard, state in zip(guards, states[1:], strict=True):
        if guard.cut:
            path = guard.cut(verified, path, state)
    remembering = zip((whole, *guards), states, strict=True)
    states = [one.after(verified, path, state) for one, state in remembering]
    accepted = _acceptance(verified, path, policy, judged)
    dial = None if rule is whole else next(iter(vars(rule).values()))
    return replace(accepted, dial=dial), states


def _acceptance(
    verified: VerifiedTree, path: list[int], policy: Policy, judged: str | None
) -> Acceptance:
    got = Acceptance(path, [], [], [], [], [])
    for v, child in zip(path, [*path[1:], None], strict=True):
        token = verified.drawn(v) if child is None else verified.tokens[child]
        fuzzy = token != verified.x(v)
        got.tokens.append(token)
        got.fuzzy.append(fuzzy)
        got.regret.append(verified.step_regret(v, child))
        got.tv.append(_tv(verified, v, policy, fuzzy))
        if policy.record == "full" and verified.children[v]:
            verified.at(judged, v)
        got.divergence.append(verified.known(judged, v))
    return got


def _tv(verified: VerifiedTree, v: int, policy: Policy, fuzzy: bool) -> float:
    rule = policy.rule
    if rule.law is not None:
        return verified.law_tv(v)
    if not verified.children[v]:
        return 0.0
    if verified.greedy and not rule.takes_chances:
        return float(fuzzy)
    would_judge = policy.record == "lean" and rule.divergence_column
    if would_judge or any(guard.hides_tv for guard in policy.guards):
        return math.nan
    return rule.tv(verified, v)

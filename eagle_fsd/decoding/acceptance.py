"""Acceptance: the rule chooses the accepted path; tokens and cost follow from it for all rules."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.rule import Guard, Path, Rule, State
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.verified import VerifiedTree

ANY_DIVERGENCE = "js"  # recorded in full for rules without a divergence of their own


@dataclass(frozen=True)
class Acceptance:
    """The outcome of a round. Entry i of every list is about the token emitted after path[i].

    Attributes:
        path: the accepted path, as node indices, the root first.
        tokens: emitted tokens, the accepted drafts and then the next token; as long as `path`.
        fuzzy: the token is not the one that the exact test would have emitted with the same draw.
        divergence: D at path[i]; NaN at nodes without children, and in lean records where it was
            not asked for (on an accelerator: where the rule names none).
        tv: 1/2 sum |emitted distribution - P| at path[i]; 0 without children; NaN if unknown, and
            in lean records where it would ask for a divergence.
        regret: log P(argmax) - log P(token) of the raw target distribution, nats.
        dial: the parameter that a rule which adapts had set for the round; None of any other.
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

    @property
    def fuzzy_regret(self) -> float:
        """The regret of the round's fuzzy tokens, nats."""
        pairs = zip(self.regret, self.fuzzy, strict=True)
        return sum(regret for regret, fuzzy in pairs if fuzzy)


@dataclass(frozen=True)
class Policy:
    """How drafts are accepted, and how P comes from the target's logits.

    Attributes:
        record: "full" notes D all along the accepted path, for rules that do not ask for one too.
    """

    rule: Rule
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    guards: tuple[Guard, ...] = ()
    record: str = "lean"

    def __post_init__(self):
        if self.record not in ("lean", "full"):
            raise BadInput(f"record must be lean or full, got {self.record!r}")

    def check(self, drafter: Drafter) -> None:
        """Refuse, by a BadInput, what has no meaning with the sampling, the guards or the drafter;
        before it is built, as far as its settings show."""
        if self.rule.draw is not None and not drafter.samples:
            raise BadInput(
                "this rule needs drafts that are sampled, since it asks with what probability they "
                "came: add ,sample=1 to the drafter, as in rejection@eagle,sample=1"
            )
        self.rule.check(self.sampling, self.guards, drafter.vocab_size)

    def columns(self, rule: Rule) -> list[str]:
        """What is to be computed of every node in a round of this rule."""
        # the rule's first: the first divergence is the D that is recorded
        names = [*rule.columns, *(name for guard in self.guards for name in guard.columns)]
        if self.record == "full" and not any(name in DIVERGENCES for name in names):
            names.append(ANY_DIVERGENCE)
        return ["regret", *names]


@torch.inference_mode()
def accept(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    *,
    policy: Policy,
    state: State = None,
    stop_token_ids: Collection[int] = (),
    answer: Sequence[int] = (),
) -> tuple[Acceptance, State]:
    """Choose the accepted path; returns the outcome, and the rule's state for the next round.

    BadInput: the target's logits are no numbers after a node of the accepted path.

    Args:
        state: of the answer's last round; None: an answer begins.
        tree, target_logits_NV, uniform_S3, stop_token_ids, answer: see VerifiedTree.
    """
    state = policy.rule.start() if state is None else state
    rule, dial = policy.rule.this_round(state)
    columns = policy.columns(rule)
    verified = VerifiedTree(
        tree,
        target_logits_NV,
        uniform_S3,
        sampling=policy.sampling,
        columns=columns,
        draw=rule.draw,
        guards=policy.guards,
        stop_token_ids=stop_token_ids,
        answer=answer,
    )
    path = rule.choose(verified, state)
    judged = next((name for name in columns if name in DIVERGENCES), None)
    accepted = _acceptance(verified, path, policy, rule, judged, dial)
    for place, regret in enumerate(accepted.regret, start=len(answer)):
        if math.isnan(regret):
            raise no_numbers(f"after {place} tokens of the answer")
    return accepted, policy.rule.after(verified, accepted, state)


def _acceptance(
    verified: VerifiedTree,
    path: Path,
    policy: Policy,
    rule: Rule,
    judged: str | None,
    dial: float | None,
) -> Acceptance:
    """What is emitted along the accepted path, and what it costs."""
    got = Acceptance(path, [], [], [], [], [], dial)
    judge = verified.value if policy.record == "full" else verified.asked_value
    # a clock runs over lean records: there D is not computed for the record's sake
    asks_divergence = any(name in DIVERGENCES for name in rule.columns)
    hidden = policy.record == "lean" and dial is None and asks_divergence
    hidden = hidden or any(guard.reads_exact_token for guard in policy.guards)
    tv_known = verified.greedy or not hidden
    for v, child in zip(path, [*path[1:], None], strict=True):
        fuzzy = child is not None and verified.tokens[child] != verified.exact_token(v)
        got.tokens.append(verified.tokens[child] if fuzzy else verified.exact_token(v))
        got.fuzzy.append(fuzzy)
        got.regret.append(verified.value("regret", child) if fuzzy else verified.exact_regret(v))
        if not verified.children[v]:
            got.divergence.append(math.nan)
            got.tv.append(0.0)
            continue
        got.divergence.append(judge(judged, v) if judged else math.nan)
        if verified.greedy and not rule.takes_chances:
            got.tv.append(float(fuzzy))
        else:
            got.tv.append(rule.tv(verified, v) if tv_known else math.nan)
    return got

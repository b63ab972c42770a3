"""Acceptance: from a round's logits to its tokens. `tabulate` tells a rule what it may know, the
rule chooses the accepted path, and tokens and cost follow from it for all rules. What a rule and
what it is told are in verified.py and columns.py, which are to be read first.

Axes: N nodes, M nodes whose rows are looked at, C drafts, V vocabulary, S depths.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real

import torch

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.tree import Drafter, DraftTree
from eagle_fsd.decoding.verified import Guard, Rule, VerifiedTree


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


@dataclass(frozen=True)
class Policy:
    """How an answer's tokens are accepted: the rule, the sampling filters, the guards."""

    rule: Rule
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    guards: tuple[Guard, ...] = ()

    def check(self, drafter: Drafter) -> None:
        """Refuse what does not go together. The drafter may be its settings alone, before it is
        built."""
        _ = self.columns  # that there are such
        self.rule.check(self.sampling, drafter, self.guards)

    def begin(self) -> "Policy":
        """For one answer; see Rule.begin."""
        return replace(self, rule=self.rule.begin())

    @cached_property
    def columns(self) -> list[str]:
        """What rule and guards read, and what tells a draft's cost and whether it may be taken."""
        names = ["regret", *self.rule.columns]
        names += [name for guard in self.guards for name in guard.columns]
        names += ["supported"] if self.sampling.filters else []
        if self.sampling.temperature > 0 and any(guard.keeps_ends for guard in self.guards):
            names.append("log_goes_on")
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
    drafter: Drafter | None = None,
) -> Acceptance:
    """Choose the accepted path, and say what is emitted along it and what that costs. The policy is
    the answer's own (Policy.begin); a drafter is told where its tree is none, if it is given; for
    the other arguments see tabulate. BadInput: the target's logits are no numbers after a node of
    the accepted path; or what a plug-in may have made is no path, tree, column, TV or answer."""
    rule = policy.rule
    given = tree, target_logits_NV, uniform_S3, policy
    verified = tabulate(*given, stop_token_ids=stop_token_ids, answer=answer)
    if drafter is not None:
        _check_tree(tree, verified, drafter)
    chosen = rule.choose(verified)
    chosen = chosen if isinstance(chosen, Sequence) and chosen else [repr(chosen)]  # no root
    path = [verified.check_node(rule, *pair) for pair in zip([None, *chosen], chosen, strict=False)]
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
            if not isinstance(tv, Real) or not (math.isnan(tv) or -1e-3 < tv < 1.001):
                whose = f"rule {type(rule).__name__} gives node {v} a tv of {tv!r:.50}"
                raise BadInput(f"{whose}: it is 0 to 1, or NaN where it is not known")
            if verified.greedy and math.isnan(tv):  # a rule that draws nothing
                tv = float(fuzzy)
        tokens.append(token)
        fuzzy_flags.append(fuzzy)
        divergences.append(divergence)
        tvs.append(tv)
        regrets.append(regret)
    return Acceptance(path, tokens, fuzzy_flags, divergences, tvs, regrets)


def _check_tree(tree: DraftTree, verified: VerifiedTree, drafter: Drafter) -> None:
    """Whether a drafter's tree is what DraftTree says, by the numbers that the host has of it."""
    tokens, parents, told = verified.tokens, verified.parents, ""
    orphans = [node for node, parent in enumerate(parents) if not 0 <= parent < max(node, 1)]
    last = {pair: node for node, pair in enumerate(zip(parents, tokens, strict=True)) if node}
    deepest, most = max(verified.depths), max(map(len, verified.children))
    if verified.answer and tokens[0] != verified.answer[-1]:
        told = f"root, node 0, is token {tokens[0]}, and the last observed is {verified.answer[-1]}"
    elif orphans:
        told = f"node {orphans[0]} is below node {parents[orphans[0]]}, which is not before it"
    elif len(last) < len(tokens) - 1:
        twin = min({*range(1, len(tokens))} - {*last.values()})
        told = f"node {twin} has a sibling of the same token, {tokens[twin]}"
    elif deepest > tree.max_depth or most > (tree.max_children or most):
        told = f"max_depth {tree.max_depth} or max_children is less than {deepest} and {most}"
    if told:
        raise BadInput(f"drafter {type(drafter).__name__} gives a tree whose {told}: see DraftTree")


def tabulate(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    policy: Policy,
    *,
    stop_token_ids: Collection[int] = (),
    answer: Sequence[int] = (),
) -> VerifiedTree:
    """A tree and the target's raw logits, row i of the token AFTER node i, as a rule sees them. A
    column about places has a value at nodes with drafts, one about drafts at all but the root.
    Rows of uniform_S3 are on the CPU; those beyond max_depth belong to later tokens. For the other
    arguments see VerifiedTree."""
    sampling, N, device = policy.sampling, tree.size, tree.token_N.device
    uniform_S3 = uniform_S3[: tree.max_depth + 1]
    uniform_N3 = None
    if sampling.temperature > 0:
        uniform_N3 = uniform_S3.to(device, non_blocking=True)[tree.depth_N]

    def look_at(
        node_M: torch.Tensor, parent_C: torch.Tensor, token_C: torch.Tensor
    ) -> tuple[Rows, torch.Tensor, torch.Tensor]:
        """The rows of these nodes, ascending, with the drafts behind them; the tokens that the
        exact test emits there, and their regret."""
        target_MV = target_logits_NV
        if len(node_M) < N:
            target_MV = target_logits_NV.index_select(0, node_M)
        rows = Rows(
            target_MV.float(),
            torch.searchsorted(node_M, parent_C),
            token_C,
            sampling,
            tree.draft_logits_ER,
            tree.draft_row_N.index_select(0, node_M),
            tree.draft_token_R,
            tree.max_children,
            stop_token_ids,
        )
        if sampling.temperature == 0:  # the largest logit is the token's own
            return rows, rows.argmax_M, rows.best_M - rows.best_M
        token_M = policy.rule.draw_exact(rows, uniform_N3[node_M])
        _check_tensor(f"draw_exact of rule {type(policy.rule).__name__}", token_M, len(node_M))
        return rows, token_M, rows.best_M - rows.target_MV.gather(1, token_M[:, None])[:, 0]

    # 1. Which rows: on a CPU those with drafts behind them, a third to a half of all. On another
    #    device all, since it would have to be waited for to know which have drafts.
    parent_C, token_C = tree.parent_N[1:], tree.token_N[1:]
    node_M = torch.arange(N, device=device)
    if device.type == "cpu" and N > 1:
        node_M = parent_C.unique()
    # 2. Their exact tokens and columns, which reach the host in one transfer. Ids are exact in
    #    float64.
    rows, exact_M, regret_M = look_at(node_M, parent_C, token_C)
    table = [tree.token_N, tree.parent_N, node_M, exact_M, regret_M]
    for name in policy.columns:
        table.append((PLACES | DRAFTS)[name](rows))
        _check_tensor(f"column {name!r}", table[-1], len(node_M) if name in PLACES else N - 1)
    numbers = torch.cat([part.double() for part in table]).cpu()
    parts = numbers.split([len(part) for part in table])
    # 3. By node: a place's number by the place, of those with drafts alone on every device; a
    #    draft's by the draft.
    token, parent, node, exact_token = [part.long().tolist() for part in parts[:4]]
    exact = dict(zip(node, zip(exact_token, parts[4].tolist(), strict=True), strict=True))
    values = {}
    for name, part in zip(policy.columns, parts[5:], strict=True):
        nodes = node if name in PLACES else range(1, N)
        values[name] = dict(zip(nodes, part.tolist(), strict=True))
        if name in PLACES and N > 1:
            values[name] = {v: values[name][v] for v in {*parent[1:]}}

    def draw_leaf(v: int) -> tuple[int, float]:
        """A leaf's token is drawn when the path ends there."""
        _, exact_1, regret_1 = look_at(torch.tensor([v], device=device), parent_C[:0], token_C[:0])
        return exact_1.item(), regret_1.item()

    return VerifiedTree(
        token,
        parent,
        exact,
        values,
        sampling=sampling,
        draw_leaf=draw_leaf,
        uniforms=uniform_S3.tolist(),
        guards=policy.guards,
        stop_token_ids=stop_token_ids,
        answer=answer,
    )


def _check_tensor(whose: str, values: object, count: int) -> None:
    """That there is a number for each; a device need not be waited for."""
    if not isinstance(values, torch.Tensor) or values.shape != (count,):
        got = getattr(values, "shape", type(values).__name__)
        raise BadInput(f"{whose} gives {got} where a tensor of {count} numbers is wanted")

"""What a rule sees of a round, in plain Python numbers; and what a rule and a guard are.

`tabulate` makes a VerifiedTree after every verification; it is the only way from logits to what a
rule reads. The rules themselves are in eagle_fsd/rules, and registered in rules.RULES.

Random numbers belong to the answer, not to the round: row s of a round's block is for the token
that a node at depth s emits. So, behind the same text, the same exact token is drawn at the same
place whatever the tree, the drafter and the rule are (but for a rule with a `draw` of its own).

Axes: N nodes, M nodes whose rows are looked at, K children of a node, V vocabulary, S depths.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, TypeVar

import torch

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.tree import Drafter, DraftTree

Path = list[int]  # node indices from the root down; the root is always on it
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Result = TypeVar("Result")
UNIFORMS = 3  # a token: column 0 draws it, 1 picks among drafts, 2 says yes or no


class VerifiedTree:
    """A round's tree with the target's answers.

    Args:
        tokens, parents: of every node; the root is its own parent.
        exact: of every node that has drafts the token that the exact test emits there, and its
            regret in nats, which is NaN if and only if the node's logits have no largest number.
        values: by column and node.
        draw_leaf: makes an entry of `exact` for a node that has none.
        uniforms: numbers in [0, 1), a row a depth.
        stop_token_ids: a node with one of these is a leaf: drafts behind an end are no gain.
        answer: the answer's tokens so far, the root the last.

    Attributes:
        children, depths: of every node, children in the draft's order.
        greedy: P is the argmax.
    """

    def __init__(
        self,
        tokens: list[int],
        parents: list[int],
        exact: dict[int, tuple[int, float]],
        values: Mapping[str, Mapping[int, float]],
        *,
        sampling: SamplingConfig,
        draw_leaf: Callable[[int], tuple[int, float]] | None = None,
        uniforms: Sequence[Sequence[float]] = (),
        guards: Sequence["Guard"] = (),
        stop_token_ids: Collection[int] = (),
        answer: Sequence[int] = (),
    ):
        self.tokens, self.parents, self.values = tokens, parents, values
        self.sampling, self.greedy, self.answer = sampling, sampling.temperature == 0, answer
        self._exact, self._draw_leaf, self._uniforms = exact, draw_leaf, uniforms
        self._guards, self.stop_token_ids = guards, frozenset(stop_token_ids)
        self._computed: dict[Callable, object] = {}
        self.children: list[list[int]] = [[] for _ in tokens]
        self.depths = [0] * len(tokens)
        for node in range(1, len(tokens)):
            parent = parents[node]
            self.depths[node] = self.depths[parent] + 1
            if parent == 0 or tokens[parent] not in self.stop_token_ids:
                self.children[parent].append(node)

    def value(self, column: str, node: int) -> float:
        """BadInput says what is missing where a rule reads a column that it has not named, or one
        that has no value at the node."""
        try:
            return self.values[column][node]
        except KeyError:
            check_known("column", column, PLACES | DRAFTS)
            if column not in self.values:
                raise BadInput(
                    f"a rule or guard reads the column {column!r} and does not name it: add it to "
                    "the `columns` of its class"
                ) from None
            of = "nodes with children" if column in PLACES else "drafts, which the root is not"
            raise BadInput(f"node {node} has no {column!r}, which is of {of}") from None

    def exact(self, v: int) -> tuple[int, float]:
        if v not in self._exact:
            self._exact[v] = self._draw_leaf(v)
        return self._exact[v]

    def hit(self, v: int) -> int | None:
        for child in self.children[v]:
            if self.tokens[child] == self._exact[v][0]:
                return child
        return None

    def options(self, v: int) -> list[int]:
        """Children that may be taken although the exact token is another, in the draft's order:
        those that top-k and top-p leave, and every guard allows."""
        return [
            child
            for child in self.children[v]
            if ("supported" not in self.values or self.value("supported", child))
            and all(guard.allows(self, child) for guard in self._guards)
        ]

    def ancestors(self, v: int) -> list[int]:
        """The drafts from below the root down to v, itself the last; none for the root."""
        return [*self.ancestors(self.parents[v]), v] if v else []

    def undrafted_prob(self, v: int) -> float:
        """P_v of all tokens that were not drafted there; reads the column `prob`."""
        return max(0.0, 1 - sum(self.value("prob", child) for child in self.children[v]))

    def uniform(self, v: int, column: int) -> float:
        """A random number in [0, 1) of the token that v emits; column 1 or 2."""
        return self._uniforms[self.depths[v]][column]

    def pick(self, v: int, weights: Mapping[int, float]) -> int:
        """One of v's children, drawn in proportion to its weight; one of weight zero never is."""
        point, last = self.uniform(v, 1) * math.fsum(weights.values()), next(iter(weights))
        for child, weight in weights.items():
            point -= weight
            if weight > 0:
                last = child
                if point < 0:
                    break
        return last

    def once_a_round(self, compute: Callable[["VerifiedTree"], Result]) -> Result:
        """compute(self), kept for the round: what a rule knows of the whole tree."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]


def tabulate(
    tree: DraftTree,
    target_logits_NV: torch.Tensor,
    uniform_S3: torch.Tensor,
    *,
    sampling: SamplingConfig,
    columns: Collection[str] = (),
    draw: Draw | None = None,
    guards: Sequence["Guard"] = (),
    stop_token_ids: Collection[int] = (),
    answer: Sequence[int] = (),
) -> VerifiedTree:
    """A tree and the target's raw logits, row i of the token AFTER node i, as a rule sees them. A
    column about places has a value at nodes with drafts, one about drafts at all but the root.
    Rows of uniform_S3 are on the CPU; those beyond max_depth belong to later tokens. For the other
    arguments see Rule, Guard and VerifiedTree."""
    N, device = tree.size, tree.token_N.device
    uniform_S3 = uniform_S3[: tree.max_depth + 1]
    uniform_N3 = child_NK = None
    if sampling.temperature > 0:
        uniform_N3 = uniform_S3.to(device, non_blocking=True)[tree.depth_N]
    if draw is not None:  # the tokens of each node's children; a node with a stop token has none
        token_C, parent_C = tree.token_N[1:], tree.parent_N[1:]
        behind_end_C = torch.zeros_like(parent_C, dtype=torch.bool)
        for stop in stop_token_ids:  # they are few, and a tensor of them would be waited for
            behind_end_C |= (tree.token_N[parent_C] == stop) & (parent_C > 0)
        rank_C = (parent_C[:, None] == parent_C).tril(-1).sum(1)  # among its siblings
        child_NK = token_C.new_full((N, tree.max_children or N), -1)
        child_NK[parent_C, rank_C] = token_C.masked_fill(behind_end_C, -1)

    def look_at(node_M: torch.Tensor) -> tuple[Rows, torch.Tensor, torch.Tensor]:
        """The rows of these nodes, ascending; what the exact test emits there, and its regret.
        Columns hold only where all nodes with drafts are among them."""
        row_C = torch.searchsorted(node_M, tree.parent_N[1:]).clamp_max(len(node_M) - 1)
        target_MV = target_logits_NV
        if len(node_M) < N:
            target_MV = target_logits_NV.index_select(0, node_M)
        draft_row_M = tree.draft_row_N.index_select(0, node_M)
        drafter = tree.draft_logits_ER, draft_row_M, tree.draft_token_R
        rows = Rows(target_MV.float(), row_C, tree.token_N[1:], sampling, *drafter)
        if sampling.temperature == 0:  # the largest logit is the token's own
            return rows, rows.argmax_M, rows.best_M - rows.best_M
        if draw is None:
            token_M = inverse_cdf(rows.prob_MV, uniform_N3[node_M, 0])
        else:
            drafted = rows.draft_distribution_MV, child_NK[node_M]
            token_M = draw(rows.prob_MV, *drafted, uniform_N3[node_M])
        return rows, token_M, rows.best_M - rows.target_MV.gather(1, token_M[:, None])[:, 0]

    # 1. Which rows: on a CPU those with drafts behind them, a third to a half of all. On another
    #    device all, since it would have to be waited for to know which have drafts.
    node_M = torch.arange(N, device=device)
    if device.type == "cpu" and N > 1:
        node_M = tree.parent_N[1:].unique()
    # 2. Their exact tokens and columns, which reach the host in one transfer. Ids are exact in
    #    float64.
    rows, exact_M, regret_M = look_at(node_M)
    table = [tree.token_N, tree.parent_N, node_M, exact_M, regret_M]
    for name in columns:
        table.append((PLACES | DRAFTS)[name](rows))
    numbers = torch.cat([part.double() for part in table]).cpu()
    parts = numbers.split([len(part) for part in table])
    # 3. By node: a place's number by the place, a draft's by the draft.
    token, parent, node, exact_token = [part.long().tolist() for part in parts[:4]]
    exact = dict(zip(node, zip(exact_token, parts[4].tolist(), strict=True), strict=True))
    values = {}
    for name, part in zip(columns, parts[5:], strict=True):
        of_places = name in PLACES
        values[name] = dict(zip(node if of_places else range(1, N), part.tolist(), strict=True))

    def draw_leaf(v: int) -> tuple[int, float]:
        """A leaf's token is drawn when the path ends there."""
        _, exact_1, regret_1 = look_at(torch.tensor([v], device=device))
        return exact_1.item(), regret_1.item()

    return VerifiedTree(
        token,
        parent,
        exact,
        values,
        sampling=sampling,
        draw_leaf=draw_leaf,
        uniforms=uniform_S3.tolist(),
        guards=guards,
        stop_token_ids=stop_token_ids,
        answer=answer,
    )


class Rule:
    """Chooses the accepted path of a verified tree; the exact token of its last node follows it.

    A rule is a frozen dataclass whose fields are its parameters, the first of them the value in an
    arm's text (`fsd:0.3`); it names `columns` and has a `step`, or a `choose` of its own. One in
    RULES that has neither, nor a `begin` or a `draw`, is refused (arms.check_entry).

    Attributes:
        columns: names in PLACES or DRAFTS (columns.py) that it reads; a property may give them.
        draw: None, or a staticmethod that draws the exact token with the help of drafts that were
            sampled: draw(prob_MV, draft_prob_MV, child_MK, uniform_M3) -> [M], of both
            distributions after the sampling filters (the drafter's NaN where it has none), the
            tokens of the children in the order in which they were drawn (-1: no more), and the
            random numbers of the token. The drafter must sample.
        bounds: the least and the largest value of its first field, if that is a number.
        takes_guards: above temperature 0 too.
        takes_chances: at temperature 0 too the accepted path depends on a draw.
        lossless_at: the value of its first field at which it is exact. Infinite: only in the limit.
            NaN: at none, nor towards one.
        dial: the parameter that a rule which adapts has used in this round; no field.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    draw: ClassVar[Draw | None] = None
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)
    takes_guards: ClassVar[bool] = True
    takes_chances: ClassVar[bool] = False
    lossless_at: ClassVar[float] = 0.0
    dial: float | None = None

    def __post_init__(self):
        """Refuse a first field out of bounds; a NaN is."""
        low, high = self.bounds
        for name, value in list(vars(self).items())[:1]:
            if isinstance(value, float | int) and not low <= value <= high:
                raise BadInput(f"{name} must be {low:g} to {high:g}, got {value}")

    def check(self, sampling: SamplingConfig, drafter: Drafter) -> None:
        """Refuse what has no meaning together; see Policy.check."""

    def begin(self) -> "Rule":
        """Called once an answer: a rule that remembers its rounds returns a fresh object that does
        (a Rule too), any other itself."""
        return self

    def choose(self, tree: VerifiedTree) -> Path:
        path, child = [0], self.step(tree, 0)
        while child is not None:
            path.append(child)
            child = self.step(tree, child)
        return path

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        """The child that is taken at v; None: the exact token ends the round.

        Above temperature 0 it must not read exact tokens below v: that would bias the distribution
        of the text. At 0 they are no draws.
        """
        return tree.hit(v)

    def tv(self, tree: VerifiedTree, v: int) -> float:
        """1/2 sum |emitted distribution - P| at a node with children on the accepted path; NaN if
        unknown. At temperature 0 only rules that take chances are asked: else it is 0 or 1."""
        return float("nan")


class Guard:
    """A predicate on a draft, which goes with any rule: a draft that it does not allow is taken
    only where it is the exact token. A frozen dataclass of one field.

    Attributes:
        reads_exact_token: it asks what the exact token is, so that above temperature 0 the rule's
            own TV is not that of what is emitted.
        off: its value allows every draft: a way to say that a default guard is not wanted.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    reads_exact_token: ClassVar[bool] = False

    @property
    def off(self) -> bool:
        return False

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        raise NotImplementedError

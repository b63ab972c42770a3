"""What a rule sees of a round, in plain Python numbers; and what a rule and a guard are.

The exact token after a node is the one that the target itself emits there, drawn by the answer's
own random number; a draft that bears it is a hit. A rule that takes another draft in its place
emits a fuzzy token.

acceptance.tabulate makes a VerifiedTree after every verification; it is the only way from logits to
what a rule reads. The rules themselves are in eagle_fsd/rules, and registered in rules.RULES.

Random numbers belong to the answer, not to the round: row s of a round's block is for the token
that a node at depth s emits. So, behind the same text, the same exact token is drawn at the same
place whatever the tree, the drafter and the rule are (but for a rule that draws it otherwise).

Axes: M places whose rows are looked at.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from typing import ClassVar, TypeVar

import torch

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.tree import Drafter

Path = list[int]  # node indices from the root down; the root is always on it
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
        self._keeps_ends = any(guard.keeps_ends for guard in guards)
        self._allowed: dict[int, list[int]] = {}
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
        """The exact token after v, and its regret."""
        if v not in self._exact:
            self._exact[v] = self._draw_leaf(v)
        return self._exact[v]

    def hit(self, v: int) -> int | None:
        """The child of v that bears the exact token; None: it was not drafted."""
        for child in self.children[v]:
            if self.tokens[child] == self._exact[v][0]:
                return child
        return None

    def allowed(self, v: int) -> list[int]:
        """Children that may be taken in the place of another token, whatever the exact one is, in
        the draft's order: those that top-k and top-p leave, and every guard allows."""
        if v not in self._allowed:
            self._allowed[v] = [
                child
                for child in self.children[v]
                if ("supported" not in self.values or self.value("supported", child))
                and all(self._allows(guard, child) for guard in self._guards)
            ]
        return self._allowed[v]

    def options(self, v: int) -> list[int]:
        """Children that may be taken although the exact token is another: none where that is a
        stop token which a guard keeps."""
        return [] if self.children[v] and self.keeps_exact(v) else self.allowed(v)

    def keeps(self, token: int) -> bool:
        """Whether it is a stop token, and a guard says that those keep their probability."""
        return self._keeps_ends and token in self.stop_token_ids

    def keeps_exact(self, v: int) -> bool:
        """The same of the exact token after v."""
        return self._keeps_ends and self.exact(v)[0] in self.stop_token_ids

    def log_goes_on(self, v: int) -> float:
        """log P_v of the tokens that need not be kept, all without such a guard."""
        if not self._keeps_ends:
            return 0.0
        if self.greedy:
            return -math.inf if self.keeps_exact(v) else 0.0
        return self.value("log_goes_on", v)

    def _allows(self, guard: "Guard", child: int) -> bool:
        allowed = guard.allows(self, child)
        if not (allowed == 0 or allowed == 1):
            told = f"guard {type(guard).__name__} answers {allowed!r:.50} for node {child}"
            raise BadInput(f"{told}: it allows a draft by True or False")
        return bool(allowed)

    def check_node(self, rule: "Rule", v: int | None, node: object) -> int:
        """The node, which a rule puts on its path behind v; None: as its first. BadInput names the
        rule and a node that is not a child of v, or not the root."""
        known = isinstance(node, Integral) and not isinstance(node, bool)
        known = known and 0 <= node < len(self.tokens) and self.parents[node] == (v or 0)
        if not known or (node == 0) != (v is None):
            wanted = "the root, 0" if v is None else f"a child of node {v}"
            told = f"rule {type(rule).__name__} goes to {node!r:.50} where it needs {wanted}"
            raise BadInput(f"{told}: it goes from the root down, child by child")
        return int(node)

    def ancestors(self, v: int) -> list[int]:
        """The drafts from below the root down to v, itself the last; none for the root."""
        return [*self.ancestors(self.parents[v]), v] if v else []

    def replaceable_prob(self, v: int) -> float:
        """P_v of all tokens that were not drafted there and need not be kept; reads the column
        `prob`."""
        drafted = (c for c in self.children[v] if not self.keeps(self.tokens[c]))
        return max(0.0, math.exp(self.log_goes_on(v)) - sum(self.value("prob", c) for c in drafted))

    def uniform(self, v: int, column: int) -> float:
        """A random number in [0, 1) of the token that v emits; column 1 or 2."""
        return self._uniforms[self.depths[v]][column]

    def pick(self, v: int, weights: Mapping[int, float]) -> int:
        """One of v's children, drawn in proportion to its weight, which one at least must have."""
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


class Rule:
    """Chooses the accepted path of a verified tree; the exact token of its last node follows it.

    A rule is a frozen dataclass whose fields are its parameters, the first of them the value in an
    arm's text (`fsd:0.3`); it names `columns` and has a `step`, or a `choose` of its own. One in
    RULES that has neither, nor a `begin` or a `draw_exact`, is refused (arms.check_entry).

    Attributes:
        columns: names in PLACES or DRAFTS (columns.py) that it reads; a property may give them.
        bounds: the least and the largest value of its first field, if that is a number.
        lossless_at: the value of its first field at which it is exact. Infinite: only in the limit.
            NaN: at none, nor towards one.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)
    lossless_at: ClassVar[float] = 0.0

    def __post_init__(self):
        """Refuse a first field out of bounds; a NaN is."""
        low, high = self.bounds
        wanted = f"{low:g} or above" if high == math.inf else f"from {low:g} to {high:g}"
        for name, value in list(vars(self).items())[:1]:
            if isinstance(value, float | int) and not low <= value <= high:
                raise BadInput(f"{name} must be {wanted}, got {value}")

    def check(
        self, sampling: SamplingConfig, drafter: Drafter, guards: Sequence["Guard"] = ()
    ) -> None:
        """Refuse what has no meaning together; see Policy.check."""

    def begin(self) -> "Rule":
        """Called once an answer: a rule that remembers its rounds returns a fresh object that does
        (a Rule too), any other itself."""
        return self

    def draw_exact(self, rows: Rows, uniform_M3: torch.Tensor) -> torch.Tensor:
        """The exact token after each place, int64 [M], above temperature 0; at 0 it is the argmax
        for every rule."""
        return inverse_cdf(rows.prob_MV, uniform_M3[:, 0])

    def choose(self, tree: VerifiedTree) -> Path:
        path, child = [0], self.step(tree, 0)
        while child is not None:
            path.append(tree.check_node(self, path[-1], child))  # or it might go on for ever
            child = self.step(tree, path[-1])
        return path

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        """The child that is taken at v; None: the exact token ends the round.

        Above temperature 0 it must not read exact tokens below v: that would bias the distribution
        of the text. At 0 they are no draws.
        """
        return tree.hit(v)

    def tv(self, tree: VerifiedTree, v: int) -> float:
        """1/2 sum |emitted distribution - P| at a node with children on the accepted path; NaN:
        unknown. At temperature 0 `accept` then takes 1 where the token is fuzzy and 0 elsewhere, so
        that a rule which draws nothing needs none of its own."""
        return math.nan


class Guard:
    """A predicate on a draft, which goes with any rule: a draft that it does not allow is taken
    only where it is the exact token. A frozen dataclass of one field.

    A rule that steps asks it where the exact token is drawn. One that says above temperature 0 how
    probable each draft becomes (rules/price.py) asks it of every draft: one that is not allowed is
    as a token that was not drafted, but for the drafts behind it if it is drawn after all.

    Attributes:
        keeps_ends: besides, every stop token keeps its probability, drafted or not: where it is
            the exact token it is emitted.
        reads_exact_token: it asks what the exact token is, so that above temperature 0 the rule's
            own TV is not that of what is emitted, and rules that weigh every draft refuse it.
        off: its value allows every draft: a way to say that a default guard is not wanted.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    keeps_ends: ClassVar[bool] = False
    reads_exact_token: ClassVar[bool] = False

    @property
    def off(self) -> bool:
        return False

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        raise NotImplementedError

"""A draft tree with the target's answers: all that a rule sees of a round.

A rule reads small numbers on the host; how they come about is told here:

    CPU           a row at a time, as a walk asks; or all parents at once, where a rule looks ahead
    accelerator   all nodes and all columns that were named, in one pass and one transfer

Uniforms are per answer: row s of a round's block is for the token that a node at depth s emits, so
that the same x is drawn at the same place whatever the tree, the drafter and the rule.

Axes: N nodes, M rows, V vocabulary, C tokens asked about, S depths.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TypeVar

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.columns import COLUMNS, Rows
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.tree import DraftTree

Law = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
# draw(prob_MV, draft_prob_MV, child_MC, uniform_M3) -> x ~ P [M], from both distributions after the
# sampling filters, the tokens of the children in the order in which they were drawn (-1: no more),
# and the numbers of the token
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Result = TypeVar("Result")
UNIFORMS = 3  # a token: column 0 draws x, 1 picks among drafts, 2 says yes or no


class VerifiedTree:
    """A round's tree, after verification.

    Args:
        tree: the draft tree.
        target_logits_NV: the target's raw logits; row i is about the token AFTER node i.
        uniform_S3: numbers in [0, 1) on the CPU, a row a depth, at least max_depth + 1 rows.
        sampling: how P comes from the logits.
        columns: names in COLUMNS that may be asked for; asking for another is a KeyError.
        ahead, law, draw: see rule.Rule.
        allows: see rule.Guard.
        stop_token_ids: a node with one of these is a leaf: drafts behind an end are no gain.
        answer: the answer's tokens so far, the root the last.

    Attributes:
        tokens, parents, depths, children: of every node; the root is its own parent.
        greedy: P is the argmax.
    """

    def __init__(
        self,
        tree: DraftTree,
        target_logits_NV: torch.Tensor,
        uniform_S3: torch.Tensor,
        *,
        sampling: SamplingConfig,
        columns: Collection[str] = (),
        ahead: Collection[str] = (),
        law: Law | None = None,
        draw: Draw | None = None,
        allows: Sequence[Callable[["VerifiedTree", int], bool]] = (),
        stop_token_ids: Collection[int] = (),
        answer: Sequence[int] = (),
    ):
        self.answer, self.sampling, self.greedy = answer, sampling, sampling.temperature == 0
        self._tree, self._logits_NV, self._uniform_S3 = tree, target_logits_NV, uniform_S3
        self._ahead, self._law, self._draw_x = ahead, law, draw
        self._allows, self._stops = allows, stop_token_ids
        self._filtered = sampling.top_k > 0 or sampling.top_p < 1
        names = [*columns, "supported"] if self._filtered else columns
        self._values: dict[str, dict[int, float]] = {name: {} for name in names}
        self._rows: dict[int, Rows] = {}
        self._drawn: dict[int, tuple[int, int, float]] = {}  # x, what takes its place, their TV
        self._once: dict = {}
        if self._on_cpu:
            self.tokens, self.parents = tree.token_N.tolist(), tree.parent_N.tolist()
        else:
            self.tokens, self.parents = self._read_all()
        self.children: list[list[int]] = [[] for _ in self.tokens]
        self.depths = [0] * len(self.tokens)
        for node in range(1, len(self.tokens)):
            parent = self.parents[node]
            self.depths[node] = self.depths[parent] + 1
            if parent == 0 or self.tokens[parent] not in stop_token_ids:
                self.children[parent].append(node)

    # --- what a rule may ask --------------------------------------------------------------------

    def x(self, v: int) -> int:
        """The token that the exact test emits at v."""
        return self._draw(v)[0]

    def ends(self, v: int) -> bool:
        """Whether the exact test ends the answer at v."""
        return self.x(v) in self._stops

    def drawn(self, v: int) -> int:
        """What v emits if no draft is taken: x, or y of the rule's own law."""
        return self._draw(v)[1]

    def hit(self, v: int) -> int | None:
        """The child with the drawn token, if there is one."""
        if not self.children[v]:
            return None
        token = self.drawn(v)
        return next((c for c in self.children[v] if self.tokens[c] == token), None)

    def options(self, v: int) -> list[int]:
        """Children that may be taken although x is another token: within what top-k and top-p
        leave of the target's row, and allowed by every guard, in the draft's order."""
        return [
            c
            for c in self.children[v]
            if (not self._filtered or self.of("supported", c))
            and all(allows(self, c) for allows in self._allows)
        ]

    def ancestors(self, v: int) -> list[int]:
        """The drafts from below the root down to v, itself the last; none for the root."""
        return [*self.ancestors(self.parents[v]), v] if v else []

    def fuzzy_steps(self, path: Sequence[int]) -> list[int]:
        """The drafts on a path that are not the token which the exact test emits there."""
        steps = zip(path, path[1:], strict=False)
        return [c for v, c in steps if self.tokens[c] != self.x(v)]

    def at(self, column: str, v: int) -> float:
        """A column's value of a place."""
        return self._value(column, v, v)

    def of(self, column: str, child: int) -> float:
        """A column's value of a draft, after its parent."""
        return self._value(column, child, self.parents[child])

    def outside(self, v: int) -> float:
        """P_v of all tokens that were not drafted there; asks for `prob`."""
        return max(0.0, 1 - sum(self.of("prob", c) for c in self.children[v]))

    def uniform(self, v: int, column: int) -> float:
        """A random number in [0, 1) of the token that v emits; column 1 or 2."""
        return self._uniform_S3[self.depths[v], column].item()

    def once(self, compute: Callable[["VerifiedTree"], Result]) -> Result:
        """compute(self), done once a round."""
        if compute not in self._once:
            self._once[compute] = compute(self)
        return self._once[compute]

    # --- for the record -------------------------------------------------------------------------

    def law_tv(self, v: int) -> float:
        """1/2 sum |law - P| at v, of a rule with a law."""
        return self._draw(v)[2]

    def known(self, column: str | None, v: int) -> float:
        """A place's value if it was computed and has drafts behind it, else NaN."""
        return self._values.get(column, {}).get(v, math.nan) if self.children[v] else math.nan

    def step_regret(self, v: int, child: int | None) -> float:
        """Regret of what v emits, nats: the child's token, or the drawn one. NaN if and only if v's
        logits have no largest number."""
        if not self._on_cpu:
            drawn, taken = self._step_regrets
            return taken[child] if child else drawn[v]
        token = self.tokens[child] if child else self.drawn(v)
        if self.greedy and token == self.x(v):
            logit = self._logits_NV[v, token].item()
            return logit - logit  # 0, or NaN
        rows = self._row(v)
        return (rows.best_M1[0, 0] - rows.target_MV[0, token]).item()

    # --- where the numbers come from: on a CPU ---------------------------------------------------

    @property
    def _on_cpu(self) -> bool:
        return self._logits_NV.device.type == "cpu"

    def _value(self, column: str, node: int, v: int) -> float:
        known = self._values[column]  # a KeyError: the rule did not name this column
        if node not in known:
            places, rows = ([v], self._row(v)) if column not in self._ahead else self._every_parent
            for place, value in zip(places, COLUMNS[column](rows).tolist(), strict=True):
                of_draft = isinstance(value, list)
                known |= {c: value[c] for c in self.children[place]} if of_draft else {place: value}
        return known[node]

    def _row(self, v: int) -> Rows:
        if v not in self._rows:
            self._rows[v] = self._rows_of(slice(v, v + 1))
        return self._rows[v]

    @cached_property
    def _every_parent(self) -> tuple[list[int], Rows]:
        places = [v for v, children in enumerate(self.children) if children]
        return places, self._rows_of(torch.tensor(places, dtype=torch.int64))

    def _rows_of(self, node_M: torch.Tensor | slice) -> Rows:
        return Rows(self._tree, self._logits_NV, node_M, self._tree.token_N, self.sampling)

    def _draw(self, v: int) -> tuple[int, int, float]:
        if v not in self._drawn:
            at_once = self._ahead and self.greedy and self.children[v]
            places, rows = self._every_parent if at_once else ([v], self._row(v))
            values = zip(*(value_M.tolist() for value_M in self._draw_rows(rows)), strict=True)
            self._drawn |= dict(zip(places, values, strict=True))
        return self._drawn[v]

    def _draw_rows(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x, what takes its place, and the TV between their distributions."""
        if self.greedy:
            x_M = rows.argmax_M
        elif self._draw_x is not None:
            child_MC, uniform_M3 = self._child_NC[rows.node_M], self._uniform_N3[rows.node_M]
            distributions = rows.prob_MV, rows.draft_distribution_MV
            x_M = self._draw_x(*distributions, child_MC, uniform_M3)
        else:
            x_M = inverse_cdf(rows.prob_MV, self._uniform_N3[rows.node_M, 0])
        if self._law is None:
            return x_M, x_M, torch.zeros_like(x_M)
        is_child_MV = self._is_child_NV[rows.node_M]
        law_MV = self._law(rows.prob_MV, rows.draft_distribution_MV, is_child_MV)
        y_M = inverse_cdf(law_MV, self._uniform_N3[rows.node_M, 0])
        return x_M, y_M, 0.5 * (law_MV - rows.prob_MV).abs().sum(-1)

    @cached_property
    def _uniform_N3(self) -> torch.Tensor:
        """The numbers of the token that each node emits."""
        uniform_S3 = self._uniform_S3.to(self._logits_NV.device, non_blocking=True)
        return uniform_S3[self._tree.depth_N]

    @cached_property
    def _behind_end_C(self) -> torch.Tensor:
        """Which drafts are below a stop token, which has no children."""
        parent_C = self._tree.parent_N[1:]
        behind_C = torch.zeros_like(parent_C, dtype=torch.bool)
        for stop in self._stops:  # few; a tensor of them would be waited for
            behind_C |= (self._tree.token_N[parent_C] == stop) & (parent_C > 0)
        return behind_C

    @cached_property
    def _is_child_NV(self) -> torch.Tensor:
        """Which tokens are children of each node."""
        token_C, parent_C = self._tree.token_N[1:], self._tree.parent_N[1:]
        is_child_NV = torch.zeros_like(self._logits_NV, dtype=torch.bool)
        is_child_NV[parent_C, token_C] = ~self._behind_end_C
        return is_child_NV

    @cached_property
    def _child_NC(self) -> torch.Tensor:
        """Tokens of each node's children in the draft's order, and -1 where there are no more."""
        token_C, parent_C = self._tree.token_N[1:], self._tree.parent_N[1:]
        rank_C = (parent_C[:, None] == parent_C).tril(-1).sum(1)  # among its siblings
        shape = self._tree.size, self._tree.max_children or self._tree.size
        child_NC = token_C.new_full(shape, -1)
        child_NC[parent_C, rank_C] = token_C.masked_fill(self._behind_end_C, -1)
        return child_NC

    # --- and on an accelerator --------------------------------------------------------------------

    def _read_all(self) -> tuple[list[int], list[int]]:
        """All nodes, all columns; returns tokens and parents. Ids are exact in float64."""
        tree, rows = self._tree, self._rows_of(slice(None))
        x_N, drawn_N, tv_N = self._draw_rows(rows)
        node_N = torch.arange(tree.size, device=x_N.device)
        names = list(dict.fromkeys([*self._values, "regret"]))
        values = [COLUMNS[name](rows) for name in names]
        values = [v if v.ndim == 1 else v[tree.parent_N, node_N] for v in values]
        regret_N = rows.best_M1[:, 0] - rows.target_MV.gather(1, drawn_N[:, None])[:, 0]
        table = [tree.token_N, tree.parent_N, x_N, drawn_N, tv_N, regret_N, *values]
        table = torch.stack([value_N.double() for value_N in table]).tolist()
        token, parent, x, drawn, tv, regret, *values = table
        named = dict(zip(names, values, strict=True))
        self._step_regrets = regret, named["regret"]
        self._values |= {name: dict(enumerate(named[name])) for name in self._values}
        self._drawn = {v: (int(x[v]), int(drawn[v]), tv[v]) for v in range(tree.size)}
        return [int(value) for value in token], [int(value) for value in parent]

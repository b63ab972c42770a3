"""A draft tree with the target's answers: all that a rule sees of a round.

The numbers are computed by the same functions everywhere (columns.py), of any rows at once. On an
accelerator that is all nodes and all columns that were named, in one pass and one transfer. On a
CPU it is a column of a row, when that is first asked about: a walk visits two or three of a tree's
rows, and all of them at once took 1.5 to 60 times as long (results/speed_judging).

Random numbers belong to the answer, not to the round: row s of a round's block is for the token
that a node at depth s emits. So the same token is drawn at the same place of an answer, whatever
the tree, the drafter and the rule are.

Axes: N nodes, M rows looked at, C drafts, K children of a node, V vocabulary, S depths.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Column, Rows
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.tree import DraftTree

if TYPE_CHECKING:
    from eagle_fsd.decoding.rule import Guard

# draw(prob_MV, draft_prob_MV, child_MK, uniform_M3) -> exact_token_M; see rule.Rule.draw
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Result = TypeVar("Result")
UNIFORMS = 3  # a token: column 0 draws it, 1 picks among drafts, 2 says yes or no


class VerifiedTree:
    """A round's tree, after verification.

    Args:
        tree: the draft tree.
        target_logits_NV: the target's raw logits; row i is about the token AFTER node i.
        uniform_S3: numbers in [0, 1) on the CPU, a row a depth, at least max_depth + 1 rows; what
            is beyond belongs to later tokens.
        sampling: how P comes from the logits.
        columns: names in PLACES or DRAFTS that may be asked for; asking for another is a KeyError.
        draw: None, or how the exact token is drawn with the help of sampled drafts.
        guards: predicates that narrow `options`.
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
        draw: Draw | None = None,
        guards: Sequence["Guard"] = (),
        stop_token_ids: Collection[int] = (),
        answer: Sequence[int] = (),
    ):
        self._hold(sampling, guards, stop_token_ids, answer)
        self._tree, self._logits_NV, self._draw = tree, target_logits_NV, draw
        self._uniform_S3 = uniform_S3[: tree.max_depth + 1]
        self._values = {name: {} for name in with_support(columns, sampling)}
        if self._row_by_row:
            self._link(tree.token_N.tolist(), tree.parent_N.tolist())
        else:
            self._link(*self._read_all())

    @classmethod
    def of_numbers(
        cls,
        tokens: list[int],
        parents: list[int],
        exact: list[int],
        values: dict[str, dict[int, float]],
        *,
        sampling: SamplingConfig,
        guards: Sequence["Guard"] = (),
        stop_token_ids: Collection[int] = (),
        answer: Sequence[int] = (),
    ) -> "VerifiedTree":
        """A tree whose numbers are on the host already: what an engine that reads those of a whole
        batch in one transfer hands in. Every random number of it is 0.

        Args:
            exact: the exact token of every node, -1 where it is none that was drafted.
            values: of every column that may be asked for, by node.
        """
        tree = cls.__new__(cls)
        tree._hold(sampling, guards, stop_token_ids, answer)
        tree._values, tree._exact = values, {v: (token, 0.0) for v, token in enumerate(exact)}
        tree._link(tokens, parents)
        tree._uniform_S3 = None
        return tree

    def _hold(
        self,
        sampling: SamplingConfig,
        guards: Sequence["Guard"],
        stop_token_ids: Collection[int],
        answer: Sequence[int],
    ) -> None:
        self.answer, self.sampling, self.greedy = answer, sampling, sampling.temperature == 0
        self._guards, self._stops = guards, frozenset(stop_token_ids)
        self._filtered = is_filtered(sampling)
        self._values: dict[str, dict[int, float]] = {}
        self._rows: dict[int, Rows] = {}
        self._exact: dict[int, tuple[int, float]] = {}  # the exact token of a place, its regret
        self._computed: dict[Callable, object] = {}

    def _link(self, tokens: list[int], parents: list[int]) -> None:
        self.tokens, self.parents = tokens, parents
        self.children: list[list[int]] = [[] for _ in tokens]
        self.depths = [0] * len(tokens)
        for node in range(1, len(tokens)):
            parent = parents[node]
            self.depths[node] = self.depths[parent] + 1
            if parent == 0 or tokens[parent] not in self._stops:
                self.children[parent].append(node)

    # --- what a rule may ask --------------------------------------------------------------------

    def value(self, column: str, node: int) -> float:
        """A column's value at a node; a KeyError if the rule and its guards did not name it."""
        known = self._values[column]
        if node not in known:
            v = node if column in PLACES else self.parents[node]
            nodes, function = self._of_row(column, v)
            known.update(zip(nodes, function(self._row(v)).tolist(), strict=True))
        return known[node]

    def asked_value(self, column: str, v: int) -> float:
        """A place's value if it is known by now, else NaN: on a CPU what was asked for, on an
        accelerator all that was named."""
        return self._values[column].get(v, math.nan)

    def exact_token(self, v: int) -> int:
        """The token that the exact test emits at v."""
        return self._exact_at(v)[0]

    def exact_regret(self, v: int) -> float:
        """Its regret, nats; NaN if and only if v's logits have no largest number."""
        return self._exact_at(v)[1]

    def hit(self, v: int) -> int | None:
        """The child with the exact token, if there is one."""
        if not self.children[v]:
            return None
        exact = self.exact_token(v)
        return next((c for c in self.children[v] if self.tokens[c] == exact), None)

    def ends(self, v: int) -> bool:
        """Whether the exact test ends the answer at v."""
        return self.exact_token(v) in self._stops

    def options(self, v: int) -> list[int]:
        """Children that may be taken although the exact token is another: within what top-k and
        top-p leave of the target's row, and allowed by every guard, in the draft's order."""
        return [
            c
            for c in self.children[v]
            if (not self._filtered or self.value("supported", c))
            and all(guard.allows(self, c) for guard in self._guards)
        ]

    def ancestors(self, v: int) -> list[int]:
        """The drafts from below the root down to v, itself the last; none for the root."""
        return [*self.ancestors(self.parents[v]), v] if v else []

    def undrafted_prob(self, v: int) -> float:
        """P_v of all tokens that were not drafted there; asks for the column `prob`."""
        return max(0.0, 1 - sum(self.value("prob", c) for c in self.children[v]))

    def uniform(self, v: int, column: int) -> float:
        """A random number in [0, 1) of the token that v emits; column 1 or 2."""
        if self._uniform_S3 is None:  # of_numbers
            return 0.0
        return self._uniform_S3[self.depths[v], column].item()

    def once_a_round(self, compute: Callable[["VerifiedTree"], Result]) -> Result:
        """compute(self), kept for the round: what a rule knows of the whole tree."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]

    # --- where the numbers come from ------------------------------------------------------------

    @property
    def _row_by_row(self) -> bool:
        return self._logits_NV.device.type == "cpu"

    def _row(self, v: int) -> Rows:
        """v's row alone, and the drafts after it."""
        if v not in self._rows:
            tokens = [self.tokens[c] for c in self.children[v]]
            token_C = torch.tensor(tokens, dtype=torch.int64)
            drafts = torch.zeros_like(token_C), token_C
            only = slice(v, v + 1)
            self._rows[v] = Rows(self._tree, self._logits_NV, only, *drafts, self.sampling)
        return self._rows[v]

    def _of_row(self, column: str, v: int) -> tuple[list[int], Column]:
        """The nodes that a column of v's row is about, and its function."""
        return (
            ([v], PLACES[column]) if column in PLACES else (self.children[v], DRAFTS[column])
        )

    def _exact_at(self, v: int) -> tuple[int, float]:
        if v not in self._exact:
            rows, uniform_13 = self._row(v), self._uniform_S3[self.depths[v]][None]
            exact_1, regret_1 = self._exact_tokens(rows, rows.token_C[None], uniform_13)
            self._exact[v] = exact_1.item(), regret_1.item()
        return self._exact[v]

    def _exact_tokens(
        self, rows: Rows, child_MK: torch.Tensor | None, uniform_M3: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of every row, and their regrets; the children's tokens are for `draw` alone."""
        if self.greedy:  # the largest logit is its own
            return rows.argmax_M, rows.best_M - rows.best_M
        if self._draw is None:
            exact_M = inverse_cdf(rows.prob_MV, uniform_M3[:, 0])
        else:
            exact_M = self._draw(rows.prob_MV, rows.draft_distribution_MV, child_MK, uniform_M3)
        return exact_M, rows.best_M - rows.target_MV.gather(1, exact_M[:, None])[:, 0]

    def _read_all(self) -> tuple[list[int], list[int]]:
        """On an accelerator: all nodes in one transfer; returns tokens and parents."""
        tree = self._tree
        rows = Rows.of_tree(tree, self._logits_NV, self.sampling)
        uniform_S3 = self._uniform_S3.to(self._logits_NV.device, non_blocking=True)
        table = [tree.token_N, tree.parent_N]  # ids are exact in float64
        child_NK = None if self._draw is None else child_table(tree, self._stops)
        table += self._exact_tokens(rows, child_NK, uniform_S3[tree.depth_N])
        table += [(PLACES | DRAFTS)[name](rows) for name in self._values]
        table = torch.stack([value_N.double() for value_N in table]).tolist()
        token, parent, exact, regret, *values = table
        self._exact = dict(enumerate(zip(map(int, exact), regret, strict=True)))
        named = zip(self._values, values, strict=True)
        self._values = {name: dict(enumerate(value)) for name, value in named}
        return [int(value) for value in token], [int(value) for value in parent]


def is_filtered(sampling: SamplingConfig) -> bool:
    """Whether top-k or top-p was set explicitly."""
    return sampling.top_k > 0 or sampling.top_p < 1


def with_support(columns: Collection[str], sampling: SamplingConfig) -> list[str]:
    """The columns, and what a tree needs besides to know its options."""
    return [*columns, *(["supported"] if is_filtered(sampling) else [])]


def child_table(tree: DraftTree, stops: Collection[int]) -> torch.Tensor:
    """Tokens of each node's children in the draft's order, int64 [N, K], and -1 where there are no
    more. A node with a stop token has none."""
    token_C, parent_C = tree.token_N[1:], tree.parent_N[1:]
    behind_end_C = torch.zeros_like(parent_C, dtype=torch.bool)
    for stop in stops:  # they are few, and a tensor of them would be waited for
        behind_end_C |= (tree.token_N[parent_C] == stop) & (parent_C > 0)
    rank_C = (parent_C[:, None] == parent_C).tril(-1).sum(1)  # among its siblings
    child_NK = token_C.new_full((tree.size, tree.max_children or tree.size), -1)
    child_NK[parent_C, rank_C] = token_C.masked_fill(behind_end_C, -1)
    return child_NK

"""A draft tree with the target's answers: all that a rule sees of a round.

Every number that a rule has named is computed for all nodes at once, in one pass over the target's
rows and one transfer to the host, on every device alike. A rule then reads plain Python numbers.

Random numbers belong to the answer, not to the round: row s of a round's block is for the token
that a node at depth s emits. So the same token is drawn at the same place of an answer, whatever
the tree, the drafter and the rule are.

Axes: N nodes, C drafts, K children of a node, V vocabulary, S depths.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.columns import COLUMNS, Rows
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.tree import DraftTree

if TYPE_CHECKING:
    from eagle_fsd.decoding.rule import Guard

# draw(prob_NV, draft_prob_NV, child_NK, uniform_N3) -> exact_token_N; see rule.Rule.draw
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
        columns: names in COLUMNS that may be asked for; asking for another is a KeyError.
        draw: None, or how the exact token is drawn with the help of sampled drafts.
        guards: predicates that narrow `options`.
        stop_token_ids: a node with one of these is a leaf: drafts behind an end are no gain.
        answer: the answer's tokens so far, the root the last.

    Attributes:
        tokens, parents, depths, children: of every node; the root is its own parent.
        exact_tokens: of every node, the token that the exact test emits there.
        exact_regrets: their regret, nats; NaN if and only if the node's logits have no largest one.
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
        self.answer, self.sampling, self.greedy = answer, sampling, sampling.temperature == 0
        self._guards, self._stops = guards, frozenset(stop_token_ids)
        self._filtered = sampling.top_k > 0 or sampling.top_p < 1
        uniform_S3 = uniform_S3[: tree.max_depth + 1]
        self._uniforms, self._computed = uniform_S3.tolist(), {}
        rows = Rows(tree, target_logits_NV, sampling)
        exact_N = exact_tokens(rows, uniform_S3, draw, self._stops)
        names = list(dict.fromkeys([*columns, *(["supported"] if self._filtered else [])]))
        regret_N = rows.best_N - rows.target_NV.gather(1, exact_N[:, None])[:, 0]
        values = [tree.token_N, tree.parent_N, exact_N, regret_N]
        values += [COLUMNS[name](rows) for name in names]
        # ids are exact in float64
        table = torch.stack([value_N.double() for value_N in values]).tolist()
        self.tokens, self.parents, self.exact_tokens = (
            [int(value) for value in ids] for ids in table[:3]
        )
        self.exact_regrets = table[3]
        self._values = dict(zip(names, table[4:], strict=True))
        self.children: list[list[int]] = [[] for _ in self.tokens]
        self.depths = [0] * len(self.tokens)
        for node in range(1, len(self.tokens)):
            parent = self.parents[node]
            self.depths[node] = self.depths[parent] + 1
            if parent == 0 or self.tokens[parent] not in self._stops:
                self.children[parent].append(node)

    def value(self, column: str, node: int) -> float:
        """A column's value at a node; a KeyError if the rule and its guards did not name it."""
        return self._values[column][node]

    def hit(self, v: int) -> int | None:
        """The child with the exact token, if there is one."""
        exact = self.exact_tokens[v]
        return next((c for c in self.children[v] if self.tokens[c] == exact), None)

    def ends(self, v: int) -> bool:
        """Whether the exact test ends the answer at v."""
        return self.exact_tokens[v] in self._stops

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
        return self._uniforms[self.depths[v]][column]

    def once_a_round(self, compute: Callable[["VerifiedTree"], Result]) -> Result:
        """compute(self), kept for the round: what a rule knows of the whole tree."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]


def exact_tokens(
    rows: Rows, uniform_S3: torch.Tensor, draw: Draw | None, stops: Collection[int]
) -> torch.Tensor:
    """The token that the exact test emits after every node, int64 [N]: the argmax at temperature 0,
    else a draw from P by the number of the node's depth, or what `draw` makes of the drafts."""
    if rows.sampling.temperature == 0:
        return rows.argmax_N
    uniform_S3 = uniform_S3.to(rows.target_logits_NV.device, non_blocking=True)
    uniform_N3 = uniform_S3[rows.tree.depth_N]
    if draw is None:
        return inverse_cdf(rows.prob_NV, uniform_N3[:, 0])
    children_NK = child_table(rows.tree, stops)
    return draw(rows.prob_NV, rows.draft_distribution_NV, children_NK, uniform_N3)


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

"""The seam of acceptance: what a rule and a guard are. The rules themselves are in eagle_fsd/rules.

Both are frozen dataclasses: their fields are their parameters, the first of them the value in an
arm's text (`fsd:0.3`). What they remember of an answer is handed in and out.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.verified import Draw, Law, VerifiedTree

Path = list[int]  # node indices from the root down; the root is always on it
State = Any  # a rule's own; the loop only keeps it


class Rule:
    """Decides which path of a verified tree is kept; the drawn token of its last node follows it.

    Attributes:
        columns: names in COLUMNS that it asks for.
        ahead: those that it asks for at nodes that it may not visit, computed for all parents at
            once.
        divergence_column: the column that is its D; None for a rule without one.
        whole_tree: above temperature 0 it draws from a distribution that counts on all drafts, so
            that no guard may leave out any.
        law: None, or a function that changes the distribution of the emitted token itself:
            law(prob_MV, draft_prob_MV, is_child_MV) -> [M, V], of both distributions after the
            sampling filters (the draft's NaN where it has none) and a mask of the drafted tokens.
            y, drawn from it by x's uniform, takes x's place.
        draw: None, or a function that draws x itself, with the help of drafts that were sampled;
            see verified.Draw. The drafter must sample.
        takes_chances: at temperature 0 too the path depends on a draw.
        reads_tv: above temperature 0 it goes by its own TV, so that no guard may hide that.
        hides_tv: above temperature 0 it does not know its own TV.
        exact: the value of its first field at which it is exact; an infinite one: at no value, but
            the further towards it the nearer; NaN: at none, nor towards one.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    ahead: ClassVar[tuple[str, ...]] = ()
    divergence_column: ClassVar[str | None] = None
    whole_tree: ClassVar[bool] = False
    law: ClassVar[Law | None] = None
    draw: ClassVar[Draw | None] = None
    takes_chances: ClassVar[bool] = False
    reads_tv: ClassVar[bool] = False
    hides_tv: ClassVar[bool] = False
    exact: ClassVar[float] = 0.0

    def __post_init__(self):
        """Refuse, by a BadInput, fields that have no meaning."""

    def check(self, sampling: SamplingConfig, draft_vocab_size: int | None) -> None:
        """Refuse, by a BadInput, what has no meaning together; draft_vocab_size is that of a
        drafter with a reduced vocabulary."""

    def start(self) -> State:
        """What the rule knows before an answer's first round."""
        return None

    def now(self, state: State) -> "Rule":
        """The rule of this round, for one that adapts; else itself."""
        return self

    def choose(self, tree: VerifiedTree, state: State) -> Path:
        """The path that this round keeps, unless a guard cuts it."""
        path, child = [0], self.step(tree, 0)
        while child is not None:
            path.append(child)
            child = self.step(tree, child)
        return path

    def after(self, tree: VerifiedTree, path: Path, state: State) -> State:
        """What the rule knows after a round that has kept this path; here, no more than before."""
        return state

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        """The child that is taken at v; None: the drawn token ends the round.

        It must not read x below v: that would bias the distribution of the text.
        """
        return tree.hit(v)

    def tv(self, tree: VerifiedTree, v: int) -> float:
        """1/2 sum |emitted distribution - P| at a node of the path with children; NaN: unknown.

        At temperature 0 it is asked only of rules that take chances: else it is 0 or 1.
        """
        return float("nan")


class Guard:
    """Goes with any rule: leaves out options, or cuts the finished path.

    Attributes:
        columns: as a rule's.
        allows: None, or allows(tree, child): a draft may be taken although x is another token.
        cut: None, or cut(tree, path, state): the path up to where the guard ends it, and on as
            `exact` goes.
        hides_tv: what it does depends on x or on the path, so that the rule's own TV is not what is
            emitted with it.
        reads_x: `allows` asks what x is: of nodes that are only looked ahead at, at temperature 0
            alone, since it would bias the text.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    allows: ClassVar[Callable[[VerifiedTree, int], bool] | None] = None
    cut: ClassVar[Callable[[VerifiedTree, Path, State], Path] | None] = None
    hides_tv: ClassVar[bool] = False
    reads_x: ClassVar[bool] = False

    def start(self) -> State:
        return None

    def after(self, tree: VerifiedTree, path: Path, state: State) -> State:
        """See Rule.after: of the path that all guards have left."""
        return state

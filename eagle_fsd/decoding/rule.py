"""The seam of acceptance: what a rule and a guard are. The rules themselves are in eagle_fsd/rules.

Both are frozen dataclasses: their fields are their parameters, the first of them the value in an
arm's text (`fsd:0.3`). What a rule remembers of an answer is handed in and out.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.verified import Draw, VerifiedTree

if TYPE_CHECKING:
    from eagle_fsd.decoding.acceptance import Acceptance

Path = list[int]  # node indices from the root down; the root is always on it
State = Any  # a rule's own; the loop only keeps it


class Rule:
    """Chooses the accepted path of a verified tree; the exact token of its last node follows it.

    By itself this is the exact rule.

    Attributes:
        columns: names in PLACES or DRAFTS (columns.py) that it asks for.
        draw: None, or a function that draws the exact token with the help of drafts that were
            sampled: draw(prob_MV, draft_prob_MV, child_MK, uniform_M3) -> [M], of both
            distributions after the sampling filters (the drafter's NaN where it has none), the
            tokens of the children in the order in which they were drawn (-1: no more), and the
            random numbers of the token. The drafter must sample.
        takes_chances: at temperature 0 too the accepted path depends on a draw.
        exact: the value of its first field at which it is exact. Infinite: at no finite value, but
            the further towards it the nearer. NaN: at none, nor towards one.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    draw: ClassVar[Draw | None] = None
    takes_chances: ClassVar[bool] = False
    exact: ClassVar[float] = 0.0

    def __post_init__(self):
        """Refuse, by a BadInput, fields that have no meaning."""

    def check(
        self, sampling: SamplingConfig, guards: Sequence["Guard"], draft_vocab_size: int | None
    ) -> None:
        """Refuse, by a BadInput, what has no meaning together; draft_vocab_size is that of a
        drafter with a reduced vocabulary, None of any other."""

    def start(self) -> State:
        """What the rule knows before an answer's first round."""
        return None

    def this_round(self, state: State) -> tuple["Rule", float | None]:
        """The rule of this round and the parameter that was set for it, of a rule that adapts; by
        default the rule itself, and None."""
        return self, None

    def choose(self, tree: VerifiedTree, state: State) -> Path:
        """The accepted path of this round."""
        path, child = [0], self.step(tree, 0)
        while child is not None:
            path.append(child)
            child = self.step(tree, child)
        return path

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        """The child that is taken at v; None: the exact token ends the round.

        It must not read exact tokens below v: that would bias the distribution of the text.
        """
        return tree.hit(v)

    def after(self, tree: VerifiedTree, accepted: "Acceptance", state: State) -> State:
        """What the rule knows after a round; by default no more than before."""
        return state

    def tv(self, tree: VerifiedTree, v: int) -> float:
        """1/2 sum |emitted distribution - P| at a node with children on the accepted path; NaN if
        unknown.

        At temperature 0 it is asked only of rules that take chances: else it is 0 or 1.
        """
        return float("nan")


class Guard:
    """A predicate on a draft, which goes with any rule: a draft that it does not allow is taken
    only where it is the exact token.

    Attributes:
        columns: as a rule's.
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
        """Whether the draft may be taken although the exact token is another."""
        raise NotImplementedError

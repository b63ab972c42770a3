"""What a rule and a guard are, and what they are together for an answer. The rules themselves are
in eagle_fsd/rules, and registered in rules.RULES.

Axes: M places whose rows are looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch

from eagle_fsd.config import BadInput, SamplingConfig, check_known
from eagle_fsd.decoding.columns import DRAFTS, PLACES, Rows
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.decoding.sampling import inverse_cdf
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.decoding.verified import VerifiedTree

Path = list[int]  # node indices from the root down; the root is always on it


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
        for name, value in list(vars(self).items())[:1]:
            if isinstance(value, float | int) and not low <= value <= high:
                raise BadInput(f"{name} must be {low:g} to {high:g}, got {value}")

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
        unknown, which at temperature 0 says that the rule draws nothing: the token is fuzzy, and
        TV is 1, or it is not, and TV is 0."""
        return math.nan


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


@dataclass(frozen=True)
class Policy:
    rule: Rule
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    guards: tuple[Guard, ...] = ()

    def check(self, drafter: Drafter) -> None:
        """Refuse a rule that has no meaning with the sampling, the guards or the drafter, in whose
        place its settings may stand."""
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
        for name in names:
            check_known("column", name, PLACES | DRAFTS)
        return list(dict.fromkeys(names))

    @cached_property
    def divergence(self) -> str | None:
        """The one that is recorded: the first that the rule or a guard reads."""
        return next((name for name in self.columns if name in DIVERGENCES), None)

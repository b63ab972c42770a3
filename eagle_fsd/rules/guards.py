"""Guards: limits on what any rule may do, as further fields of its text (`fsd:0.4,cap=2`).

cap     a draft whose regret is above this is no option, nats
floor   a draft whose raw target probability is below this is no option
budget  nats of regret that an answer's fuzzy tokens may cost in all; the path ends before the
        fuzzy step that would exceed it
"""

from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.rule import Guard, Path
from eagle_fsd.decoding.verified import VerifiedTree


@dataclass(frozen=True)
class RegretGuard(Guard):
    columns: ClassVar[tuple[str, ...]] = ("regret",)
    nats: float

    def __post_init__(self):
        if not self.nats >= 0:
            name = type(self).__name__.lower()
            raise BadInput(f"{name} must be 0 nats or above, got {self.nats}")


class Cap(RegretGuard):
    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.of("regret", child) <= self.nats


@dataclass(frozen=True)
class Floor(Guard):
    columns: ClassVar[tuple[str, ...]] = ("raw_prob",)
    prob: float

    def __post_init__(self):
        if not 0 <= self.prob <= 1:
            raise BadInput(f"floor is a probability, 0 to 1; got {self.prob}")

    def allows(self, tree: VerifiedTree, child: int) -> bool:
        return tree.of("raw_prob", child) >= self.prob


class Budget(RegretGuard):
    """Its state: nats spent so far."""

    def start(self) -> float:
        return 0.0

    def cut(self, tree: VerifiedTree, path: Path, state: float) -> tuple[Path, float]:
        for place, child in enumerate(path[1:]):
            if tree.tokens[child] != tree.x(path[place]):
                cost = tree.of("regret", child)
                if state + cost > self.nats:
                    return path[: place + 1], state
                state += cost
        return path, state


GUARDS: dict[str, type[Guard]] = {"cap": Cap, "floor": Floor, "budget": Budget}

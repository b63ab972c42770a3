"""Controls: what a rule has to beat at the same speed.

random      as exact, but if x is no child take a drafted child with probability r, whatever D
accept-all  as exact, but if x is no child always take a drafted child
"""

from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.verified import VerifiedTree
from eagle_fsd.rules.children import ChildRule


@dataclass(frozen=True)
class Random(ChildRule):
    """Chance in the place of a judgement.

    Attributes:
        rate: r, the probability of taking a child; 0 is exact, 1 accepts all.
        child: see fsd.
    """

    takes_chances: ClassVar[bool] = True
    rate: float = 0.05
    child: str = "draft"

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.rate <= 1:
            raise BadInput(f"the rate of rule 'random' is a probability, 0 to 1; got {self.rate}")

    def take(self, tree: VerifiedTree, v: int) -> float:
        return self.rate


@dataclass(frozen=True)
class AcceptAll(ChildRule):
    """Every round goes down to a leaf: the loose end of all rules.

    Attributes:
        child: see fsd.
    """

    child: str = "draft"

    def take(self, tree: VerifiedTree, v: int) -> float:
        return 1.0

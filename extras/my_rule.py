r"""A skeleton for a rule of your own: copy this file, write your test into `taken`, name it below,
and name your file in the first line. The other lines answer, draw, and compare at the same gain:

    P="--plugin extras/my_rule.py"
    .venv/bin/python evaluate/mt_bench.py $P --output runs/my_rule \
        --arms plain exact my_rule:{0.2,0.5,1} path:{0.5,0.9,2} random:{0.1,0.2,0.3}
    .venv/bin/python evaluate/report.py $P runs/my_rule --output runs/my_rule_report
    .venv/bin/python extras/rule_front.py $P runs/my_rule path

Of one value there is no line in the plot and no gain to compare at, so give three or more. `path`
is the rule to beat and `random` the control. These arms draft by the head alone; the README's
figures are of `@hybrid` (my_rule:0.5@hybrid, beside exact@hybrid). Ask 80 questions to tell rules
apart (--questions 80 --quality_only). What a rule may ask of a tree: docs/extend.md.
"""

from dataclasses import dataclass
from typing import ClassVar

from eagle_fsd.decoding.verified import Rule, VerifiedTree
from eagle_fsd.rules import RULES


@dataclass(frozen=True)
class MyRule(Rule):
    """As exact; but where the exact token was not drafted, the draft of least regret, if its regret
    is below a `share` of the entropy of the target's distribution (both in nats): many tokens are
    about as good where that is large. 0 is exact."""

    columns: ClassVar[tuple[str, ...]] = ("regret", "entropy", "prob")
    share: float = 0.5

    def step(self, tree: VerifiedTree, v: int) -> int | None:
        hit = tree.hit(v)
        return self.taken(tree, v, tree.options(v)) if hit is None else hit

    def taken(self, tree: VerifiedTree, v: int, drafts: list[int]) -> int | None:
        best = min(drafts, key=lambda c: tree.value("regret", c), default=None)
        if best is None:
            return None
        limit = self.share * tree.value("entropy", v)
        return best if tree.value("regret", best) < limit else None

    def tv(self, tree: VerifiedTree, v: int) -> float:
        """Above temperature 0: the draft gets all of P that was not drafted. Without this method
        the TV of the rule is unknown there, and the plot lacks its arms."""
        known = self.taken(tree, v, tree.allowed(v))
        return 0.0 if known is None else tree.replaceable_prob(v)


RULES["my_rule"] = MyRule

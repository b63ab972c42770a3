"""Acceptance rules, a file a family; a new one is a class and an entry in RULES."""

from eagle_fsd.decoding.rule import Rule
from eagle_fsd.rules.children import AcceptAll, Random
from eagle_fsd.rules.fsd import Exact, Fsd, FsdPaper
from eagle_fsd.rules.price import PathRule, Ratio

RULES: dict[str, type[Rule]] = {
    "exact": Exact,
    "fsd": Fsd,
    "fsd-paper": FsdPaper,
    "ratio": Ratio,
    "path": PathRule,
    "random": Random,
    "accept-all": AcceptAll,
}

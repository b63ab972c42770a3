"""Acceptance rules, a file a family; a new one is a class and an entry in RULES. Rivals from other
papers, and one that holds a cost, are plug-ins: extras/rivals.py and extras/hold.py."""

from eagle_fsd.decoding.verified import Rule
from eagle_fsd.rules.fsd import Exact, Fsd, FsdPaper, Random
from eagle_fsd.rules.price import PathRule
from eagle_fsd.rules.rejection import Rejection
from eagle_fsd.rules.thresholds import Ratio, Relaxed, Typical

RULES: dict[str, type[Rule]] = {
    "exact": Exact,  # the drawn token, whatever was drafted: lossless
    "fsd": Fsd,  # another draft where the divergence is small
    "fsd-paper": FsdPaper,  # the same, asked before the drawn token
    "ratio": Ratio,  # another draft whose regret is small
    "path": PathRule,  # the path of the whole tree that is worth its regret
    # rivals; docs/rules.md has a formula and a source for each
    "typical": Typical,
    "relaxed": Relaxed,
    "rejection": Rejection,  # of sampled drafts, by P / Q: lossless in distribution
    "random": Random,  # control: another draft by chance
}

"""A fixed acceptance pattern in the place of a rule's own decisions: engine time, no quality.

Random weights accept what chance gives. So that they commit what a trained head would, the rule
does all its work, and its time counts; then a path of the length that the pattern says is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.rule import Path, Rule, State
from eagle_fsd.decoding.verified import VerifiedTree


@dataclass(frozen=True)
class Pattern(Rule):
    """Accepts drafts as the pattern says, round by round and from its start again, clipped to the
    tree's depth; the rule's work is done for nothing."""

    rule: Rule
    accepted: tuple[int, ...]

    # what accept() asks of a rule; divergence, law and chances are not asked of a pattern
    columns = property(lambda self: self.rule.columns)
    ahead = property(lambda self: self.rule.ahead)

    def check(self, sampling: SamplingConfig, draft_vocab_size: int | None) -> None:
        self.rule.check(sampling, draft_vocab_size)

    def start(self) -> State:
        return 0, self.rule.start()

    def choose(self, tree: VerifiedTree, state: State) -> tuple[Path, State]:
        rounds, of_rule = state
        _, of_rule = self.rule.choose(tree, of_rule)
        count = self.accepted[rounds % len(self.accepted)]
        return pattern_path(tree.parents, tree.depths, count), (rounds + 1, of_rule)

    def tv(self, tree: VerifiedTree, v: int) -> float:
        return 0.0


def pattern_path(parents: Sequence[int], depths: Sequence[int], accepted: int) -> Path:
    """The first `accepted` drafts of the path to the first of the deepest nodes, after the root.

    Example: parents 0 0 0 2 3, depths 0 1 1 2 3 and 2 accepted drafts give [0, 2, 3].
    """
    path = [max(range(len(depths)), key=depths.__getitem__)]
    while path[-1] != 0:
        path.append(parents[path[-1]])
    return path[::-1][: accepted + 1]

"""Rounds of the decoding loop in which a pattern says how many drafts are accepted.

The drafter proposes, the target verifies and the rule accepts as in decode.py, and all of it counts
as time. Then the rule's path is replaced by the pattern's, so that random weights commit what a
trained head would. The budget only has to be long enough (tokens_needed).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from eagle_fsd.decoding.accept import Acceptance, accept
from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import DecodeConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.speed.clock import ROUND_PHASES, PhaseClock, synchronized_time


def pattern_path(parents: Sequence[int], depths: Sequence[int], accepted: int) -> list[int]:
    """The first `accepted` drafts of the path to the deepest node, after the root.

    Ends at that node if the tree is not as deep; of equally deep nodes the first counts.

    Example: parents 0 0 0 2 3, depths 0 1 1 2 3 and 2 accepted drafts give [0, 2, 3].
    """
    path = [max(range(len(depths)), key=lambda node: (depths[node], -node))]
    while path[-1] != 0:
        path.append(parents[path[-1]])
    return path[::-1][: accepted + 1]


def warm_up_rounds(pattern: Sequence[int]) -> int:
    """Rounds before the clock starts: the drafter's prefill, then every length of the pattern."""
    return len(pattern) + 1


def tokens_needed(pattern: Sequence[int], rounds: int, *, tree_depth: int) -> int:
    """Most tokens that warm-up and `rounds` rounds commit, with the one after the prompt."""
    longest = min(max(pattern), tree_depth) + 1
    return 1 + longest * (warm_up_rounds(pattern) + rounds)


@dataclass(frozen=True)
class RoundTimes:
    """What `rounds` rounds took.

    Attributes:
        rounds: how many were measured.
        width: nodes of the last tree, the root included.
        accepted: drafts accepted in each.
        context: mean rows in the target's cache at a verification.
        seconds: of all rounds, without the replacement of paths.
        phase_seconds: the same by phase of a round; empty without a clock.
    """

    rounds: int
    width: int
    accepted: list[int]
    context: float
    seconds: float
    phase_seconds: dict[str, float]

    @property
    def tokens_per_round(self) -> float:
        return sum(self.accepted) / self.rounds + 1


@dataclass(frozen=True)
class PatternLoop:
    """Decoding one prompt under a fixed acceptance pattern.

    Attributes:
        prompt: token ids.
        config: the rule whose time counts, and the budget.
        pattern: accepted drafts of each round, in turn; clipped to the tree.
    """

    target: Target
    drafter: Drafter
    prompt: list[int]
    config: DecodeConfig
    pattern: Sequence[int]


class _PatternAcceptor:
    """Accepts by the rule, then takes the pattern's path.

    Attributes:
        width: nodes of the last tree.
        seconds: spent on replacing paths, the only work here that decoding has not.
    """

    def __init__(self, config: DecodeConfig, pattern: Sequence[int]):
        self.width, self.seconds = 0, 0.0
        self._config = config
        self._pattern = cycle(pattern)

    def __call__(
        self, tree: DraftTree, logits_NV: torch.Tensor, uniform_S3: torch.Tensor
    ) -> Acceptance:
        """The pattern's path and its tokens, the rule's last token after them; what else an
        Acceptance says is still about the rule's path."""
        rule, sampling = self._config.accept, self._config.sampling
        accepted = accept(tree, logits_NV, uniform_S3, config=rule, sampling=sampling)
        self.width = tree.size
        began = time.perf_counter()  # the rule has just waited for the device
        table_N3 = torch.stack([tree.parent_N, tree.depth_N, tree.token_N], dim=1).tolist()
        parents, depths, tokens = zip(*table_N3, strict=True)
        path = pattern_path(parents, depths, next(self._pattern))
        emitted = [*(tokens[node] for node in path[1:]), accepted.tokens[-1]]
        self.seconds += time.perf_counter() - began
        return replace(accepted, path=path, tokens=emitted)


def time_rounds(loop: PatternLoop, rounds: int, *, warm_up: int, clocked: bool) -> RoundTimes:
    """Start the loop, run its rounds and take their time, with a clock by phase or without.

    The clock waits for the device at every phase; on an accelerator only a run without it shows
    what a round takes.
    """
    target, device = loop.target, loop.target.device
    clock = PhaseClock(device) if clocked else None
    acceptor = _PatternAcceptor(loop.config, loop.pattern)
    steps = decode_rounds(
        target, loop.drafter, loop.prompt, loop.config, acceptor=acceptor, clock=clock
    )
    for _ in range(1 + warm_up):  # prefill is a step too
        next(steps)
    acceptor.seconds = 0.0
    if clock:
        clock.restart()
    began = synchronized_time(device)
    accepted, rows = [], 0
    for _ in range(rounds):
        rows += target.cache_length
        accepted.append(next(steps).acceptance.accepted_drafts)
    seconds = synchronized_time(device) - began - acceptor.seconds
    phases: dict[str, float] = {}
    if clock:
        clock.lap("host")
        clock.seconds["accept"] -= acceptor.seconds
        phases = {phase: clock.seconds[phase] for phase in ROUND_PHASES}
    return RoundTimes(rounds, acceptor.width, accepted, rows / rounds, seconds, phases)

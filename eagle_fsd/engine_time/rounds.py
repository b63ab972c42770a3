"""Rounds of the decoding loop in which a pattern says how many drafts are accepted.

The drafter proposes, the target verifies and the rule accepts as in decode.py, and all of it counts
as time. Then the rule's path is replaced by the pattern's, so that random weights commit what a
trained head would. Stop tokens, strings and budgets have no part here.

Axes: L prompt tokens, N tree nodes, A accepted path with its root, F features.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch

from eagle_fsd.accept import Acceptance, accept, uniforms
from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decode import on_device
from eagle_fsd.drafters import Drafter
from eagle_fsd.target import Target
from eagle_fsd.timing import PhaseClock, synchronized_time
from eagle_fsd.tree import DraftTree

ROUND_PHASES = ("propose", "verify", "accept", "commit", "host")


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
        phase_seconds: the same by phase of ROUND_PHASES; empty without a clock.
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


class PatternLoop:
    """One sequence under a fixed acceptance pattern.

    Attributes:
        width: nodes of the last tree.
        pattern_seconds: spent on replacing paths, the only work here that decoding has not.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        prompt_L: torch.Tensor,
        *,
        accept: AcceptConfig,
        sampling: SamplingConfig,
        pattern: Sequence[int],
        new_tokens: int,
    ):
        self.target, self.drafter = target, drafter
        self.accept, self.sampling = accept, sampling
        self.width, self.pattern_seconds = 0, 0.0
        self._pattern = cycle(pattern)
        self._generator = torch.Generator(target.device).manual_seed(0)
        capacity = prompt_L.shape[0] + new_tokens
        target.start(capacity + drafter.max_nodes)
        drafter.reset(capacity)
        logits_V, features_LF = target.prefill(prompt_L)
        drafter.observe(features_LF, torch.cat([prompt_L[1:], logits_V.argmax()[None]]))

    def step(self, lap: Callable[[str], None]) -> int:
        """One round; returns the accepted drafts."""
        lap("host")
        tree = self.drafter.propose()
        lap("propose")
        logits_NV, features_NF = self.target.verify(tree)
        lap("verify")
        uniform_S3 = uniforms(tree.max_depth, self._generator)
        accepted = accept(tree, logits_NV, uniform_S3, config=self.accept, sampling=self.sampling)
        lap("accept")
        path, tokens = self._replaced(tree, accepted)
        lap("pattern")
        path_A, token_A = on_device([path, tokens], self.target.device)
        self.target.commit(path_A)
        self.drafter.observe(features_NF[path_A], token_A)
        lap("commit")
        self.width = tree.size
        return len(path) - 1

    def _replaced(self, tree: DraftTree, accepted: Acceptance) -> tuple[list[int], list[int]]:
        """The pattern's path and its tokens; the token after it is the rule's last one.

        The rule has just waited for the device, so the host's clock sees all of this.
        """
        began = time.perf_counter()
        table_N3 = torch.stack([tree.parent_N, tree.depth_N, tree.token_N], dim=1).tolist()
        parents, depths, tokens = zip(*table_N3, strict=True)
        path = pattern_path(parents, depths, next(self._pattern))
        emitted = [*(tokens[node] for node in path[1:]), accepted.tokens[-1]]
        self.pattern_seconds += time.perf_counter() - began
        return path, emitted


@torch.inference_mode()
def time_rounds(loop: PatternLoop, rounds: int, *, warm_up: int, clocked: bool) -> RoundTimes:
    """Run a fresh loop's rounds and take their time, with a clock by phase or without.

    The clock waits for the device at every phase; on an accelerator only a run without it shows
    what a round takes.
    """
    device = loop.target.device
    for _ in range(warm_up):
        loop.step(_no_lap)
    loop.pattern_seconds = 0.0
    began = synchronized_time(device)
    clock = PhaseClock(device) if clocked else None
    if clock:
        clock.seconds["pattern"] = 0.0
    accepted, rows = [], 0
    for _ in range(rounds):
        rows += loop.target.cache_length
        accepted.append(loop.step(clock.lap if clock else _no_lap))
    if clock:
        clock.lap("host")
    seconds = synchronized_time(device) - began - loop.pattern_seconds
    phases = {phase: clock.seconds[phase] for phase in ROUND_PHASES} if clock else {}
    return RoundTimes(rounds, loop.width, accepted, rows / rounds, seconds, phases)


def _no_lap(phase: str) -> None:
    """Nobody measures."""

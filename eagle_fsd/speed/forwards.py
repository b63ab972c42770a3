"""Single forwards, measured in turn in one process: what a round is made of.

    stock          the stock transformers model, one token, DynamicCache
    verify 1       our plain step: the root alone
    verify 8 ...   a tree of so many nodes (binary, random tokens)
    draft 2, 6     a whole draft of so many levels
    draft level    the difference of the two, by the levels between them
    settle         what follows a verification: the exact rule, commit, the drafter told

A verified root is committed outside the time, so the context grows by a token a measurement.

Axes: L context tokens, F features.
"""

from collections.abc import Callable, Hashable, Sequence
from statistics import median
from typing import TypeVar

import torch
from tqdm import tqdm
from transformers import DynamicCache

from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.loop import answer_uniforms
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact
from eagle_fsd.speed.clock import synchronized_time

WIDTHS = (1, 8, 16, 24, 32, 60)
DEPTHS = (2, 6)  # of the two drafts whose difference is the cost of a level
SETTLED = 16  # nodes of the tree that is settled
WARM_UP = 3  # measurements that do not count: compiling, packing, recording, first touches
OBSERVED = 2  # tokens that a drafter takes in before a measured draft, as after a mean round

Item = TypeVar("Item")
Name = TypeVar("Name", bound=Hashable)
Probe = Callable[[], float]
"""Does one thing once; returns its seconds."""


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """The items from another one on every turn, so that none always follows the same one.

    Example: a b c at turn 4 is b c a.
    """
    at = turn % len(items)
    return [*items[at:], *items[:at]]


def in_turn(probes: dict[Name, Probe], repeats: int, *, label: str) -> dict[Name, list[float]]:
    """Seconds of `repeats` measurements of every probe, all in turn, after a warm-up."""
    seconds: dict[Name, list[float]] = {name: [] for name in probes}
    for number in tqdm(range(WARM_UP + repeats), desc=label, leave=False):
        for name in rotated(list(probes), number):
            took = probes[name]()
            if number >= WARM_UP:
                seconds[name].append(took)
    return seconds


def rows_needed(repeats: int) -> int:
    """By how many positions the measurements of a context go beyond it."""
    return (WARM_UP + repeats) * (len(WIDTHS) + 1) + max(WIDTHS)


class ForwardProbes:
    """One sequence in the target, on which single forwards are timed.

    Args:
        model: its sequence is lost.
        context: prompt tokens before the first measurement.
        repeats: measurements of every probe.
    """

    def __init__(self, model: Model, context: Sequence[int], repeats: int):
        self._target, self._drafter = model.target, model.drafter
        self._context_L = torch.tensor(context, device=model.target.device)
        self._runs = WARM_UP + repeats
        self._target.start(len(context) + rows_needed(repeats))
        _, features_LF = self._target.prefill(self._context_L)
        # recorded graphs hand out the same memory again
        self._features_LF = features_LF.clone()

    def _timed(self, work: Callable[[], object]) -> float:
        """The one way to time a piece of work here: the device has finished before and after."""
        began = synchronized_time(self._target.device)
        work()
        return synchronized_time(self._target.device) - began

    def stock(self) -> Probe:
        """One token through the stock model, its logits included; kept with keep_stock."""
        model, context_1L = self._target.model, self._context_L[None]
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(input_ids=context_1L, past_key_values=cache, logits_to_keep=1)
        token_11 = context_1L[:, -1:]

        @torch.inference_mode()
        def step() -> float:
            return self._timed(lambda: model(input_ids=token_11, past_key_values=cache))

        return step

    def verify(self, width: int) -> Probe:
        """Verification of a tree of so many nodes."""
        tree = self._binary_tree(width)
        root_1 = torch.zeros(1, dtype=torch.int64, device=self._target.device)

        def step() -> float:
            seconds = self._timed(lambda: self._target.verify(tree))
            self._target.commit(root_1)
            return seconds

        return step

    def draft(self, depth: int, branch_top_k: int) -> Probe:
        """A whole draft, after the tokens that a mean round commits."""
        pool = TreeConfig(depth, depth, branch_top_k).pool_size
        drafts = min(pool, max(depth, self._drafter.tree_config.num_draft_tokens))
        own = self._told(TreeConfig(drafts, depth, branch_top_k))
        own.propose()

        def step() -> float:
            own.observe(self._features_LF[-OBSERVED:], self._context_L[-OBSERVED:])
            return self._timed(own.propose)

        return step

    def settle(self) -> Probe:
        """The exact rule over a verified tree, the commit of what it accepts, and the drafter's
        part in that."""
        tree, policy = self._binary_tree(SETTLED), Policy(Exact(), SamplingConfig())
        uniform_S3 = answer_uniforms(0, tree.max_depth + 1)
        own = self._told(TreeConfig(1, 1, 1))

        def step() -> float:
            logits_NV, features_NF = self._target.verify(tree)

            def settle() -> None:
                accepted, _ = accept(tree, logits_NV, uniform_S3, policy=policy)
                path_A = torch.tensor(accepted.path[:1], device=logits_NV.device)
                self._target.commit(path_A)
                own.observe(features_NF[path_A], tree.token_N[path_A])

            return self._timed(settle)

        return step

    def _told(self, tree: TreeConfig) -> EagleDrafter:
        """A drafter of the shape that has seen the context."""
        drafter = self._drafter.with_tree(tree)
        drafter.reset(len(self._context_L) + OBSERVED * self._runs)
        drafter.observe(self._features_LF, self._context_L.roll(-1))
        return drafter

    def _binary_tree(self, width: int) -> DraftTree:
        """Nodes in level order, each with up to two children, of random tokens."""
        target = self._target
        generator = torch.Generator().manual_seed(width)
        tokens = torch.randperm(target.vocab_size, generator=generator)[:width].tolist()
        parents = [max(0, node - 1) // 2 for node in range(width)]
        return DraftTree.from_parents(tokens, parents, device=target.device)


def time_forwards(model: Model, context: Sequence[int], repeats: int) -> dict[str, list[float]]:
    """Seconds of every measurement by forward, those of the first column of the table above."""
    probes = ForwardProbes(model, context, repeats)
    named: dict[str, Probe] = {"stock": probes.stock()} if model.target.has_stock else {}
    named |= {f"verify {width}": probes.verify(width) for width in WIDTHS}
    if isinstance(model.drafter, EagleDrafter):
        K = model.drafter.tree_config.branch_top_k
        named |= {f"draft {depth}": probes.draft(depth, K) for depth in DEPTHS}
        named["settle"] = probes.settle()
    seconds = in_turn(named, repeats, label=f"forwards at {len(context)}")
    model.target.close()
    return seconds


def forward_rows(seconds: dict[str, list[float]]) -> list[dict]:
    """Median and least milliseconds of each, and both as a multiple of the first one's.

    A draft level's are of pairs of drafts that were measured in the same turn.
    """
    shallow, deep = (f"draft {depth}" for depth in DEPTHS)
    if deep in seconds:
        levels = max(DEPTHS) - min(DEPTHS)
        pairs = zip(seconds[shallow], seconds[deep], strict=True)
        seconds = seconds | {"draft level": [(long - short) / levels for short, long in pairs]}
    first = next(iter(seconds.values()))
    return [
        {
            "forward": name,
            "median_ms": 1000 * median(times),
            "min_ms": 1000 * min(times),
            "median_vs_first": median(times) / median(first),
            "min_vs_first": min(times) / min(first),
        }
        for name, times in seconds.items()
    ]

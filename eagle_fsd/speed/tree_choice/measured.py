"""Measures the costs of a round (costs.py) through the public calls of target, drafter and rule.

Every repeat measures everything once, in rotated order, so that a noisy moment does not hit one
width only; the median of the repeats counts. An accelerator is synchronised around each part, which
makes the sum of the parts a little more than a round.

Axes: L context, N nodes, P probes, V vocabulary, R draft vocabulary.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from eagle_fsd.api import Model
from eagle_fsd.config import AcceptConfig, BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.accept import accept, uniforms
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.speed.clock import synchronized_time
from eagle_fsd.speed.tree_choice.calibration import TuningConfig
from eagle_fsd.speed.tree_choice.costs import AcceptCosts, Costs

WIDTHS = (1, 4, 8, 12, 16, 24, 32, 48, 60)
BRANCHES = (1, 2, 4, 6, 8, 10)
DEEP = 5  # levels of the deeper of the two trees whose difference is the cost of a level
DRAFTS_ACCEPTED = (0, 4, 8)
WARM_UP = 2  # repeats that do not count: compiling, packing, capturing, first touches
OBSERVED = 2  # tokens that the drafter takes in per measured round

Probe = Callable[[], float]
"""Does one part of a round; returns its seconds."""


def measure_costs(model: Model, tuning: TuningConfig) -> Costs:
    """Milliseconds of the parts that do not depend on the rule.

    Raises:
        BadInput: the target has too few positions to measure in.
    """
    bench = _Bench(model, tuning)
    probes: dict[tuple, Probe] = {}
    for width in WIDTHS:
        probes["verify", width] = partial(bench.verify, bench.comb(width))
    for branch in bench.branches:
        for depth in (1, DEEP):
            probes["propose", branch, depth] = partial(bench.propose, bench.drafter(branch, depth))
    for drafts in DRAFTS_ACCEPTED:
        probes["commit", drafts] = partial(bench.commit, drafts)
    ms, spread = _interleaved(probes, tuning.repeats, "cost of a round's parts")
    first = {k: ms["propose", k, 1] for k in bench.branches}
    return Costs(
        verify={width: ms["verify", width] for width in WIDTHS},
        first_level=first,
        next_level={
            k: max(0.0, ms["propose", k, DEEP] - first[k]) / (DEEP - 1) for k in bench.branches
        },
        commit={drafts: ms["commit", drafts] for drafts in DRAFTS_ACCEPTED},
        spread=spread,
    )


def measure_accept(
    model: Model, config: AcceptConfig, sampling: SamplingConfig, tuning: TuningConfig
) -> AcceptCosts:
    """Milliseconds of the rule, on chains of drafts that are all accepted."""
    probes: dict[object, Probe] = {}
    for drafts in DRAFTS_ACCEPTED:
        chain, logits_NV = _accepted_chain(model, drafts)
        probes[drafts] = partial(_accept_seconds, chain, logits_NV, config, sampling)
    root, logits_1V = _comb(1, model.target.device), logits_NV[:1]
    probes["plain"] = partial(_accept_seconds, root, logits_1V, AcceptConfig("exact"), sampling)
    ms, _ = _interleaved(probes, tuning.repeats, "cost of the rule")
    return AcceptCosts(ms.pop("plain"), ms)


def _interleaved(
    probes: dict[object, Probe], repeats: int, label: str
) -> tuple[dict[object, float], float]:
    """Median milliseconds of each probe, and how much repeats differ (see Costs.spread)."""
    names = list(probes)
    seconds: dict[object, list[float]] = {name: [] for name in names}
    with tqdm(total=(WARM_UP + repeats) * len(names), desc=label, leave=False) as bar:
        for repeat in range(WARM_UP + repeats):
            first = repeat * len(names) // (WARM_UP + repeats)
            for name in names[first:] + names[:first]:
                took = probes[name]()
                if repeat >= WARM_UP:
                    seconds[name].append(took)
                bar.update()
    low_P, middle_P, high_P = np.percentile(list(seconds.values()), (25, 50, 75), axis=1)
    spread = float(np.median((high_P - low_P) / np.maximum(middle_P, 1e-9)))
    return dict(zip(names, (1000 * middle_P).tolist(), strict=True)), spread


class _Bench:
    """One sequence in the target, which grows by a few tokens with every repeat."""

    def __init__(self, model: Model, tuning: TuningConfig):
        target = self._target = model.target
        self._model_drafter: EagleDrafter = model.drafter
        runs = WARM_UP + tuning.repeats
        grown = runs * (len(WIDTHS) + sum(DRAFTS_ACCEPTED) + len(DRAFTS_ACCEPTED))
        room = target.max_positions - grown - max(WIDTHS)
        length = min(tuning.context, room)
        if length < OBSERVED:
            raise BadInput(
                f"the target's {target.max_positions} positions are too few to measure its costs "
                "in: give the size of the tree instead of tuning it"
            )
        text = model.prompt_ids(" ".join(tuning.prompts))
        prompt = (text * (length // len(text) + 1))[:length]
        self._capacity = length + grown + OBSERVED * runs
        self.prompt_L = torch.tensor(prompt, device=target.device)
        target.start(length + grown + max(WIDTHS))
        _, features_LF = target.prefill(self.prompt_L)
        self._features_LF = features_LF.clone()
        self.branches = [k for k in BRANCHES if k <= model.drafter.draft_vocab_size]
        self._committer = self.drafter(1, 1)

    def comb(self, width: int) -> DraftTree:
        return _comb(width, self._target.device)

    def drafter(self, branch: int, depth: int) -> EagleDrafter:
        """A drafter of another shape that has seen the context."""
        pool = TreeConfig(depth, depth, branch).pool_size
        drafts = min(pool, max(depth, 24))
        drafter = self._model_drafter.with_tree(TreeConfig(drafts, depth, branch))
        drafter.reset(self._capacity)
        drafter.observe(self._features_LF[:-1], self.prompt_L[1:])
        drafter.propose()
        return drafter

    def verify(self, tree: DraftTree) -> float:
        device = self._target.device
        began = synchronized_time(device)
        self._target.verify(tree)
        seconds = synchronized_time(device) - began
        self._target.commit(torch.zeros(1, dtype=torch.int64, device=device))
        return seconds

    def propose(self, drafter: EagleDrafter) -> float:
        device = self._target.device
        began = synchronized_time(device)
        drafter.observe(self._features_LF[:OBSERVED], self.prompt_L[:OBSERVED])
        drafter.propose()
        return synchronized_time(device) - began

    def commit(self, drafts: int) -> float:
        device = self._target.device
        _, features_NF = self._target.verify(self.comb(WIDTHS[4]))
        began = synchronized_time(device)
        path_A = torch.tensor(list(range(drafts + 1)), device=device)
        self._target.commit(path_A)
        self._committer.observe(features_NF[path_A], self.prompt_L[: drafts + 1])
        return synchronized_time(device) - began


def _comb(width: int, device: torch.device) -> DraftTree:
    """A tree of one chain of 8 drafts below the root, then of more chains beside it."""
    parents = [0 if node % 8 == 1 else node - 1 for node in range(1, width)]
    tokens = [(7 * node + 3) % 97 for node in range(width)]
    return DraftTree.from_parents(tokens, [0, *parents], device=device)


def _accepted_chain(model: Model, drafts: int) -> tuple[DraftTree, torch.Tensor]:
    """A tree with a chain that the target's logits agree with, and more children of the root."""
    target, draft_token_R = model.target, model.drafter.draft_token_R
    device, size = target.device, DRAFTS_ACCEPTED[-1] + 8
    R, V = model.drafter.draft_vocab_size, target.vocab_size
    generator = torch.Generator(device).manual_seed(0)
    column_N = torch.arange(size, device=device) % R
    token_N = column_N if draft_token_R is None else draft_token_R[column_N]
    node_N = torch.arange(size, device=device)
    parent_N = torch.where((node_N > 0) & (node_N <= drafts), node_N - 1, 0)
    draft_row_N = torch.where(node_N <= drafts, node_N, -1)
    draft_ER = torch.randn(drafts + 1, R, generator=generator, device=device).to(target.dtype)
    logits_NV = torch.randn(size, V, generator=generator, device=device).to(target.dtype)
    if drafts:
        logits_NV[node_N[:drafts], token_N[1 : drafts + 1]] = 30.0
    tree = DraftTree.from_tensors(
        token_N,
        parent_N,
        draft_row_N,
        draft_ER,
        max_depth=max(1, drafts),
        draft_token_R=draft_token_R,
    )
    return tree, logits_NV


def _accept_seconds(
    tree: DraftTree, logits_NV: torch.Tensor, config: AcceptConfig, sampling: SamplingConfig
) -> float:
    device = logits_NV.device
    generator = torch.Generator(device).manual_seed(0)
    began = synchronized_time(device)
    accept(tree, logits_NV, uniforms(tree.max_depth, generator), config=config, sampling=sampling)
    return synchronized_time(device) - began

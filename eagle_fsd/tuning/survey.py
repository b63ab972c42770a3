"""Acceptance statistics: tokens a round of many trees at once, from one decoding.

Calibration prompts are decoded under the rule. In each round one large tree is drafted and
verified, and from it follows what every smaller tree accepts at the same root (nested.py). The path
that is committed is that of one of them, so the roots are those that this one tree visits: its own
figure is that of decoding with it, and the figure of another tree, which would visit others, is an
approximation. Measured with the embedded target in float32 at the roots of 15/4/6 (drafts / depth /
top-k), five trees from 1/1/1 to 59/8/10 against decoding with each: within 4 % under exact, within
10 % under fsd at T 0.4.

Axes: N nodes of a pool of candidates with the root, M nodes that are verified, T trees.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from eagle_fsd.accept import accept, uniforms
from eagle_fsd.api import Model
from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig
from eagle_fsd.decode import check_request
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.sample import draw_and_score
from eagle_fsd.tree import DraftTree
from eagle_fsd.tuning.calibration import TuningConfig
from eagle_fsd.tuning.grid import surveyed_tree
from eagle_fsd.tuning.nested import NestedTrees, accepted_drafts, restrict

VERIFIED_NODES = 128  # of each pool; the smaller trees together hold about as many


@dataclass(frozen=True)
class Survey:
    """What trees accept on the calibration prompts.

    Attributes:
        tokens_per_round: of each tree asked about, the next token included.
        rounds: how many rounds each figure is the mean of.
    """

    tokens_per_round: tuple[float, ...]
    rounds: int

    def __post_init__(self):
        if self.rounds < 1 or not all(1 <= value for value in self.tokens_per_round):
            raise ValueError(f"not a survey: {self.rounds} rounds, {self.tokens_per_round}")


def survey(
    model: Model,
    accept_config: AcceptConfig,
    sampling: SamplingConfig,
    trees: Sequence[TreeConfig],
    tuning: TuningConfig,
    *,
    visiting: TreeConfig,
) -> Survey:
    """Decode the calibration prompts, and count.

    Args:
        model: its drafter must be an EagleDrafter; it is left alone, the target is started anew.
        accept_config, sampling: the rule and its threshold, and the distribution that it draws of.
        trees: the shapes asked about.
        tuning: prompts, budget and seed.
        visiting: the shape that decodes, and so says which roots are visited.

    Raises:
        ValueError: no prompt gave a round: too few positions, or answers that end at once.
    """
    asked = (*trees, visiting)
    drafter = model.drafter.with_tree(surveyed_tree(asked))
    total_T, rounds = np.zeros(len(trees)), 0
    for prompt in tqdm(tuning.prompts, desc="acceptance by tree size", unit="prompt"):
        ids = model.prompt_ids(prompt)
        budget = min(tuning.max_new_tokens, model.target.max_positions - len(ids))
        if budget < 1:
            continue
        answer = _Answer(model, drafter, ids, budget, accept_config, sampling, tuning.seed)
        for accepted_T in answer.rounds(asked):
            total_T += accepted_T[:-1]
            rounds += 1
    if not rounds:
        raise ValueError(
            "no calibration prompt was answered by more than one token within the target's "
            f"{model.target.max_positions} positions: give the size of the tree instead of tuning"
        )
    return Survey(tuple((1 + total_T / rounds).tolist()), rounds)


class _Answer:
    """One calibration prompt, decoded as decode.py does, with a look at all trees in each round."""

    def __init__(
        self,
        model: Model,
        drafter: EagleDrafter,
        prompt: list[int],
        budget: int,
        accept_config: AcceptConfig,
        sampling: SamplingConfig,
        seed: int,
    ):
        self._target, self._drafter = model.target, drafter
        self._prompt = prompt
        self._stop = model.stop(budget)
        self._accept, self._sampling = accept_config, sampling
        self._generator = torch.Generator(model.target.device).manual_seed(seed)

    def rounds(self, trees: Sequence[TreeConfig]) -> Iterator[np.ndarray]:
        """Accepted drafts of every tree in every round, int64 [T]; the last one's are kept."""
        target, drafter = self._target, self._drafter
        answer, finish = self._prefill()
        while finish is None:
            tree, held_TM = self._propose(trees)
            logits_MV, features_MF = target.verify(tree)
            uniform_S3 = uniforms(tree.max_depth, self._generator)
            walk = self._walk(tree, logits_MV, uniform_S3)
            yield accepted_drafts(held_TM, lambda keep_M, walk=walk: walk(keep_M)[0])
            path, tokens = walk(torch.from_numpy(held_TM[-1]))
            path_A = torch.tensor(path, device=target.device)
            token_A = torch.tensor(tokens, device=target.device)
            target.commit(path_A)
            drafter.observe(features_MF[path_A], token_A)
            kept, finish = self._stop.trim(answer, tokens)
            answer = answer + kept

    def _prefill(self) -> tuple[list[int], str | None]:
        target, drafter = self._target, self._drafter
        check_request(target, self._prompt, self._stop)
        capacity = len(self._prompt) + self._stop.max_new_tokens
        target.start(capacity + VERIFIED_NODES)
        drafter.reset(capacity)
        prompt_L = torch.tensor(self._prompt, device=target.device)
        logits_V, features_LF = target.prefill(prompt_L)
        uniform_1 = uniforms(0, self._generator)[:, 0]
        root_1, _ = draw_and_score(logits_V[None], uniform_1, prompt_L[None, :0], self._sampling)
        drafter.observe(features_LF, torch.cat([prompt_L[1:], root_1]))
        return self._stop.trim([], root_1.tolist())

    def _propose(self, trees: Sequence[TreeConfig]) -> tuple[DraftTree, np.ndarray]:
        """The part of the pool that is verified, and what each tree holds of it, bool [T, M]."""
        pool = self._drafter.propose()
        nested = NestedTrees(pool)
        held_TN = nested.held(trees)
        # what some tree holds comes first, then the best of the rest: always the same width
        first_N = np.argsort(~held_TN.any(0)[nested.order_N], kind="stable")
        keep_N = np.zeros(pool.size, dtype=bool)
        keep_N[nested.order_N[first_N][:VERIFIED_NODES]] = True
        return restrict(pool, torch.from_numpy(keep_N)), held_TN[:, keep_N]

    def _walk(self, tree: DraftTree, logits_MV: torch.Tensor, uniform_S3: torch.Tensor):
        """A function from kept nodes, bool [M], to the path (as nodes of M) and the tokens."""

        def walk(keep_M: torch.Tensor) -> tuple[list[int], list[int]]:
            node = keep_M.nonzero()[:, 0]
            accepted = accept(
                restrict(tree, keep_M),
                logits_MV[node.to(logits_MV.device)],
                uniform_S3,
                config=self._accept,
                sampling=self._sampling,
            )
            return node[accepted.path].tolist(), accepted.tokens

        return walk

"""A drafter that grows one of EAGLE-2's dynamic trees a round, with a draft head (eagle.py) or a
whole language model (language_model.py).

Axes: K branch_top_k (the frontier), E expanded nodes, N nodes with the root, P pool of candidates,
T new positions, M positions whose outputs are read, D hidden size, F features, S cache rows, R
draft vocabulary (the target's, or a part of it that the drafter is confined to).
"""

import copy
import math
import sys
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn
from tqdm import tqdm

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.sampling import draw_distinct, no_numbers, uniforms
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import GREEDY, Drafter, DraftTree
from eagle_fsd.drafters.tree_grower import TreeGrower, TreeShape

BLOCK_ROWS = 256  # of a prompt are run at once
# Sets the numbers by which an answer's drafts are drawn apart from those by which it is itself
DRAFTS_SEED = 0x5EED0FD4
# A model is told to be of no use from so many rounds on, at so many tokens a round and below. Of
# random weights it is 1.0 with real vocabularies, of light heads 1.5 and more.
LEAST_ROUNDS, IDLE_YIELD = 32, 1.05


@dataclass
class TreeYield:
    """What the rounds of a model's trees have emitted so far, in all answers and shapes of trees;
    `told`: a line has said that this is hardly more than the target emits alone."""

    rounds: int = 0
    tokens: int = 0
    told: bool = False


class GrowingDrafter(Drafter):
    """Grows one EAGLE-2 tree a round, of the model's most probable tokens.

    If it `samples` they are drawn instead, from its distribution after the answer's temperature,
    top-k and top-p, siblings without replacement; the numbers for that go by seed and round.

    Rows of committed tokens stay in the model's cache, row i at position i; rows of the tree are
    dropped after each round. The last committed row's output is the root's, and behind n of them a
    frontier of level d stands at position n - 1 + d.
    """

    named: ClassVar[str] = "the head"  # in messages
    draft_token_R: torch.Tensor | None

    def __init__(self, target: Target, tree: TreeConfig, *, samples: bool = False):
        self.target, self.samples = target, samples
        self._yield = TreeYield()  # one for all trees of the model
        self.vocab_size = None if self.draft_token_R is None else len(self.draft_token_R)
        self._compiled_step = target.engine.wrap(self.step)
        self._set_tree(tree)

    # --- what a model is ------------------------------------------------------------------------

    def new_cache(self, capacity: int) -> TreeCache: ...

    def hidden(self, features_TF: torch.Tensor) -> torch.Tensor:
        """What the model reads, beside tokens, of the target's features, [T, D]."""
        return features_TF

    def places(self, position_T: torch.Tensor) -> torch.Tensor:
        """What the model reads of positions, [T, ...]."""
        return position_T

    def step(
        self,
        cache: TreeCache,
        hidden_TD: torch.Tensor,
        token_T: torch.Tensor,
        place_T: torch.Tensor,
        row_T: torch.Tensor,
        visible_TS: torch.Tensor | None,
        position_S: torch.Tensor,
        read_M: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward of the model: its outputs [M, D] and their raw logits [M, R]. An engine may
        compile it.

        Args:
            hidden_TD: `hidden` of the features, or outputs of an earlier step for the parents.
            place_T: `places` of the new tokens.
            row_T: the cache rows that they are written to.
            visible_TS: which cache rows each sees; None: all before it, and itself.
            position_S: where those rows stand.
            read_M: which outputs are wanted; None: all.
        """

    # --- a drafter ------------------------------------------------------------------------------

    def _set_tree(self, tree: TreeConfig) -> None:
        R = self.vocab_size or self.target.vocab_size
        if tree.branch_top_k > R:
            raise BadInput(
                f"branch_top_k {tree.branch_top_k} is more than the draft vocabulary {R}"
            )
        self.tree_config = tree
        self.max_nodes = tree.num_draft_tokens + 1
        self.spare_rows = self.max_nodes + tree.num_expanded
        self._shape = TreeShape(tree, self.target.device)

    def with_tree(self, tree: TreeConfig, *, samples: bool = False) -> Self:
        """The same model with trees of another shape; nothing is loaded or packed again."""
        other = copy.copy(self)
        other.samples = samples
        other._set_tree(tree)
        return other

    def begin(self, capacity, first_token, sampling=GREEDY, seed=0) -> Self:
        own = copy.copy(self)
        own._pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        own._proposed: DraftTree | None = None
        own._sampling = sampling
        own._generator = torch.Generator().manual_seed(seed ^ DRAFTS_SEED)
        own.cache = self.new_cache(capacity + self.spare_rows)
        return own

    def observe(self, features_TF, next_tokens, logits_NV=None) -> None:
        token_T = torch.tensor(next_tokens).to(features_TF.device, non_blocking=True)
        self._pending.append((features_TF, token_T))
        if self._proposed is not None:
            self._yield.rounds += 1
            self._yield.tokens += len(next_tokens)

    def close(self) -> None:
        so_far = self._yield
        idle = so_far.rounds >= LEAST_ROUNDS and so_far.tokens <= IDLE_YIELD * so_far.rounds
        if idle and not so_far.told:
            so_far.told = True
            tqdm.write(
                f"eagle_fsd: {so_far.tokens / so_far.rounds:.2f} tokens a round in the first "
                f"{so_far.rounds} rounds: hardly a draft of {self.named} is taken. Was it trained, "
                "and with this target? train/convert_head.py --check looks at heads",
                file=sys.stderr,
            )

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        """Run what was committed since the last round, then grow the tree below the end of it."""
        K, levels = self.tree_config.branch_top_k, self.tree_config.tree_depth
        shape, cache = self._shape, self.cache
        # 1. What was committed since the last round; its last output drafts the root's children. A
        #    prompt runs in blocks: at once, it would need as much memory as the target's prefill.
        features_TF, token_T = self._pending[0]
        if len(self._pending) > 1:  # where nothing was proposed in between
            features_TF, token_T = map(torch.cat, zip(*self._pending, strict=True))
        self._pending.clear()
        for features, token in zip(
            features_TF.split(BLOCK_ROWS), token_T.split(BLOCK_ROWS), strict=True
        ):
            T, stable = len(token), cache.length
            row_T = cache.next_rows(T, token.device)
            step, visible_TS = self.step, None
            if stable > 0:  # else the model's own causal mask does
                step, own_T = self._compiled_step, torch.arange(T, device=token.device)
                visible_TS = self._visible(own_T[:, None] >= own_T)
            hidden_KD, logits_KR = step(
                cache,
                self.hidden(features),
                token,
                self.places(row_T),
                row_T,
                visible_TS,
                torch.arange(stable + T, device=token.device),
                torch.arange(T - 1, T, device=token.device),
            )
            cache.length = cache.committed = stable + T
        # 2. Where the tree's rows stand, level by level.
        base = cache.committed
        position_S = torch.cat([torch.arange(base, device=token_T.device), base + shape.level_E])
        place_L = self.places(position_S[base::K])
        uniform_EK = None
        if self.samples:  # the numbers by which the children of each expanded node are drawn
            uniform_EK = uniforms(self._generator, self.tree_config.num_expanded, K)
            uniform_EK = uniform_EK.to(token_T.device, non_blocking=True)
        # 3. The expansion: each level's best nodes are run, and give the next level's candidates.
        grower = TreeGrower(shape, self.draft_token_R)
        seen_KE = shape.own_KK  # tree rows that a frontier node sees
        for level in range(levels):
            if level > 0:
                token_K, slot_K = grower.frontier()
                if level > 1:  # what its parent saw, and itself
                    seen_KE = torch.cat([seen_KE.index_select(0, slot_K), shape.own_KK], dim=1)
                place_1 = place_L[level - 1 : level]
                hidden_KD, logits_KR = self._compiled_step(
                    cache,
                    hidden_KD.index_select(0, slot_K),
                    token_K,
                    place_1.expand(K, *place_1.shape[1:]),
                    cache.next_rows(K, token_T.device),
                    self._visible(seen_KE),
                    position_S[: base + level * K],
                    None,
                )
                cache.length += K
            drawn_KK = None
            if uniform_EK is not None:
                uniform_KK, uniform_EK = uniform_EK.tensor_split([logits_KR.shape[0]])
                drawn_KK = draw_distinct(logits_KR, uniform_KK, self._sampling)
            score_KK = grower.add_level(logits_KR, drawn_KK)
            # one more level has to be worth its time; on an accelerator it would have to be waited
            # for, so there all levels are drafted
            if shape.least_best is not None and score_KK.amax().item() < shape.least_best:
                break
        # 4. The tree's rows are forgotten; the best candidates are the tree.
        cache.length = base
        tree = grower.finish(token_T[-1:])
        # 5. A NaN is ranked above all numbers. An accelerator is waited for once an answer.
        if self._proposed is None or token_T.device.type == "cpu":
            ranked_by = logits_KR if self.samples else tree.score_N
            if not math.isfinite(ranked_by.amax().item()):
                raise no_numbers("in drafting", self.named)
        self._proposed = tree
        return tree

    def _visible(self, seen_TE: torch.Tensor) -> torch.Tensor | None:
        """Which cache rows positions see: all committed ones, and of those behind them what seen_TE
        says. A position alone sees all of its chain, so only compiled code wants a mask for it."""
        if seen_TE.shape[0] == 1 and not self.target.engine.compiles:
            return None
        return nn.functional.pad(seen_TE, (self.cache.committed, 0), value=True)

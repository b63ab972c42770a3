"""The dynamic tree of EAGLE-2, grown once a round with a model of the drafter's own: the expansion
level by level and the rerank (TreeGrower), then the model's cache and its steps (GrowingDrafter).

The model is a draft head (eagle.py) or a whole language model (language_model.py).

Axes: N nodes with the root, P pool of candidates, K branch_top_k (the frontier), E expanded nodes,
M some nodes, T new positions, D hidden size, F features, S cache rows, R draft vocabulary (the
target's, or a part of it that the drafter is confined to).
Everything stays on the drafter's device; there is no loop over nodes.
"""

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.drafter import GREEDY, Drafter
from eagle_fsd.decoding.engine import CachedSequence
from eagle_fsd.decoding.sampling import draw_distinct
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree

BLOCK_ROWS = 256  # of a prompt are run at once
# Sets the numbers by which an answer's drafts are drawn apart from those by which it is itself
DRAFTS_SEED = 0x5EED0FD4
# Share of drawn drafts that are taken for accepted, each if those drawn before it were not: so far
# a sibling of rank r is worth RANK_WORTH (1 - RANK_WORTH)^r.
RANK_WORTH = 0.7


class TreeGrower:
    """Grows one EAGLE-2 tree level by level, then keeps its best connected part.

    The drafter calls `add_level` with the logits of the nodes it has just run (first the root, then
    each frontier) and runs the returned frontier next, `tree_depth` times in all; `finish` reranks.
    EAGLE-2 (arXiv 2406.16858) section 4: a node's value is the product of draft probabilities along
    its path, here a float32 sum of log-probabilities. For draft_token_R see DraftTree.
    """

    def __init__(self, config: TreeConfig, draft_token_R: torch.Tensor | None = None):
        self.config = config
        self.draft_token_R = draft_token_R
        self.levels = 0
        self._token_P: list[torch.Tensor] = []  # candidates, level by level
        self._score_P: list[torch.Tensor] = []
        self._parent_P: list[torch.Tensor] = []  # pool index of a candidate's parent, -1 = root
        self._expanded_E: list[torch.Tensor] = []  # pool index of each expanded node, -1 = root
        self._logits_ER: list[torch.Tensor] = []

    def add_level(
        self, logits_KR: torch.Tensor, drawn_KK: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the children of the nodes just run.

        Args:
            logits_KR: the drafter's raw logits at the root ([1, R], first call) or at the frontier
                of the last call, in its order ([branch_top_k, R]).
            drawn_KK: columns drawn of each row, int64 [rows, branch_top_k], in the order of the
                draws; None: the most probable. Which of the drawn are in the tree goes by that
                order alone (RANK_WORTH), never by what they are: else those that are would no
                longer be draws, and rule rejection would not be lossless.

        Returns:
            token_K: tokens of the next frontier, the branch_top_k best of the new level.
            slot_K: which row of `logits_KR` is each frontier node's parent.
        """
        K = self.config.branch_top_k
        if drawn_KK is None:
            logp_KR = torch.log_softmax(logits_KR, dim=-1, dtype=torch.float32)
            logp_KK, token_KK = logp_KR.topk(K, dim=-1)
        else:
            rank_K = torch.arange(K, device=logits_KR.device)
            worth_K = math.log(RANK_WORTH) + math.log(1 - RANK_WORTH) * rank_K
            logp_KK, token_KK = worth_K.expand(drawn_KK.shape), drawn_KK
        if self.draft_token_R is not None:
            token_KK = self.draft_token_R[token_KK]
        if self.levels == 0:
            expanded_K = torch.full((1,), -1, device=logits_KR.device)
            score_KK = logp_KK
        else:
            expanded_K, score_K = self._frontier
            score_KK = score_K[:, None] + logp_KK
        first = sum(token.shape[0] for token in self._token_P)
        self._token_P.append(token_KK.flatten())
        self._score_P.append(score_KK.flatten())
        self._parent_P.append(expanded_K.repeat_interleave(K))
        self._expanded_E.append(expanded_K)
        self._logits_ER.append(logits_KR)
        self.levels += 1
        best_K = _best(score_KK.flatten(), K)
        self._frontier = (best_K + first, score_KK.flatten()[best_K])
        return token_KK.flatten()[best_K], best_K // K

    def finish(self, root_token: torch.Tensor) -> DraftTree:
        """The num_draft_tokens best candidates under the root, in level order.

        They are connected: a child's score is at most its parent's, the parent stands earlier in
        the pool, and the sort is stable. (Upstream's top-k over half-precision scores orphans
        nodes.)

        Args:
            root_token: token id of the root, int64 [] or [1].
        """
        token_P, score_P = torch.cat(self._token_P), torch.cat(self._score_P)
        parent_P = torch.cat(self._parent_P)
        expanded_E = torch.cat(self._expanded_E)
        device = token_P.device
        keep_M = _best(score_P, self.config.num_draft_tokens).sort().values
        # one slot more than the pool, so that index -1 (the root) has a place of its own: the last
        node_of_P = torch.zeros(token_P.shape[0] + 1, dtype=torch.int64, device=device)
        node_of_P[keep_M] = torch.arange(1, keep_M.shape[0] + 1, device=device)
        row_of_P = torch.full_like(node_of_P, -1)
        row_of_P[expanded_E] = torch.arange(expanded_E.shape[0], device=device)
        root_1 = torch.full((1,), -1, device=device)
        pool_N = torch.cat([root_1, keep_M])
        return DraftTree(
            torch.cat([root_token.reshape(1).to(device), token_P[keep_M]]),
            node_of_P[torch.cat([root_1, parent_P[keep_M]])],
            row_of_P[pool_N],
            torch.cat(self._logits_ER),
            max_depth=self.levels,
            draft_token_R=self.draft_token_R,
            score_N=torch.cat([score_P.new_zeros(1), score_P[keep_M]]),
            max_children=self.config.branch_top_k,
        )


def _best(score_P: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the `count` largest, ties broken by the lower index (torch.topk promises none)."""
    return score_P.sort(descending=True, stable=True).indices[:count]


class GrowingDrafter(Drafter):
    """Grows one EAGLE-2 tree a round, of the model's most probable tokens.

    If it `samples` they are drawn instead, from its distribution after the answer's temperature,
    top-k and top-p, siblings without replacement; the numbers for that go by seed and round.

    Rows of committed tokens stay in the model's cache ("stable"), row i at position i; rows of the
    tree are dropped after each round. The last stable row's output is the root's, and with n of
    them a frontier of level d stands at position n - 1 + d.

    Attributes:
        draft_token_R: see DraftTree.
    """

    draft_token_R: torch.Tensor | None

    def __init__(self, target: Target, tree: TreeConfig, *, samples: bool = False):
        self.target, self.samples = target, samples
        self.vocab_size = None if self.draft_token_R is None else len(self.draft_token_R)
        self._set_tree(tree)

    @property
    def draft_vocab_size(self) -> int:
        """Number of tokens that can be drafted, R."""
        return self.vocab_size or self.target.vocab_size

    # --- what a model is ------------------------------------------------------------------------

    def new_sequence(self) -> CachedSequence:
        """For the model's cache."""
        raise NotImplementedError

    def hidden(self, features_TF: torch.Tensor) -> torch.Tensor:
        """What the model reads, beside tokens, of the target's features, [T, D]."""
        return features_TF

    def forward(
        self,
        hidden_TD: torch.Tensor,
        token_T: torch.Tensor,
        position_T: torch.Tensor,
        visible_TS: torch.Tensor | None,
        base: int | torch.Tensor,
        width: int,
    ) -> torch.Tensor:
        """One step of the model, [T, D]; its rows are appended to the cache.

        Args:
            hidden_TD: `hidden` of the features, or what an earlier step returned for the parents.
            visible_TS: which cache rows each position sees; None: all before it.
            base, width: from row `base` on, `width` rows at a time stand at one position.
        """
        raise NotImplementedError

    def readout(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Raw logits [T, R] of what `forward` returned."""
        raise NotImplementedError

    # --- a drafter ------------------------------------------------------------------------------

    def _set_tree(self, tree: TreeConfig) -> None:
        if tree.branch_top_k > self.draft_vocab_size:
            raise BadInput(
                f"branch_top_k {tree.branch_top_k} is more than the draft vocabulary "
                f"{self.draft_vocab_size}"
            )
        if tree.num_draft_tokens >= self.target.max_positions:
            raise BadInput(
                f"num_draft_tokens {tree.num_draft_tokens} is beyond the target's "
                f"{self.target.max_positions} positions: lower it"
            )
        self.tree_config = tree
        self.max_nodes = tree.num_draft_tokens + 1
        self._sequence = self.new_sequence()
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def with_tree(self, tree: TreeConfig, *, samples: bool = False) -> Self:
        """The same model growing trees of another shape; nothing is loaded or packed again."""
        other = copy.copy(self)
        other.samples = samples
        other._set_tree(tree)
        return other

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        self._pending, self._sampling = [], sampling
        self._generator = torch.Generator().manual_seed(seed ^ DRAFTS_SEED)
        slots = self.tree_config.tree_depth + 1  # see CachedSequence.draft
        self._sequence.start(capacity + self.max_nodes + self.tree_config.num_expanded + slots)

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        token_T = torch.tensor(next_tokens).to(features_TF.device, non_blocking=True)
        self._pending.append((features_TF, token_T))

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        features_TF, token_T = self._take_pending()
        inputs, config = [features_TF, token_T], self.tree_config
        if self.samples:
            shape = config.num_expanded, config.branch_top_k
            uniform_EK = torch.rand(shape, generator=self._generator)
            inputs.append(uniform_EK.to(token_T.device, non_blocking=True))
        tree = self._sequence.draft(
            self._grow,
            *inputs,
            slots=config.tree_depth + 1,
            rows=config.num_expanded,
            kind=self._sampling if self.samples else None,
        )
        self._sequence.advance(token_T.shape[0])
        self._sequence.cache.length = self._sequence.length
        return tree

    def _take_pending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What was committed since the last round; of much, all but the end has been run.

        A prompt runs in blocks: at once, it would need as much memory as the target's own prefill.
        """
        parts = tuple(zip(*self._pending, strict=True))
        self._pending = []
        features_TF, token_T = (part[0] if len(part) == 1 else torch.cat(part) for part in parts)
        while token_T.shape[0] > BLOCK_ROWS:
            stable = self._sequence.length
            self._step(features_TF[:BLOCK_ROWS], token_T[:BLOCK_ROWS], stable)
            self._sequence.advance(BLOCK_ROWS)
            features_TF, token_T = features_TF[BLOCK_ROWS:], token_T[BLOCK_ROWS:]
        return features_TF, token_T

    def _step(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        stable: int | torch.Tensor,
    ) -> torch.Tensor:
        """Run what is committed, behind `stable` rows, [T, D]."""
        step_T = torch.arange(token_T.shape[0], device=token_T.device)
        fresh = isinstance(stable, int) and stable == 0  # then the model's own causal mask does
        nodes = self.hidden(features_TF), token_T, stable + step_T
        step = partial(self.forward, *nodes, base=stable, width=1)
        return self._sequence.step(step, None if fresh else step_T[:, None] >= step_T, stable)

    def _grow(
        self,
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        count: int | torch.Tensor,
        stable: int | torch.Tensor,
        uniform_EK: torch.Tensor | None = None,
    ) -> DraftTree:
        """Run what was committed since the last round, then grow the tree below the end of it.

        Args:
            features_TF, token_T: what is new, padded where `count` is a tensor.
            count: how many they are; a tensor, where nothing may depend on values on the host.
            stable: rows in the cache before them.
            uniform_EK: by which the children of every expanded node are drawn; None: the best.
        """
        device, K = token_T.device, self.tree_config.branch_top_k
        hidden_TD = self._step(features_TF, token_T, stable)
        if isinstance(count, int):
            hidden_KD, root_1 = hidden_TD[-1:], token_T[-1:]
        else:
            last_1 = (count - 1).reshape(1)
            hidden_KD, root_1 = hidden_TD.index_select(0, last_1), token_T.index_select(0, last_1)
        base = stable + count
        grower = TreeGrower(self.tree_config, self.draft_token_R)
        own_KK = torch.eye(K, dtype=torch.bool, device=device)
        seen_KE = own_KK[:, :0]  # which tree rows, ancestors or itself, a frontier node sees
        for level in range(self.tree_config.tree_depth):
            logits_KR, drawn_KK = self.readout(hidden_KD), None
            if uniform_EK is not None:
                uniform_KK, uniform_EK = uniform_EK.tensor_split([logits_KR.shape[0]])
                drawn_KK = draw_distinct(logits_KR, uniform_KK, self._sampling)
            token_K, slot_K = grower.add_level(logits_KR, drawn_KK)
            if level + 1 == self.tree_config.tree_depth:
                break
            if level:
                seen_KE = seen_KE[slot_K]
            seen_KE = torch.cat([seen_KE, own_KK], dim=1)
            position_K = torch.zeros_like(token_K) + base + level
            nodes = hidden_KD[slot_K], token_K, position_K
            step = partial(self.forward, *nodes, base=base, width=K)
            hidden_KD = self._sequence.step(step, seen_KE, base)
        return grower.finish(root_1)

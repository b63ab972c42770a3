"""Draft trees, what proposes one a round, and the drafter of plain decoding, whose trees are one
node. How EAGLE-2 grows a tree is in drafters/growing.py.

Axes: N nodes with the root, E expanded nodes, V vocabulary, R draft vocabulary (V or a part of it),
T newly committed tokens, F features of the target (Target.feature_layers).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch

from eagle_fsd.config import SamplingConfig

GREEDY = SamplingConfig()


@dataclass(frozen=True)
class DraftTree:
    """A tree of drafted tokens: parents come before their children, node 0 is the root, and
    siblings bear different tokens. Everything is on the target's device; no loop goes over nodes.

    Example, the root "A" with children "B", "C", and "D" below "C":

        node           0  1  2  3
        token_N        A  B  C  D
        parent_N       0  0  0  2      the root is its own parent
        depth_N        0  1  1  2
        draft_row_N    0 -1  1 -1      A and C were expanded by the drafter; B and D were not

    Attributes:
        token_N, parent_N: int64 [N].
        draft_row_N: row of `draft_logits_ER` for each node, int64 [N]; -1 where the drafter has no
            distribution: at leaves, and above drafts that were looked up in the text (E is 0 where
            all were).
        draft_logits_ER: raw logits of the drafter at expanded nodes: row i is the distribution of
            the token AFTER that node, over the draft vocabulary.
        max_depth: no node is deeper; known on the host.
        draft_token_R: the target's id of every draft token, ascending, int64 [R]; None where R is
            V.
        score_N: what nodes were ranked by, float32 [N]: the drafter's log-probability of the path,
            unless drafts were sampled; None where it keeps none.
        max_children: no node has more; None: not known.
        size: N, the root included.
        depth_N: levels below the root, int64 [N].
        ancestor_NN: bool [N, N]; row i marks node i and its ancestors.
    """

    token_N: torch.Tensor
    parent_N: torch.Tensor
    draft_row_N: torch.Tensor
    draft_logits_ER: torch.Tensor
    max_depth: int
    draft_token_R: torch.Tensor | None = None
    score_N: torch.Tensor | None = None
    max_children: int | None = None
    size: int = field(init=False)
    depth_N: torch.Tensor = field(init=False)
    ancestor_NN: torch.Tensor = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "size", self.token_N.shape[0])
        ancestor_NN = torch.eye(self.size, dtype=torch.bool, device=self.token_N.device)
        at_N, known = self.parent_N, 1  # generations that a row marks; those from at_N on are next
        while known <= self.max_depth:
            ancestor_NN = ancestor_NN | ancestor_NN.index_select(0, at_N)
            known *= 2
            if known <= self.max_depth:
                at_N = at_N.index_select(0, at_N)
        object.__setattr__(self, "ancestor_NN", ancestor_NN)
        object.__setattr__(self, "depth_N", ancestor_NN.sum(1) - 1)

    @classmethod
    def from_parents(
        cls, tokens: Sequence[int], parents: Sequence[int], *, device: torch.device | str = "cpu"
    ) -> "DraftTree":
        """A tree without draft distributions; `parents[0]` is 0 and parents come first."""
        assert parents[0] == 0, f"the root is its own parent: {parents!r}"
        depth = [0]
        for node, parent in enumerate(parents[1:], start=1):
            assert 0 <= parent < node, f"parent {parent} of node {node} must come before it"
            depth.append(depth[parent] + 1)
        rows = torch.tensor([list(tokens), list(parents), [-1] * len(tokens)])
        nothing = torch.empty(0, 0, device=device)
        return cls(*rows.to(device, non_blocking=True), nothing, max_depth=max(depth))


class Drafter(Protocol):
    """Sees committed tokens through `observe`, returns the next tree from `propose`.

    Attributes:
        max_nodes: most nodes of a proposed tree, the root included.
        samples: its drafts are drawn from the draft distribution, as rule rejection needs them.
        vocab_size: None where its distributions are over the target's vocabulary; the number of
            tokens where they are over a part of it; 0 where every tree has a part of its own.
        spare_rows: rows that a cache of its own needs beyond `capacity`; 0 where it has none.
    """

    max_nodes: int
    samples: bool = False
    vocab_size: int | None = None
    spare_rows: int = 0

    def begin(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> Self:
        """A drafter for one text, of at most `capacity` tokens, prompt and answer. `observe` gives
        all but the first of them; the last round may observe up to max_nodes more. Drafts that are
        sampled are so by the answer's settings and by numbers of its seed other than those of
        loop.answer_uniforms."""
        return copy.copy(self)

    def observe(
        self,
        features_TF: torch.Tensor,
        next_tokens: Sequence[int],
        logits_NV: torch.Tensor | None = None,
    ) -> None:
        """Take in what a round emitted, T tokens, with the features of the tokens before them; and
        the target's logits after all nodes of its tree, accepted or not.
        Example: after prefill of t0 t1 t2 and the root t3, features are f0 f1 f2 and next tokens
        t1 t2 t3, the last of them always the coming root."""

    def propose(self) -> DraftTree:
        """The tree below the root, the last token observed."""

    def close(self) -> None:
        """The answer has ended, or is abandoned."""


class RootDrafter(Drafter):
    """Proposes nothing, so that every round emits one token, drawn by the target."""

    max_nodes = 1

    def observe(self, features_TF, next_tokens, logits_NV=None) -> None:
        self._root, self._device = next_tokens[-1], features_TF.device

    def propose(self) -> DraftTree:
        return DraftTree.from_parents([self._root], [0], device=self._device)

"""Drafters: what proposes the tree; and the one of plain decoding, whose trees are one node."""

from collections.abc import Sequence
from typing import Protocol

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.tree import DraftTree

GREEDY = SamplingConfig()


class Drafter(Protocol):
    """Sees committed tokens through `observe`, returns the next tree from `propose`.

    Attributes:
        max_nodes: most nodes of a proposed tree, the root included.
        samples: its drafts are drawn from the draft distribution, as rule rejection needs them.
        vocab_size: tokens that its distributions are over, where those are a part of the target's
            vocabulary; 0 where every tree has its own. None: all.

    Axes: T newly committed tokens, F features of the target (see Target.feature_layers), N nodes,
    V vocabulary.
    """

    max_nodes: int
    samples: bool = False
    vocab_size: int | None = None

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        """Begin a new sequence of at most `capacity` tokens, of which `observe` gives all but the
        first. Drafts that are sampled are so by the answer's settings and its seed."""

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        """Take in committed tokens, T of them. Example: after prefill of t0 t1 t2 and the root t3,
        features are f0 f1 f2 and next tokens t1 t2 t3, the last of them always the coming root."""

    def propose(self) -> DraftTree:
        """The tree below the root, the last token observed."""

    def learn(self, logits_NV: torch.Tensor) -> None:
        """Called after every round, before its tokens are observed, with the target's raw logits
        after all nodes of the last tree, accepted or not. Most drafters make no use of them."""


class RootDrafter(Drafter):
    """Proposes nothing, so that every round emits one token, drawn by the target."""

    max_nodes = 1

    def reset(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> None:
        """Nothing is kept."""

    def observe(self, features_TF: torch.Tensor, next_tokens: Sequence[int]) -> None:
        self._root, self._device = next_tokens[-1], features_TF.device

    def propose(self) -> DraftTree:
        return DraftTree.from_parents([self._root], [0], device=self._device)

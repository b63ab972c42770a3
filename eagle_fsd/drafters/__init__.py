"""Drafters: what proposes the tree.

A drafter sees committed tokens through `observe` and returns the next tree from `propose`. It owns
its cache; nothing else does.
"""

from typing import Protocol

import torch

from eagle_fsd.tree import DraftTree


class Drafter(Protocol):
    """Axes: T newly committed tokens, F features of the target (see Target.feature_layers)."""

    max_nodes: int
    """Most nodes of a proposed tree, the root included."""

    def reset(self, capacity: int) -> None:
        """Begin a new sequence of at most `capacity` tokens."""

    def observe(self, features_TF: torch.Tensor, next_token_T: torch.Tensor) -> None:
        """Take in committed tokens.

        Example: after prefill of t0 t1 t2 and the root t3, features are f0 f1 f2 and next tokens
        t1 t2 t3; the last next token is always the root of the coming tree.
        """

    def propose(self) -> DraftTree:
        """The tree below the root, the last token observed."""

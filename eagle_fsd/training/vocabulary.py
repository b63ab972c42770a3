"""The draft vocabulary: the tokens that a head can draft, most frequent first.

A head over 16 K of 49 K tokens reads a third of the lm_head at every level (FR-Spec, arXiv
2502.14856; EAGLE-3's d2t). What the target says outside of it can never be drafted, and counts in
every divergence.
"""

from collections import Counter
from collections.abc import Iterable

import torch

from eagle_fsd.training.data import Dialogue


def frequent_tokens(dialogues: Iterable[Dialogue], size: int, *, vocab_size: int) -> torch.Tensor:
    """Ascending ids of the `size` tokens that the assistant wrote most often, int64 [size].

    Where the data holds fewer tokens, the lowest ids fill up.

    Raises:
        ValueError: size is not between 1 and the vocabulary's.
    """
    if not 1 <= size <= vocab_size:
        raise ValueError(f"a draft vocabulary of {size} must be 1 to {vocab_size} tokens")
    counts: Counter[int] = Counter()
    for dialogue in dialogues:
        counts.update(t for t, own in zip(dialogue.ids, dialogue.mask, strict=True) if own)
    # equal counts: the lower id, whatever the order of the data
    ranked = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    chosen = set(ranked)
    filling = (token for token in range(vocab_size) if token not in chosen)
    while len(chosen) < size:
        chosen.add(next(filling))
    return torch.tensor(sorted(chosen))


def coverage(dialogues: Iterable[Dialogue], token_R: torch.Tensor) -> float:
    """Share of the assistant's tokens that are in the draft vocabulary."""
    known = set(token_R.tolist())
    written = [t for d in dialogues for t, own in zip(d.ids, d.mask, strict=True) if own]
    return sum(token in known for token in written) / max(1, len(written))

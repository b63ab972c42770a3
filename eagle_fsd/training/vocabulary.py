"""The draft vocabulary: the tokens that a head can draft, most frequent first.

A head over 16 K of 49 K tokens reads a third of the lm_head at every level (FR-Spec, arXiv
2502.14856; EAGLE-3's d2t). What the target says outside of it can never be drafted, and counts in
every divergence. It is chosen before training, or cut out of a head that exists.

Axes: R tokens of a draft vocabulary, V of the target's.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch

from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.training.data import Dialogue


def answer_counts(dialogues: Iterable[Dialogue]) -> Counter[int]:
    """How often the assistant wrote each token."""
    counts: Counter[int] = Counter()
    for dialogue in dialogues:
        counts.update(t for t, own in zip(dialogue.ids, dialogue.mask, strict=True) if own)
    return counts


def frequent_tokens(
    dialogues: Iterable[Dialogue],
    size: int,
    *,
    vocab_size: int,
    among_R: torch.Tensor | None = None,
) -> torch.Tensor:
    """Ascending ids of the `size` tokens that the assistant wrote most often, int64 [size].

    Where the data holds fewer tokens, the lowest ids fill up.

    Args:
        among_R: the ids that may be taken, ascending; None: all of the vocabulary.

    Raises:
        ValueError: size is not between 1 and the number of tokens that may be taken.
    """
    allowed = range(vocab_size) if among_R is None else among_R.tolist()
    if not 1 <= size <= len(allowed):
        raise ValueError(f"a draft vocabulary of {size} must be 1 to {len(allowed)} tokens")
    counts = answer_counts(dialogues)
    # equal counts: the lower id, whatever the order of the data
    may = set(allowed)
    ranked = sorted(may & counts.keys(), key=lambda token: (-counts[token], token))[:size]
    chosen = set(ranked)
    filling = (token for token in allowed if token not in chosen)
    while len(chosen) < size:
        chosen.add(next(filling))
    return torch.tensor(sorted(chosen))


def coverage(dialogues: Iterable[Dialogue], token_R: torch.Tensor) -> float:
    """Share of the assistant's tokens that are in the draft vocabulary."""
    counts = answer_counts(dialogues)
    return sum(counts[token] for token in token_R.tolist()) / max(1, counts.total())


def draft_tokens(config: HeadConfig, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ascending ids that a stored head can draft, int64 [R]; all V without a reduced vocabulary."""
    if not config.draft_vocab_size:
        return torch.arange(config.vocab_size)
    return tensors["d2t"] + torch.arange(config.draft_vocab_size)


def cut_vocabulary(
    config: HeadConfig, tensors: dict[str, torch.Tensor], token_R: torch.Tensor
) -> tuple[HeadConfig, dict[str, torch.Tensor]]:
    """The same head, drafting these tokens only; its draft logits are the former ones' columns.

    An EAGLE-1/2 head reads the target's lm_head, so that it only gets d2t. An EAGLE-3 head keeps
    these rows of its own lm_head, and gets d2t and t2d:

        drafts before    2 5 7 9    lm_head rows a b c d    d2t 2 4 5 6
        token_R          5 9        lm_head rows b d        d2t 5 8

    Args:
        tensors: of the head under our keys; they are not changed.
        token_R: the target's ids, ascending, int64 [R].

    Raises:
        ValueError: the head cannot draft one of the tokens.
    """
    assert token_R.ndim == 1 and (token_R.diff() > 0).all(), "token_R must ascend"
    former_R = draft_tokens(config, tensors)
    known_R = torch.isin(token_R, former_R)
    if not known_R.all():
        strange = token_R[~known_R]
        raise ValueError(
            f"the head drafts {former_R.shape[0]} of {config.vocab_size} tokens, and {len(strange)}"
            f" of the {len(token_R)} asked for are not among them (token {strange[0]}, say)"
        )
    own = {"d2t": token_R - torch.arange(token_R.shape[0])}
    if config.eagle3:
        own["lm_head.weight"] = tensors["lm_head.weight"][torch.searchsorted(former_R, token_R)]
        own["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
        own["t2d"][token_R] = True
    return replace(config, draft_vocab_size=token_R.shape[0]), tensors | own

"""The draft vocabulary: the tokens that a head can draft.

A head over 16 K of 49 K tokens reads a third of the lm_head at every level (FR-Spec, arXiv
2502.14856; EAGLE-3's d2t). What the target says outside of it can never be drafted, and counts in
every divergence. It is chosen before training, or cut out of a head that exists.

Axes: R draft vocabulary, X tokens that may be taken into it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.heads.draft_head import DraftHead, build_head


def answer_counts(dialogues: Iterable) -> Counter[int]:
    """How often each token is in `ids` of dialogues where `mask` says the assistant wrote it."""
    return Counter(t for d in dialogues for t, own in zip(d.ids, d.mask, strict=True) if own)


def frequent_tokens(counts: Counter[int], size: int, token_X: torch.Tensor) -> torch.Tensor:
    """Ascending ids of the `size` tokens among `token_X` that were written most often, int64 [R];
    the lowest ids fill up."""
    if not 1 <= size <= len(token_X):
        raise BadInput(f"a draft vocabulary of {size} must be 1 to {len(token_X)} tokens")
    # equal counts: the lower id, whatever the order of the data
    ranked = sorted(token_X.tolist(), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:size]))


def coverage(counts: Counter[int], token_R: torch.Tensor) -> float:
    return sum(counts[token] for token in token_R.tolist()) / max(1, counts.total())


def cut_vocabulary(head: DraftHead, token_R: torch.Tensor) -> DraftHead:
    """A head that drafts these tokens only, ascending ids int64 [R]. Of an lm_head of its own,
    which must have them all, it keeps these rows:

        drafts before    2 5 7 9    lm_head rows a b c d    d2t 2 4 5 6
        token_R          5 9        lm_head rows b d        d2t 5 8
    """
    cut = build_head(replace(head.config, draft_vocab_size=len(token_R))).eval()
    cut.set_draft_tokens(token_R)
    weights = dict(head.named_parameters())
    if head.lm_head is not None:
        former_R = head.draft_token_R
        row_R = token_R if former_R is None else torch.searchsorted(former_R, token_R)
        weights["lm_head.weight"] = weights["lm_head.weight"].detach()[row_R]
    cut.load_state_dict(dict(cut.named_buffers()) | weights, assign=True)
    return cut

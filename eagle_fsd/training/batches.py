"""Which dialogues are trained on in which batch, which of their positions count, and the noise.

All of it depends on the seed and the batch's number alone, so that a resumed run goes on as an
unbroken one, and so that processes or accumulation share a step's batches without a difference.

Axes: B dialogues, T positions, F features, W width of a row of states, D hidden size.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from eagle_fsd.training.data import Dialogue, HeadBatch, make_batch, supervised
from eagle_fsd.training.features import StateSource


def split(
    dialogues: Sequence[Dialogue], *, held_out: int, answer_tokens: int = 0
) -> tuple[list[int], list[int]]:
    """Indices of the dialogues to train on and of those held out; see Batches."""
    everything = range(len(dialogues))
    held = sorted(random.Random(0).sample(everything, held_out))
    training = sorted(set(everything) - set(held))
    if answer_tokens:
        training = _part(training, dialogues, answer_tokens)
    return training, held


class Batches:
    """Batches of similar length; dialogues are shuffled anew every epoch.

    Args:
        source: the dialogues and their states.
        hidden_size: D; rows wider than that hold other features before it (see features.py).
        tokens_per_batch: padded tokens of a batch; a longer dialogue is a batch of its own.
        held_out: dialogues kept for validation, the same ones whatever the seed.
        seed: of the order and the noise.
        answer_tokens: train on a random part of about so many, the same whatever the seed, and a
            smaller part of it for a smaller number; 0: all.
        noise: features get uniform noise in +-noise * 512 / T, so that longer texts get less; 0.1
            is upstream's (eagle/train/main.py).
        shift, skip, token_allowed_V: see `supervised` in data.py.
    """

    def __init__(
        self,
        source: StateSource,
        *,
        hidden_size: int,
        tokens_per_batch: int,
        held_out: int,
        seed: int,
        answer_tokens: int = 0,
        noise: float = 0.0,
        shift: bool = True,
        skip: int = 0,
        token_allowed_V: torch.Tensor | None = None,
    ):
        self.source = source
        self.hidden_size = hidden_size
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.noise = noise
        self.training, self.held_out = split(
            source.dialogues, held_out=held_out, answer_tokens=answer_tokens
        )
        self._mask = [
            supervised(d, shift=shift, skip=skip, token_allowed_V=token_allowed_V)
            for d in source.dialogues
        ]
        self.per_epoch = len(self._order(0))
        self._shuffled: tuple[int, list[list[int]]] = (-1, [])

    def indices(self, number: int) -> list[int]:
        """The dialogues of a batch; batches are numbered through all epochs."""
        epoch, position = divmod(number, self.per_epoch)
        if self._shuffled[0] != epoch:
            self._shuffled = (epoch, self._order(epoch))
        order = self._shuffled[1]
        # lengths are jittered, so an epoch may have a batch more or less than the first
        return order[position % len(order)]

    def counted(self, number: int) -> int:
        """Positions of a batch that count; no states are read."""
        return sum(int(self._mask[i].sum()) for i in self.indices(number))

    def batch(self, number: int) -> HeadBatch:
        """A batch to train on, noise included."""
        indices = self.indices(number)
        clean = self._load(indices, [self._mask[i] for i in indices])
        return replace(clean, feature_BTD=self._noisy(clean.feature_BTD, number))

    def validation(self, dialogues: int = 4) -> Iterator[HeadBatch]:
        """The held-out dialogues, some at a time; every position of an answer counts."""
        for first in range(0, len(self.held_out), dialogues):
            yield self._load(self.held_out[first : first + dialogues], None)

    def features(self, index: int) -> torch.Tensor:
        """What the head reads of one dialogue, [L, F]."""
        (rows_LW,) = self.source.rows([index])
        return rows_LW[:, : max(rows_LW.shape[1] - self.hidden_size, self.hidden_size)]

    def _load(self, indices: list[int], masks_T: list[torch.Tensor] | None) -> HeadBatch:
        dialogues = [self.source.dialogues[i] for i in indices]
        both = make_batch(dialogues, self.source.rows(indices), masks_T)
        D, W = self.hidden_size, both.feature_BTD.shape[-1]
        return replace(
            both,
            feature_BTD=both.feature_BTD[..., : max(W - D, D)],
            target_feature_BTD=both.target_feature_BTD[..., W - D :],
        )

    def _noisy(self, feature_BTF: torch.Tensor, number: int) -> torch.Tensor:
        if self.noise == 0:
            return feature_BTF
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        uniform = torch.rand(feature_BTF.shape, generator=generator) * 2 - 1
        scale = self.noise * 512 / feature_BTF.shape[1]
        return feature_BTF + (uniform * scale).to(feature_BTF)

    def _order(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        length = {i: len(self.source.dialogues[i].ids) for i in self.training}
        # nearly sorted by length: little padding, yet other neighbours every epoch
        jittered = {i: n * rng.uniform(0.9, 1.1) for i, n in length.items()}
        batches: list[list[int]] = [[]]
        longest = 0
        for i in sorted(self.training, key=jittered.__getitem__):
            longest = max(longest, length[i])
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.tokens_per_batch:
                batches.append([])
                longest = length[i]
            batches[-1].append(i)
        rng.shuffle(batches)
        return batches


def _part(indices: list[int], dialogues: Sequence[Dialogue], answer_tokens: int) -> list[int]:
    """The first of a fixed shuffle that hold `answer_tokens` between them."""
    shuffled = random.Random(1).sample(indices, len(indices))
    kept, tokens = [], 0
    while shuffled and tokens < answer_tokens:
        kept.append(shuffled.pop())
        tokens += sum(dialogues[kept[-1]].mask)
    return sorted(kept)

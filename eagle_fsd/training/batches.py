"""Which dialogues are trained on in which step, and the noise on their features.

Both depend on seed, step and process alone, so that a resumed run goes on as an unbroken one.
"""

import random

import torch

from eagle_fsd.training.data import HeadBatch, make_batch
from eagle_fsd.training.features import FeatureCache


class Batches:
    """Batches of similar length; dialogues are shuffled anew every epoch.

    Args:
        cache: the dialogues and their features.
        tokens_per_step: padded tokens of a batch; a longer dialogue is a batch of its own.
        held_out: dialogues kept for validation, the same ones whatever the seed.
        seed: of the order.
    """

    def __init__(self, cache: FeatureCache, *, tokens_per_step: int, held_out: int, seed: int):
        self.cache = cache
        self.tokens_per_step = tokens_per_step
        self.seed = seed
        everything = range(len(cache.dialogues))
        self.held_out = sorted(random.Random(0).sample(everything, held_out))
        self.training = sorted(set(everything) - set(self.held_out))
        self.per_epoch = len(self._batches_of(0))
        self._order: tuple[int, list[list[int]]] = (-1, [])

    def at(self, step: int, *, process: int = 0, processes: int = 1) -> HeadBatch:
        """What `process` trains on in a step; processes take neighbouring batches."""
        epoch, position = divmod(step * processes + process, self.per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, self._batches_of(epoch))
        order = self._order[1]
        # lengths are jittered, so an epoch may have a batch more or less than the first
        return self.load(order[position % len(order)])

    def load(self, indices: list[int]) -> HeadBatch:
        """A batch of the dialogues with these indices."""
        return make_batch(
            [self.cache.dialogues[i] for i in indices], [self.cache[i] for i in indices]
        )

    def _batches_of(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        length = {i: len(self.cache.dialogues[i].ids) for i in self.training}
        # nearly sorted by length: little padding, yet other neighbours every epoch
        jittered = {i: n * rng.uniform(0.9, 1.1) for i, n in length.items()}
        batches: list[list[int]] = [[]]
        longest = 0
        for i in sorted(self.training, key=jittered.__getitem__):
            longest = max(longest, length[i])
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.tokens_per_step:
                batches.append([])
                longest = length[i]
            batches[-1].append(i)
        rng.shuffle(batches)
        return batches


def noisy_features(
    batch: HeadBatch, scale: float, *, seed: int, step: int, process: int = 0
) -> torch.Tensor:
    """Features with uniform noise in +-scale * 512 / T, so that longer texts get less.

    With scale 0.1 this is upstream's (eagle/train/main.py: U(-0.1, 0.1) * 512 / length).
    """
    if scale == 0:
        return batch.feature_BTD
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_009 + process)
    uniform = torch.rand(batch.feature_BTD.shape, generator=generator) * 2 - 1
    T = batch.feature_BTD.shape[1]
    return batch.feature_BTD + (uniform * (scale * 512 / T)).to(batch.feature_BTD)

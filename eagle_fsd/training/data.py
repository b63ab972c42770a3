"""Training dialogues as token ids, the shift between tokens, features and mask, and batches.

File format: JSON lines (optionally gzipped), one dialogue a line, other keys ignored, with
    input_ids    all tokens of the dialogue, chat markup included
    loss_mask    of the same length: 1 where the assistant wrote the token, its end tokens included

What is in a batch depends on the seed and the batch's number alone, and its noise on the kind of
device that draws it besides: a resumed run goes on as an unbroken one, and processes share a step's
batches without a difference.

Axes: B dialogues, T positions, L tokens of a dialogue, F features, D hidden size, V vocabulary.
"""

import os
import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from eagle_fsd.config import BadInput
from eagle_fsd.runs.folder import record_files
from eagle_fsd.runs.jsonl import read_records


@dataclass(frozen=True)
class Dialogue:
    """Token ids of one dialogue, which of them the assistant wrote, and its number in a folder of
    make_data.py, where several rows may be of one dialogue."""

    ids: list[int]
    mask: list[bool]
    number: int | None = None


class HeadBatch(NamedTuple):
    """What a draft head is trained on; B dialogues padded to T positions.

    The head at position i reads the target's feature at token i and the embedding of token i+1. It
    predicts the hidden state at i+1 and, through the lm_head, the distribution of token i+2.

        position i            0    1    2    3       (dialogue of 5 tokens, answer from token 3)
        token                 t0   t1   t2   t3  t4
        assistant's           0    0    0    1   1
        feature_BTF           f0   f1   f2   f3
        next_token_BT         t1   t2   t3   t4
        target_hidden_BTD     h1   h2   h3   h4
        mask_BT               0    1    1    0       is token i+2 the assistant's? (t5 is unknown)

    (Upstream's eagle/train/main.py asks whether token i is the assistant's, and so leaves out the
    first two tokens of an answer and counts two behind it.)
    """

    feature_BTF: torch.Tensor
    next_token_BT: torch.Tensor
    target_hidden_BTD: torch.Tensor
    mask_BT: torch.Tensor


def read_dialogues(
    path: str | Path, *, vocab_size: int, max_length: int = sys.maxsize
) -> list[Dialogue]:
    """Dialogues of a file, or of a folder of make_data.py, that have something to learn, cut."""
    dialogues = []
    files = record_files(path, "dialogues") if os.path.isdir(path) else [path]
    for file, line, row in ((each, *record) for each in files for record in read_records(each)):
        try:
            ids, mask = row["input_ids"], row["loss_mask"]
            # True is an int too
            foreign = [t for t in ids if type(t) is not int or not 0 <= t < vocab_size]
            whole = len(ids) == len(mask) and {0, 1}.issuperset(mask)
        except (TypeError, KeyError):
            foreign, whole = [], False
        if foreign or not whole:
            raise BadInput(
                f"{file}, line {line}: expected two lists of one length, input_ids of tokens "
                f"from 0 to {vocab_size - 1} and loss_mask of 0 and 1 (other tokens: {foreign[:3]})"
            )
        if any(mask[2:max_length]):  # token 2 is the first that a head can predict
            number = row["id"] if "part" in row else None
            mask = [m == 1 for m in mask[:max_length]]
            dialogues.append(Dialogue(ids[:max_length], mask, number))
    if not dialogues:
        raise BadInput(f"{path} holds no dialogue with an answer inside {max_length} tokens")
    return dialogues


def split(
    dialogues: Sequence[Dialogue], *, held_out: int, answer_tokens: int = 0
) -> tuple[list[Dialogue], list[Dialogue]]:
    """What is trained on, and `held_out` different dialogues, the same whatever the run's seed; no
    dialogue that equals one of them in its tokens, or is another row of one, is trained on.

    `answer_tokens` trains on a random part of about this number, which lies within that of a larger
    number; 0: all.
    """
    shuffled = random.Random(0).sample(dialogues, len(dialogues))
    held: dict[tuple[int, ...], Dialogue] = {}
    for dialogue in shuffled:
        if len(held) < held_out:
            held.setdefault(tuple(dialogue.ids), dialogue)
    numbers = {dialogue.number for dialogue in held.values()} - {None}
    training = [d for d in shuffled if tuple(d.ids) not in held and d.number not in numbers]
    if not training:
        raise BadInput(
            f"--held_out {held_out} leaves none of {len(dialogues)} dialogues to train on: lower "
            "it, or give more --data"
        )
    if answer_tokens:
        sums = list(accumulate(sum(dialogue.mask) for dialogue in training))
        training = training[: bisect_left(sums, answer_tokens) + 1]
    return training, [*held.values()]


def supervised(
    dialogue: Dialogue, *, skip: int = 0, allowed_V: torch.Tensor | None = None
) -> torch.Tensor:
    """Which positions of a dialogue count (see HeadBatch), bool [L - 1].

    Not the first `skip`, which not all unrolled steps reach, nor where a reduced draft vocabulary
    does not allow token i+2.
    """
    counts_T = torch.zeros(len(dialogue.ids) - 1, dtype=torch.bool)
    counts_T[:-1] = torch.tensor(dialogue.mask[2:])
    counts_T[:skip] = False
    if allowed_V is not None:
        counts_T[:-1] &= allowed_V[torch.tensor(dialogue.ids[2:])]
    return counts_T


States = Sequence[tuple[torch.Tensor, torch.Tensor]]  # see TargetStates.of
_padded = partial(pad_sequence, batch_first=True)  # with zeros on the right


@dataclass
class Batches:
    """Batches of dialogues of similar length, shuffled anew every epoch."""

    dialogues: Sequence[Dialogue]
    masks_T: Sequence[torch.Tensor]  # see supervised
    states_of: Callable[[list[list[int]]], States]  # TargetStates.of
    kept_of: Callable[[list[list[int]]], States | None]  # and .kept
    tokens_per_batch: int  # padded; a longer dialogue is a batch of its own
    seed: int  # of the order and the noise
    noise: float  # see Recipe

    def __post_init__(self):
        self._order = lru_cache(maxsize=2)(self._shuffled)
        self.per_epoch = len(self._order(0))

    def indices(self, number: int) -> list[int]:
        """The dialogues of a batch; batches are numbered through all epochs."""
        epoch, position = divmod(number, self.per_epoch)
        order = self._order(epoch)
        # lengths are jittered, so an epoch may have a batch more or less than the first
        return order[position % len(order)]

    def counted(self, number: int) -> int:
        """Positions of a batch that count."""
        return sum(int(self.masks_T[i].sum()) for i in self.indices(number))

    def texts(self, number: int) -> list[list[int]]:
        """Token ids of a batch's dialogues."""
        return [self.dialogues[i].ids for i in self.indices(number)]

    def read(self, number: int) -> HeadBatch | None:
        """A batch without its noise, from kept states; None where some are to be computed first."""
        states = self.kept_of(self.texts(number))
        return None if states is None else self._of(number, states)

    def batch(
        self, number: int, device: torch.device | str = "cpu", *, read: HeadBatch | None = None
    ) -> HeadBatch:
        """A batch on a device, which draws its noise; `read` may have been made before."""
        if read is None:
            read = self._of(number, self.states_of(self.texts(number)))
        # from pinned memory a GPU copies while the host goes on
        on_cuda = torch.device(device).type == "cuda"
        batch = HeadBatch(*(part.to(device, non_blocking=on_cuda) for part in read))
        if not self.noise:
            return batch
        feature_BTF = batch.feature_BTF
        generator = torch.Generator(feature_BTF.device)
        generator.manual_seed(self.seed * 1_000_003 + number)
        noise_BTF = torch.empty_like(feature_BTF, dtype=torch.float32)
        noise_BTF.uniform_(generator=generator).mul_(2).sub_(1)
        noise_BTF.mul_(self.noise).mul_(512).div_(feature_BTF.shape[1])
        return batch._replace(feature_BTF=feature_BTF + noise_BTF.to(feature_BTF.dtype))

    def _of(self, number: int, states: States) -> HeadBatch:
        """Of features and hidden states of its dialogues."""
        features_LF, hiddens_LD = zip(*states, strict=True)
        return HeadBatch(
            _padded([feature_LF[:-1] for feature_LF in features_LF]),
            _padded([torch.tensor(ids[1:]) for ids in self.texts(number)]),
            _padded([hidden_LD[1:] for hidden_LD in hiddens_LD]),
            _padded([self.masks_T[i] for i in self.indices(number)]),
        )

    def _shuffled(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        # nearly sorted by length: little padding, yet other neighbours every epoch
        lengths = [len(dialogue.ids) for dialogue in self.dialogues]
        jittered = [length * rng.uniform(0.9, 1.1) for length in lengths]
        batches: list[list[int]] = [[]]
        longest = 0
        for i in sorted(range(len(lengths)), key=jittered.__getitem__):
            longest = max(longest, lengths[i])
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.tokens_per_batch:
                batches.append([])
                longest = lengths[i]
            batches[-1].append(i)
        rng.shuffle(batches)
        return batches

"""Training dialogues as token ids, the shift between tokens, features and mask, and batches.

File format: JSON lines (optionally gzipped), one dialogue a line, with
    input_ids    all tokens of the dialogue, chat markup included
    loss_mask    as many 0 or 1: 1 where the assistant wrote the token, its end tokens included
or, for a dialogue of one answer,
    prompt_ids   the whole chat prefix up to where the answer begins
    answer_ids   what the target answered, its end token included if it ended
Other keys are ignored. What the target computed at each token comes from features.py.

What is in a batch, its noise included, depends on the seed and the batch's number alone: a resumed
run goes on as an unbroken one, and processes share a step's batches without a difference.

Axes: B dialogues, T positions, L tokens of a dialogue, F features, D hidden size, V vocabulary.
"""

import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import read_records

# of token ids: features [L, F] and hidden states after the final norm [L, D] (TargetStates.of)
StatesOf = Callable[[list[list[int]]], list[tuple[torch.Tensor, torch.Tensor]]]


@dataclass(frozen=True)
class Dialogue:
    """Token ids of one dialogue, and which of them the assistant wrote."""

    ids: list[int]
    mask: list[bool]


@dataclass(frozen=True)
class HeadBatch:
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

    The mask asks whether the token that h_{i+1} predicts is the assistant's, since that is what
    will be drafted. (Upstream's eagle/train/main.py asks about token i instead, and so leaves out
    the first two tokens of an answer and counts two behind it.)
    """

    feature_BTF: torch.Tensor
    next_token_BT: torch.Tensor
    target_hidden_BTD: torch.Tensor
    mask_BT: torch.Tensor


def read_dialogues(
    path: str | Path, *, vocab_size: int, max_length: int = sys.maxsize
) -> list[Dialogue]:
    """Read the dialogues of a file, or of a folder of make_data.py, cutting each at `max_length`.

    Dialogues in which no position has a known token of the assistant to predict are left out.

    Raises:
        BadInput: the file is missing, a line is broken or has tokens of another vocabulary (its
            number is given), or there is nothing to learn.
    """
    dialogues, path = [], Path(path)
    path = path / "records" / "dialogues.jsonl" if path.is_dir() else path
    for number, row in read_records(path):
        try:
            dialogue = _dialogue(row, vocab_size)
        except (TypeError, KeyError, BadInput) as error:
            raise BadInput(
                f"{path}, line {number}: expected lists input_ids and loss_mask, or prompt_ids "
                f"and answer_ids ({error})"
            ) from error
        # token 2 is the first that a head can predict
        if any(dialogue.mask[2:max_length]):
            dialogues.append(Dialogue(dialogue.ids[:max_length], dialogue.mask[:max_length]))
    if not dialogues:
        raise BadInput(f"{path} holds no dialogue with an answer inside {max_length} tokens")
    return dialogues


def _dialogue(row: dict, vocab_size: int) -> Dialogue:
    """A row in either format."""
    if "input_ids" in row:
        ids, mask = row["input_ids"], row["loss_mask"]
    else:
        ids = row["prompt_ids"] + row["answer_ids"]
        mask = [0] * len(row["prompt_ids"]) + [1] * len(row["answer_ids"])
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:  # True is an int too
            raise BadInput(f"token {token!r}, the tokenizer's are 0..{vocab_size - 1}")
    if len(ids) != len(mask) or not {0, 1}.issuperset(mask):
        raise BadInput("loss_mask must hold a 0 or 1 for every token")
    return Dialogue(ids, [bool(m) for m in mask])


def split(
    dialogues: Sequence[Dialogue], *, held_out: int, answer_tokens: int = 0
) -> tuple[list[Dialogue], list[Dialogue]]:
    """Dialogues to train on, and so many held out, the same whatever the run's seed.

    Args:
        answer_tokens: train on a random part that holds about so many, a smaller number on a part
            of a larger one's; 0: all.
    """
    shuffled = random.Random(0).sample(dialogues, len(dialogues))
    held, training = shuffled[:held_out], shuffled[held_out:]
    if answer_tokens:
        sums = list(accumulate(sum(dialogue.mask) for dialogue in training))
        training = training[: bisect_left(sums, answer_tokens) + 1]
    return training, held


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


class Batches:
    """Batches of dialogues of similar length, shuffled anew every epoch.

    Args:
        masks_T: positions of each dialogue that count.
        states_of: gives the target's states.
        tokens_per_batch: padded tokens; a longer dialogue is a batch of its own.
        seed: of the order and the noise.
        noise: see Recipe.
    """

    def __init__(
        self,
        dialogues: Sequence[Dialogue],
        masks_T: Sequence[torch.Tensor],
        states_of: StatesOf,
        *,
        tokens_per_batch: int,
        seed: int,
        noise: float,
    ):
        self.dialogues = dialogues
        self.masks_T = masks_T
        self.states_of = states_of
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.noise = noise
        self._order = lru_cache(maxsize=2)(self._shuffled)
        self.per_epoch = len(self._order(0))

    def indices(self, number: int) -> list[int]:
        """The dialogues of a batch; batches are numbered through all epochs."""
        epoch, position = divmod(number, self.per_epoch)
        order = self._order(epoch)
        # lengths are jittered, so an epoch may have a batch more or less than the first
        return order[position % len(order)]

    def counted(self, number: int) -> int:
        """Positions of a batch that count; no states are read."""
        return sum(int(self.masks_T[i].sum()) for i in self.indices(number))

    def batch(self, number: int) -> HeadBatch:
        """A batch to train on, noise included."""
        indices = self.indices(number)
        ids = [self.dialogues[i].ids for i in indices]
        features_LF, hiddens_LD = zip(*self.states_of(ids), strict=True)
        feature_BTF = _padded(feature_LF[:-1] for feature_LF in features_LF)
        return HeadBatch(
            self._noisy(feature_BTF, number),
            _padded(torch.tensor(own[1:]) for own in ids),
            _padded(hidden_LD[1:] for hidden_LD in hiddens_LD),
            _padded(self.masks_T[i] for i in indices),
        )

    def _noisy(self, feature_BTF: torch.Tensor, number: int) -> torch.Tensor:
        if self.noise == 0:
            return feature_BTF
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        uniform = torch.rand(feature_BTF.shape, generator=generator) * 2 - 1
        scale = self.noise * 512 / feature_BTF.shape[1]
        return feature_BTF + (uniform * scale).to(feature_BTF)

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


def _padded(rows: Iterable[torch.Tensor]) -> torch.Tensor:
    """With zeros on the right, to the longest."""
    return pad_sequence(list(rows), batch_first=True)

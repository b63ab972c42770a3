"""Training dialogues as token ids, the shift between tokens, features and mask, and batches.

File format: JSON lines (optionally gzipped), one dialogue a line, with
    input_ids    all tokens of the dialogue, chat markup included
    loss_mask    as many 0 or 1: 1 where the assistant wrote the token, its end tokens included
or, for a dialogue of one answer,
    prompt_ids   the whole chat prefix up to where the answer begins
    answer_ids   what the target answered, its end token included if it ended
Other keys are ignored. What the target computed at each token comes from features.py.

Which dialogues are in which batch, which of their positions count and the noise depend on the seed
and the batch's number alone: a resumed run goes on as an unbroken one, and processes or
accumulation share a step's batches without a difference.

Axes: B dialogues, T positions, L tokens of a dialogue, F features, W width of a row of states, D
hidden size.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.training.prompts import read_records


@dataclass(frozen=True)
class Dialogue:
    """Token ids of one dialogue, and which of them the assistant wrote."""

    ids: list[int]
    mask: list[bool]

    def __post_init__(self):
        if len(self.ids) != len(self.mask):
            raise BadInput(f"{len(self.ids)} tokens, but a mask of {len(self.mask)}")


@dataclass(frozen=True)
class HeadBatch:
    """What a draft head is trained on; B dialogues padded to T positions, D features.

    The head at position i reads the target's feature at token i and the embedding of token i+1. It
    predicts the feature at i+1 and, through the lm_head, the distribution of token i+2.

        position i            0    1    2    3       (dialogue of 5 tokens, answer from token 3)
        token                 t0   t1   t2   t3  t4
        assistant's           0    0    0    1   1
        feature_BTD           f0   f1   f2   f3
        next_token_BT         t1   t2   t3   t4
        target_feature_BTD    f1   f2   f3   f4
        mask_BT               0    1    1    0       is token i+2 the assistant's? (t5 is unknown)
        ... shift_mask=False  0    0    0    0       is token i the assistant's? (last: never)

    The mask asks whether the token that f_{i+1} predicts is the assistant's, since that is what
    will be drafted. Upstream asks about token i instead (eagle/train/main.py), and so leaves out
    the first two tokens of an answer and counts two behind it:

        token                 t0   t1   t2   t3   t4   t5   t6
        assistant's           0    1    1    1    0    0    0
        mask_BT               1    1    0    0    0    0
        ... shift_mask=False  0    1    1    1    0    0

    The last position never counts: its target feature is unknown where generation kept the
    features, for the last token was never run. (Upstream's unshifted mask counts it.)
    """

    feature_BTD: torch.Tensor
    next_token_BT: torch.Tensor
    target_feature_BTD: torch.Tensor
    mask_BT: torch.Tensor

    def to(self, device: torch.device) -> "HeadBatch":
        return HeadBatch(*(t.to(device) for t in vars(self).values()))


def read_dialogues(path: str | Path | Sequence[str | Path], *, max_length: int) -> list[Dialogue]:
    """Read dialogues of one file or several, cutting each at `max_length` tokens.

    Dialogues in which no position has a known token of the assistant to predict are left out.

    Raises:
        BadInput: a file is missing, a line is broken (its number is given), or a file holds
            nothing to learn.
    """
    paths = [path] if isinstance(path, str | Path) else path
    if not paths:
        raise BadInput("no training data: name at least one file")
    everything = []
    for one in paths:
        dialogues = []
        for number, row in read_records(one):
            try:
                ids, mask = _tokens(row)
            except (TypeError, KeyError, BadInput) as error:
                raise BadInput(
                    f"{one}, line {number}: expected lists input_ids and loss_mask, or prompt_ids "
                    f"and answer_ids ({type(error).__name__}: {error})"
                ) from error
            # token 2 is the first that a head can predict
            if any(mask[2:max_length]):
                dialogues.append(Dialogue(ids[:max_length], mask[:max_length]))
        if not dialogues:
            raise BadInput(f"{one} holds no dialogue with an answer inside {max_length} tokens")
        everything += dialogues
    return everything


def _tokens(row: dict) -> tuple[list[int], list[bool]]:
    """Ids and mask of a row in either format."""
    if "input_ids" in row:
        ids, mask = row["input_ids"], row["loss_mask"]
    else:
        ids = row["prompt_ids"] + row["answer_ids"]
        mask = [0] * len(row["prompt_ids"]) + [1] * len(row["answer_ids"])
    if not (isinstance(ids, list) and isinstance(mask, list) and len(ids) == len(mask)):
        raise BadInput("ids and mask must be lists of one length")
    if not {0, 1}.issuperset(mask):
        raise BadInput("loss_mask must hold 0 and 1 only")
    for token in ids:
        if type(token) is not int:  # True is an int too
            raise BadInput(f"token {token!r} is no whole number")
    return ids, [bool(m) for m in mask]


def supervised(
    dialogue: Dialogue,
    *,
    shift: bool = True,
    skip: int = 0,
    token_allowed_V: torch.Tensor | None = None,
) -> torch.Tensor:
    """Which positions of a dialogue count (see HeadBatch), bool [L - 1].

    Args:
        shift: False is upstream's mask, which is that of token i and not of i+2.
        skip: the first positions, which do not count (those that not all unrolled steps reach).
        token_allowed_V: bool; positions count only where token i+2 is allowed (a reduced draft
            vocabulary). None allows all.
    """
    mask_L = torch.tensor(dialogue.mask)
    counts_T = torch.zeros(len(dialogue.ids) - 1, dtype=torch.bool)
    counts_T[:-1] = mask_L[2:] if shift else mask_L[:-2]
    counts_T[:skip] = False
    if token_allowed_V is not None:
        counts_T[:-1] &= token_allowed_V[torch.tensor(dialogue.ids[2:])]
    return counts_T


def make_batch(
    dialogues: Sequence[Dialogue],
    features_LD: Sequence[torch.Tensor],
    masks_T: Sequence[torch.Tensor],
) -> HeadBatch:
    """Shift and pad (see HeadBatch).

    Args:
        features_LD: one row per token of each dialogue.
        masks_T: positions that count, [L - 1] each; see `supervised`.
    """
    B, T = len(dialogues), max(len(d.ids) for d in dialogues) - 1
    D = features_LD[0].shape[-1]
    feature_BTD = features_LD[0].new_zeros(B, T, D)
    target_BTD = torch.zeros_like(feature_BTD)
    token_BT = torch.zeros(B, T, dtype=torch.int64)
    mask_BT = torch.zeros(B, T, dtype=torch.bool)
    rows = zip(dialogues, features_LD, masks_T, strict=True)
    for b, (dialogue, feature_LD, mask_T) in enumerate(rows):
        length = len(dialogue.ids) - 1
        assert feature_LD.shape == (length + 1, D), (feature_LD.shape, length + 1, D)
        feature_BTD[b, :length] = feature_LD[:-1]
        target_BTD[b, :length] = feature_LD[1:]
        token_BT[b, :length] = torch.tensor(dialogue.ids[1:])
        mask_BT[b, :length] = mask_T
    return HeadBatch(feature_BTD, token_BT, target_BTD, mask_BT)


def digest(dialogues: Iterable[Dialogue]) -> str:
    """A digest of all tokens and masks, to tell data that has changed under the same name."""
    whole = hashlib.sha256()
    for dialogue in dialogues:
        whole.update(f"{dialogue.ids} {dialogue.mask}".encode())
    return whole.hexdigest()[:16]


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
        dialogues: all of them.
        rows: states of the dialogues of these indices, [L, W] each (TargetStates.rows).
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
        dialogues: list[Dialogue],
        rows: Callable[[Sequence[int]], list[torch.Tensor]],
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
        self.dialogues = dialogues
        self.rows = rows
        self.hidden_size = hidden_size
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.noise = noise
        self.training, self.held_out = split(
            dialogues, held_out=held_out, answer_tokens=answer_tokens
        )
        self._mask = [
            supervised(d, shift=shift, skip=skip, token_allowed_V=token_allowed_V)
            for d in dialogues
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
            indices = self.held_out[first : first + dialogues]
            yield self._load(indices, [supervised(self.dialogues[i]) for i in indices])

    def features(self, index: int) -> torch.Tensor:
        """What the head reads of one dialogue, [L, F]."""
        (rows_LW,) = self.rows([index])
        return rows_LW[:, : max(rows_LW.shape[1] - self.hidden_size, self.hidden_size)]

    def _load(self, indices: list[int], masks_T: list[torch.Tensor]) -> HeadBatch:
        both = make_batch([self.dialogues[i] for i in indices], self.rows(indices), masks_T)
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
        length = {i: len(self.dialogues[i].ids) for i in self.training}
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

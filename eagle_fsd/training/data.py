"""Training dialogues as token ids, and the shift between tokens, features and mask.

File format: JSON lines (optionally gzipped), one dialogue a line, with
    input_ids    all tokens of the dialogue, chat markup included
    loss_mask    as many 0 or 1: 1 where the assistant wrote the token, its end tokens included
or, for a dialogue of one answer,
    prompt_ids   the whole chat prefix up to where the answer begins
    answer_ids   what the target answered, its end token included if it ended
Other keys are ignored. Features (what the target computed at each token) live in features.py.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle_fsd.config import BadInput


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
    if isinstance(path, str | Path):
        return _read_file(Path(path), max_length)
    if not path:
        raise BadInput("no training data: name at least one file")
    return [dialogue for one in path for dialogue in _read_file(Path(one), max_length)]


def _read_file(path: Path, max_length: int) -> list[Dialogue]:
    if not path.is_file():
        raise BadInput(f"no training data at {path}")
    opener = gzip.open if path.suffix == ".gz" else open
    dialogues = []
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                ids, mask = _tokens(json.loads(line))
                # token 2 is the first that a head can predict
                if any(mask[2:max_length]):
                    dialogues.append(Dialogue(ids[:max_length], mask[:max_length]))
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is damaged after line {number} ({error})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"{path}, line {number}: expected JSON with lists input_ids and loss_mask, or "
            f"prompt_ids and answer_ids ({type(error).__name__}: {error})"
        ) from error
    if not dialogues:
        raise BadInput(f"{path} holds no dialogue with an answer inside {max_length} tokens")
    return dialogues


def _tokens(row: dict) -> tuple[list[int], list[bool]]:
    """Ids and mask of a row in either format."""
    if "input_ids" not in row:
        prompt, answer = row["prompt_ids"], row["answer_ids"]
        return _checked(prompt + answer), [False] * len(prompt) + [True] * len(answer)
    ids, mask = row["input_ids"], row["loss_mask"]
    if not (isinstance(ids, list) and isinstance(mask, list) and len(ids) == len(mask)):
        raise BadInput("input_ids and loss_mask must be lists of one length")
    if not {0, 1}.issuperset(mask):
        raise BadInput("loss_mask must hold 0 and 1 only")
    return _checked(ids), [bool(m) for m in mask]


def _checked(ids: list) -> list[int]:
    for token in ids:
        if type(token) is not int:  # True is an int too
            raise BadInput(f"token {token!r} is no whole number")
    return ids


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
    masks_T: Sequence[torch.Tensor] | None = None,
    *,
    pad_token: int = 0,
    shift_mask: bool = True,
) -> HeadBatch:
    """Shift and pad (see HeadBatch); features_LD[b] has one row per token of dialogues[b].

    Args:
        masks_T: positions that count, [L - 1] each; None: `supervised` with shift_mask.
        shift_mask: False is upstream's mask, which is that of token i and not of i+2.
    """
    if masks_T is None:
        masks_T = [supervised(d, shift=shift_mask) for d in dialogues]
    B, T = len(dialogues), max(len(d.ids) for d in dialogues) - 1
    D = features_LD[0].shape[-1]
    feature_BTD = features_LD[0].new_zeros(B, T, D)
    target_BTD = torch.zeros_like(feature_BTD)
    token_BT = torch.full((B, T), pad_token)
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
    """Of all tokens and masks, to tell data that has changed under the same name."""
    whole = hashlib.sha256()
    for dialogue in dialogues:
        whole.update(f"{dialogue.ids} {dialogue.mask}".encode())
    return whole.hexdigest()[:16]

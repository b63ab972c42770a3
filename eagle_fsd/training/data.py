"""Training dialogues as token ids, and the shift between tokens, features and mask.

File format: JSON lines (optionally gzipped), one dialogue a line, with
    prompt_ids   the whole chat prefix up to where the answer begins
    answer_ids   what the target answered, its end token included if it ended
Other keys are ignored. Features (what the target computed at each token) live in features.py.
"""

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Dialogue:
    """Token ids of one dialogue; tokens from `answer_start` on were written by the target."""

    ids: list[int]
    answer_start: int


@dataclass(frozen=True)
class HeadBatch:
    """What a draft head is trained on; B dialogues padded to T positions, D features.

    The head at position i reads the target's feature at token i and the embedding of token i+1. It
    predicts the feature at i+1 and, through the lm_head, the distribution of token i+2.

        position i            0    1    2    3       (dialogue of 5 tokens, answer from token 3)
        token                 t0   t1   t2   t3  t4
        feature_BTD           f0   f1   f2   f3
        next_token_BT         t1   t2   t3   t4
        target_feature_BTD    f1   f2   f3   f4
        mask_BT               0    1    1    0       is token i+2 in the answer? (t5 is unknown)

    The mask asks whether the token that f_{i+1} predicts belongs to the answer, since that is what
    will be drafted. (Upstream uses the unshifted mask: reference/eagle.md section 3.1.)
    """

    feature_BTD: torch.Tensor
    next_token_BT: torch.Tensor
    target_feature_BTD: torch.Tensor
    mask_BT: torch.Tensor

    def to(self, device: torch.device) -> "HeadBatch":
        return HeadBatch(*(t.to(device) for t in vars(self).values()))


def read_dialogues(path: str | Path, *, max_length: int) -> list[Dialogue]:
    """Read dialogues, cutting each at `max_length` tokens.

    Raises:
        ValueError: the file is missing, a line is broken (its number is given), or nothing is left.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no training data at {path}")
    opener = gzip.open if path.suffix == ".gz" else open
    dialogues = []
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                row = json.loads(line)
                prompt, answer = row["prompt_ids"], row["answer_ids"]
                ids = [int(token) for token in prompt + answer]
                # at least one position that predicts a known answer token
                if max(len(prompt), 2) + 1 <= min(len(ids), max_length):
                    dialogues.append(Dialogue(ids[:max_length], len(prompt)))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number} ({error})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}, line {number}: expected JSON with lists prompt_ids and answer_ids "
            f"({type(error).__name__}: {error})"
        ) from error
    if not dialogues:
        raise ValueError(f"{path} holds no dialogue with an answer inside {max_length} tokens")
    return dialogues


def make_batch(
    dialogues: Sequence[Dialogue], features_LD: Sequence[torch.Tensor], *, pad_token: int = 0
) -> HeadBatch:
    """Shift and pad (see HeadBatch); features_LD[b] has one row per token of dialogues[b]."""
    B, T = len(dialogues), max(len(d.ids) for d in dialogues) - 1
    D = features_LD[0].shape[-1]
    feature_BTD = torch.zeros(B, T, D, dtype=features_LD[0].dtype)
    target_BTD = torch.zeros_like(feature_BTD)
    token_BT = torch.full((B, T), pad_token)
    mask_BT = torch.zeros(B, T, dtype=torch.bool)
    for b, (dialogue, feature_LD) in enumerate(zip(dialogues, features_LD, strict=True)):
        length = len(dialogue.ids) - 1
        assert feature_LD.shape == (length + 1, D), (feature_LD.shape, length + 1, D)
        feature_BTD[b, :length] = feature_LD[:-1]
        target_BTD[b, :length] = feature_LD[1:]
        token_BT[b, :length] = torch.tensor(dialogue.ids[1:])
        mask_BT[b, max(dialogue.answer_start - 2, 0) : length - 1] = True
    return HeadBatch(feature_BTD, token_BT, target_BTD, mask_BT)

"""The target's states at every token of the training dialogues, on disk or computed each time.

A cache is a folder of append-only files, so that generation can write it as it goes:

    lengths.bin   int32, tokens of each dialogue
    ids.bin       int32, its tokens; a dialogue is recognised by them
    rows.bin      bfloat16 rows of width W, one per token (1.1 KB at W = 576)
    index.json    whose states they are; how far `fill` has come

A row is the head's features and, where those are other layers (EAGLE-3), the hidden state after the
final norm behind them: W = F, or F + D.

Axes: B dialogues, T positions, L tokens of one dialogue, W width of a row, D hidden size.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.training.data import Dialogue

ROWS, IDS, LENGTHS, INDEX = "rows.bin", "ids.bin", "lengths.bin", "index.json"


class StateSource(Protocol):
    """Where training gets the target's states from."""

    dialogues: list[Dialogue]

    def rows(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """States of these dialogues, [L, W] each, on the CPU or the target's device."""


@torch.inference_mode()
def target_rows(target: Target, dialogues: Sequence[Dialogue]) -> torch.Tensor:
    """Rows of several dialogues in one forward, [B, T, W]; those behind a dialogue mean nothing.

    Dialogues are padded on the right, so causal attention needs no mask.
    """
    longest = max(len(d.ids) for d in dialogues)
    ids_BT = torch.zeros(len(dialogues), longest, dtype=torch.int64)
    for row, dialogue in enumerate(dialogues):
        ids_BT[row, : len(dialogue.ids)] = torch.tensor(dialogue.ids)
    hidden_BTD, features_BTF = target.hidden_and_features(ids_BT, use_cache=False)
    if not target.feature_layers:
        return hidden_BTD
    return torch.cat([features_BTF, hidden_BTD], dim=-1)


def row_width(target: Target) -> int:
    """W, the width of target_rows."""
    return target.hidden_size * (1 + len(target.feature_layers))


def identity(target: Target, name: str) -> dict:
    """Whose states a cache holds: the target's name, the layers, and a digest of some weights."""
    digest = hashlib.sha256()
    for parameter in target.model.parameters():
        if parameter.is_meta:  # offloaded by device_map
            continue
        digest.update(parameter.flatten()[:16].float().cpu().numpy().tobytes())
    layers = list(target.feature_layers)
    return {"target": name, "layers": layers, "weights": digest.hexdigest()[:16]}


class Online:
    """States computed anew whenever they are asked for; nothing is stored."""

    def __init__(self, target: Target, dialogues: list[Dialogue]):
        self.target = target
        self.dialogues = dialogues

    def rows(self, indices: Sequence[int]) -> list[torch.Tensor]:
        chosen = [self.dialogues[i] for i in indices]
        # a clone, since tensors of inference mode cannot take part in training
        rows_BTW = target_rows(self.target, chosen).clone()
        return [rows_LW[: len(d.ids)] for rows_LW, d in zip(rows_BTW, chosen, strict=True)]


class FeatureWriter:
    """Appends dialogues and their rows to a cache, as generation makes them.

    Args:
        folder: of the cache; an existing one is continued.
        width: W.
        owner: see `identity`; a cache of another owner is refused.
    """

    def __init__(self, folder: str | Path, *, width: int, owner: dict):
        self.folder, self.width = Path(folder), width
        self.folder.mkdir(parents=True, exist_ok=True)
        _check_owner(self.folder, width, owner)
        index = _read_index(self.folder)
        if index is None:
            for name in (ROWS, IDS, LENGTHS):
                (self.folder / name).write_bytes(b"")
            _write_index(self.folder, {**owner, "width": width, "complete": True})
        elif not index["complete"]:
            raise BadInput(f"the feature cache {folder} was never filled; delete it")
        self._lengths = _stored_lengths(self.folder, width).tolist()
        self.truncate(len(self._lengths))  # what a killed run left half written

    @property
    def dialogues(self) -> int:
        """Dialogues written so far."""
        return len(self._lengths)

    def append(self, ids: list[int], rows_LW: torch.Tensor) -> None:
        """One dialogue; its length is written last, and only then does it count."""
        assert rows_LW.shape == (len(ids), self.width), (rows_LW.shape, len(ids), self.width)
        rows = rows_LW.to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
        for name, values in (
            (ROWS, rows),
            (IDS, np.array(ids, np.int32)),
            (LENGTHS, np.array([len(ids)], np.int32)),
        ):
            with (self.folder / name).open("ab") as file:
                file.write(values.tobytes())
        self._lengths.append(len(ids))

    def truncate(self, dialogues: int) -> None:
        """Keep the first `dialogues` only."""
        self._lengths = self._lengths[:dialogues]
        tokens = sum(self._lengths)
        for name, size in (
            (LENGTHS, 4 * len(self._lengths)),
            (IDS, 4 * tokens),
            (ROWS, 2 * tokens * self.width),
        ):
            with (self.folder / name).open("r+b") as file:
                file.truncate(size)


class FeatureCache:
    """Rows of a list of dialogues, read from a folder; what is missing `fill` computes.

    Args:
        folder: where the cache is, or will be. One that holds more dialogues than asked for, in the
            same order, serves as well.
        dialogues: what is asked for.
        width: W.
        owner: see `identity`; a cache of another owner is refused.
    """

    def __init__(self, folder: str | Path, dialogues: list[Dialogue], *, width: int, owner: dict):
        self.folder, self.dialogues = Path(folder), dialogues
        self.folder.mkdir(parents=True, exist_ok=True)
        _check_owner(self.folder, width, owner)
        index = _read_index(self.folder)
        if index is None:
            index = {**owner, "width": width, "batches_done": 0, "complete": False}
            lengths = np.array([len(d.ids) for d in dialogues], np.int32)
            lengths.tofile(self.folder / LENGTHS)
            np.concatenate([d.ids for d in dialogues]).astype(np.int32).tofile(self.folder / IDS)
            with (self.folder / ROWS).open("wb") as file:
                file.truncate(2 * int(lengths.sum()) * width)
            _write_index(self.folder, index)
        self._index = index
        lengths = _stored_lengths(self.folder, width)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._start = self._find(starts)
        # a fill is continued by the number of its batches, and those are of all its dialogues
        if not self.complete and [len(d.ids) for d in dialogues] != lengths.tolist():
            raise BadInput(f"the feature cache {folder} was being filled with other dialogues")
        self._rows = np.memmap(
            self.folder / ROWS,
            dtype=np.int16,
            mode="r" if self.complete else "r+",
            shape=(int(starts[-1]), width),
        )

    def rows(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """bfloat16 [L, W] each."""
        return [self[i] for i in indices]

    def __getitem__(self, i: int) -> torch.Tensor:
        start = self._start[i]
        rows = self._rows[start : start + len(self.dialogues[i].ids)]
        return torch.from_numpy(np.array(rows)).view(torch.bfloat16)

    @property
    def complete(self) -> bool:
        return self._index["complete"]

    def fill(self, target: Target, *, tokens_per_batch: int = 4096) -> None:
        """Compute what is missing, in batches of similar length; a killed run continues.

        Args:
            target: whose states they are.
            tokens_per_batch: padded tokens a forward; a killed run with another value begins anew.
        """
        if self.complete:
            return
        batches = self._batches(tokens_per_batch)
        same = self._index.get("tokens_per_batch") == tokens_per_batch
        done = self._index["batches_done"] * same
        left = sum(len(self.dialogues[i].ids) for batch in batches[done:] for i in batch)
        total = sum(len(d.ids) for d in self.dialogues)
        bar = tqdm(total=total, initial=total - left, unit="tok", desc="target features")
        for number, batch in enumerate(batches[done:], start=done + 1):
            rows_BTW = target_rows(target, [self.dialogues[i] for i in batch])
            rows = rows_BTW.to("cpu", torch.bfloat16).view(torch.int16).numpy()
            for b, i in enumerate(batch):
                length = len(self.dialogues[i].ids)
                self._rows[self._start[i] : self._start[i] + length] = rows[b, :length]
                bar.update(length)
            if number % 20 == 0 or number == len(batches):
                self._rows.flush()
                self._index |= {
                    "batches_done": number,
                    "tokens_per_batch": tokens_per_batch,
                    "complete": number == len(batches),
                }
                _write_index(self.folder, self._index)
        bar.close()

    def _find(self, starts: np.ndarray) -> list[int]:
        """Where each dialogue's rows begin: both lists are walked in order.

        A dialogue that was cut at a length is found by its beginning.
        """
        ids = np.fromfile(self.folder / IDS, np.int32)
        found, at = [], 0
        for number, dialogue in enumerate(self.dialogues):
            wanted = np.array(dialogue.ids, np.int32)
            while at < len(starts) - 1:
                stored = ids[starts[at] : starts[at + 1]][: len(wanted)]
                at += 1
                if np.array_equal(stored, wanted):
                    found.append(int(starts[at - 1]))
                    break
            else:
                raise BadInput(
                    f"the feature cache {self.folder} is of other data: it lacks dialogue "
                    f"{number + 1}; delete it or name another folder"
                )
        return found

    def _batches(self, tokens_per_batch: int) -> list[list[int]]:
        order = sorted(range(len(self.dialogues)), key=lambda i: len(self.dialogues[i].ids))
        batches: list[list[int]] = []
        for i in order:
            length = len(self.dialogues[i].ids)
            if batches and (len(batches[-1]) + 1) * length <= tokens_per_batch:
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches


class Joined:
    """Several sources as one, in order."""

    def __init__(self, sources: Sequence[StateSource]):
        self._place = [(source, i) for source in sources for i in range(len(source.dialogues))]
        self.dialogues = [source.dialogues[i] for source, i in self._place]

    def rows(self, indices: Sequence[int]) -> list[torch.Tensor]:
        return [source.rows([i])[0] for source, i in (self._place[n] for n in indices)]


def _check_owner(folder: Path, width: int, owner: dict) -> None:
    index = _read_index(folder)
    if index is None:
        return
    theirs = {key: index.get(key) for key in (*owner, "width")}
    if theirs != owner | {"width": width}:
        raise BadInput(
            f"the feature cache {folder} is of another target (there {theirs}, here "
            f"{owner | {'width': width}}); delete it or name another folder"
        )


def _stored_lengths(folder: Path, width: int) -> np.ndarray:
    """Tokens of each stored dialogue; files that hold less than they say are an error."""
    try:
        lengths = np.fromfile(folder / LENGTHS, np.int32)
        tokens = int(lengths.sum(dtype=np.int64))
        for name, size in ((IDS, 4 * tokens), (ROWS, 2 * tokens * width)):
            got = (folder / name).stat().st_size
            if got < size:
                raise OSError(f"{name} has {got} of {size} bytes")
    except OSError as error:
        raise BadInput(f"the feature cache {folder} is damaged ({error}); delete it") from error
    return lengths


def _read_index(folder: Path) -> dict | None:
    path = folder / INDEX
    return json.loads(path.read_text()) if path.is_file() else None


def _write_index(folder: Path, index: dict) -> None:
    temporary = folder / f"{INDEX}.tmp"
    temporary.write_text(json.dumps(index))
    temporary.replace(folder / INDEX)

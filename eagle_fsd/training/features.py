"""The target's states at every token of the training dialogues: computed when first asked for, and
kept in a file.

A row is what the head reads of a token and, where that is of other layers (EAGLE-3), the hidden
state after the final norm behind it: W = F, or F + D. The file holds a byte for every dialogue, 1
where its rows are there, and then bfloat16 rows, one a token (1.1 KB at W = 576). The byte is
written last: a killed run leaves nothing to mend, and several runs or processes may share a file.

Measured on SmolLM2-135M, one thread, 62,397 tokens: computing takes 1.82 ms of CPU a token, reading
0.005, and a training step 1.82 (losses over 16 K tokens) to 3.83 (over all 49 K). Computing them
anew in every epoch would add half or all of a step.

Axes: B dialogues, T positions, L tokens of one dialogue, W width of a row, D hidden size.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import weights_digest
from eagle_fsd.training.data import Dialogue, digest

ROWS, INDEX = "rows.bin", "index.json"


@torch.inference_mode()
def target_rows(target: Target, dialogues: Sequence[Dialogue]) -> list[torch.Tensor]:
    """Rows of several dialogues by one forward, [L, W] each.

    Dialogues are padded on the right, so causal attention needs no mask.
    """
    longest = max(len(d.ids) for d in dialogues)
    ids_BT = torch.zeros(len(dialogues), longest, dtype=torch.int64)
    for row, dialogue in enumerate(dialogues):
        ids_BT[row, : len(dialogue.ids)] = torch.tensor(dialogue.ids)
    rows_BTW, features_BTF = target.hidden_and_features(ids_BT, use_cache=False)
    if target.feature_layers:
        rows_BTW = torch.cat([features_BTF, rows_BTW], dim=-1)
    return [rows_LW[: len(d.ids)] for rows_LW, d in zip(rows_BTW, dialogues, strict=True)]


class TargetStates:
    """The states of a list of dialogues.

    Args:
        target: whose states they are.
        dialogues: in the order by which they are asked for.
        folder: where rows are kept; None computes them each time.

    Raises:
        BadInput: the folder cannot be written to, or holds rows of another target or other data.
    """

    def __init__(self, target: Target, dialogues: list[Dialogue], folder: Path | None = None):
        self.target = target
        self.dialogues = dialogues
        self.width = target.hidden_size * (1 + len(target.feature_layers))
        self._file = None
        if folder is not None:
            self._ends = torch.tensor([len(d.ids) for d in dialogues]).cumsum(0).tolist()
            self._file = self._open(folder)

    def rows(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """States of these dialogues, [L, W] each: bfloat16 on the CPU where they are kept."""
        if self._file is None:
            rows = target_rows(self.target, [self.dialogues[i] for i in indices])
            # clones, since tensors of inference mode cannot take part in training
            return [rows_LW.clone() for rows_LW in rows]
        missing = [i for i in indices if os.pread(self._file.fileno(), 1, i) != b"\1"]
        if missing:
            self._write(missing, target_rows(self.target, [self.dialogues[i] for i in missing]))
        return [self._read(i) for i in indices]

    def _open(self, folder: Path):
        index = {
            "weights": weights_digest(self.target.model),
            "layers": list(self.target.feature_layers),
            "dialogues": digest(self.dialogues),
        }
        size = len(self.dialogues) + 2 * self.width * self._ends[-1]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / INDEX).is_file():
                with (folder / ROWS).open("wb") as file:
                    file.truncate(size)  # sparse: what is not written takes no room
                write_json(folder / INDEX, index)
            theirs = json.loads((folder / INDEX).read_text())
            if theirs != index or (folder / ROWS).stat().st_size != size:
                raise BadInput(
                    f"--features {folder} holds states of another target or of other data (there "
                    f"{theirs}, here {index}): delete it or name another folder"
                )
            return (folder / ROWS).open("r+b", buffering=0)
        except OSError as error:
            raise BadInput(f"cannot keep --features in {folder} ({error})") from error

    def _place(self, i: int) -> tuple[int, int]:
        """Offset and size in the file, in bytes."""
        length = len(self.dialogues[i].ids)
        start = len(self.dialogues) + 2 * self.width * (self._ends[i] - length)
        return start, 2 * self.width * length

    def _read(self, i: int) -> torch.Tensor:
        offset, size = self._place(i)
        data = bytearray(os.pread(self._file.fileno(), size, offset))
        return torch.frombuffer(data, dtype=torch.bfloat16).view(-1, self.width)

    def _write(self, indices: list[int], rows: list[torch.Tensor]) -> None:
        number = self._file.fileno()
        try:
            for i, rows_LW in zip(indices, rows, strict=True):
                data = rows_LW.to("cpu", torch.bfloat16).contiguous().view(torch.int16)
                written = os.pwrite(number, data.numpy().tobytes(), self._place(i)[0])
                if written < self._place(i)[1]:
                    raise OSError("no room left")
            os.fdatasync(number)
            for i in indices:
                os.pwrite(number, b"\1", i)
        except OSError as error:
            raise BadInput(
                f"cannot keep features in {self._file.name} ({error}): make room and run the same "
                "command again, or compute them each time by --features online"
            ) from error

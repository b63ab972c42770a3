"""The target's states at every token of the training dialogues: as it had them when it wrote, or
computed when first asked for. They are kept, a file a dialogue, by what target and tokens they are
of; not by the code that computes them.

So nothing is computed twice, when data is added or other runs and processes share the folder, and a
killed run leaves nothing to mend. A row is what the head reads of a token and, where that is of
other layers (EAGLE-3), the hidden state after the final norm behind it: W = F, or F + D. What it
saves is measured in results/speed_float32.

Axes: B dialogues, T positions, L tokens of one, W width of a row, D hidden size, F features.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.runs.provenance import digest


class TargetStates:
    """A target's states of any texts, kept in a folder, or computed each time if it is "". Digests
    of the target's weights tell them from another target's."""

    def __init__(self, target: Target, folder: str | Path = "", digests: object = None):
        self.target = target
        kind = "-".join(map(str, (target.dtype, *target.feature_layers)))
        self._folder = Path(folder, digest(digests), kind) if folder else None
        D = target.hidden_size
        self._features = D * len(target.feature_layers) or D
        self._width = self._features + (D if target.feature_layers else 0)

    def keep(self, ids: list[int], state_TD: torch.Tensor) -> None:
        """Keep states after the final norm, of all tokens but the last, whose states nothing is
        learnt from."""
        self._write(ids, pad(state_TD, (0, 0, 0, len(ids) - len(state_TD))))

    def of(self, texts: Sequence[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Features [L, F] and hidden states after the final norm [L, D] of these token ids.

        On the CPU and in bfloat16 where they are kept, else as the target gives them.
        """
        if self._folder is None:
            return self._parts(self._compute(texts))
        missing = [ids for ids in texts if not self._path(ids).is_file()]
        for ids, row_LW in zip(missing, self._compute(missing), strict=True):
            self._write(ids, row_LW)
        return self._parts([self._read(self._path(ids)) for ids in texts])

    def kept(self, texts: Sequence[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
        """As `of`, but None where one is not kept. Computes nothing: any thread may ask."""
        paths = [] if self._folder is None else [self._path(ids) for ids in texts]
        if not paths or not all(path.is_file() for path in paths):
            return None
        return self._parts([self._read(path) for path in paths])

    def check_room(self, texts: Sequence[list[int]]) -> None:
        """BadInput where the disk has less room than the states of these texts, those that are kept
        already left out, will take."""
        if self._folder is None:
            return
        there = next(path for path in (self._folder, *self._folder.parents) if path.exists())
        free, each = shutil.disk_usage(there).free, 2 * self._width  # bytes of a token in bfloat16
        if each * sum(map(len, texts)) <= free:
            return  # whatever is kept: a look for each file would take its time
        lengths = {self._path(ids): len(ids) for ids in texts}
        tokens = sum(length for path, length in lengths.items() if not path.is_file())
        if each * tokens > free:
            raise BadInput(
                f"--features in {self._folder.parent.parent} would take {each * tokens / 1e9:.3g} "
                f"GB more ({tokens} tokens x {each} bytes) and {free / 1e9:.3g} GB are free there: "
                "name a folder on another disk, compute states each time (--features online), or "
                "train on fewer dialogues (--answer_tokens, --steps)"
            )

    def _parts(self, rows: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        D = self.target.hidden_size
        return [(row_LW[:, : self._features], row_LW[:, -D:]) for row_LW in rows]

    def _read(self, path: Path) -> torch.Tensor:
        try:
            return load_file(path)["rows"]
        except (OSError, SafetensorError) as error:
            raise BadInput(
                f"{path} is cut short or damaged ({error}): delete it, its states are computed "
                "again, and run the command again"
            ) from error

    def _path(self, ids: list[int]) -> Path:
        return self._folder / f"{digest(ids)}.safetensors"

    def _write(self, ids: list[int], row_LW: torch.Tensor) -> None:
        """In one rename, so that a file that is there is whole."""
        path = self._path(ids)
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(save({"rows": row_LW.to("cpu", torch.bfloat16).contiguous()}))
            temporary.replace(path)
        except OSError as error:
            raise BadInput(
                f"cannot keep --features in {path.parent} ({error}): make room or name another "
                "folder, and run the command again; or compute them each time: --features online"
            ) from error

    @torch.no_grad()
    def _compute(self, texts: Sequence[list[int]]) -> list[torch.Tensor]:
        """Rows of several texts by one forward, [L, W] each."""
        if not texts:
            return []
        # padded on the right, so causal attention needs no mask
        ids_BT = pad_sequence([torch.tensor(ids) for ids in texts], batch_first=True)
        row_BTW, feature_BTF = self.target.forward(ids_BT)
        if self.target.feature_layers:
            row_BTW = torch.cat([feature_BTF, row_BTW], dim=-1)
        return [row_LW[: len(ids)] for row_LW, ids in zip(row_BTW, texts, strict=True)]

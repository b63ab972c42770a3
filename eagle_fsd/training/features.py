"""The target's states at every token of the training dialogues: computed when first asked for, and
kept in a file.

A row is what the head reads of a token and, where that is of other layers (EAGLE-3), the hidden
state after the final norm behind it: W = F, or F + D. The file holds bfloat16 rows, one a token
(1.1 KB at W = 576), and then a byte for every dialogue, 1 where its rows are there. The byte is
written last: a killed run leaves nothing to mend, and several runs or processes may share a file.
Its name says of which target and data it is.

Measured on SmolLM2-135M, one thread, 62,397 tokens: computing takes 1.82 ms of CPU a token, reading
0.005, and a training step 1.82 (losses over 16 K tokens) to 3.83 (over all 49 K). Computing them
anew in every epoch would add half or all of a step.

Axes: B and N dialogues, T positions, L tokens of one dialogue, X tokens of all, W width of a row,
D hidden size, F features.
"""

import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.runs.provenance import weights_digest
from eagle_fsd.training.data import Dialogue, digest


class TargetStates:
    """The states of a list of dialogues.

    Args:
        target: whose states they are.
        dialogues: in the order by which they are asked for.
        folder: where rows are kept; None computes them each time.

    Raises:
        BadInput: the folder cannot be written to, or has no room for all rows.
    """

    def __init__(self, target: Target, dialogues: Sequence[Dialogue], folder: Path | None = None):
        self.target = target
        self.dialogues = dialogues
        self._kept = folder is not None
        if folder is not None:
            ends = list(accumulate(len(d.ids) for d in dialogues))
            self._spans = [slice(*span) for span in zip([0, *ends], ends, strict=False)]
            self._open(folder, tokens=ends[-1])

    def of(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Features [L, F] and hidden states after the final norm [L, D] of these dialogues.

        On the CPU and in bfloat16 where they are kept, else as the target gives them.
        """
        if not self._kept:
            rows = self._compute(indices)
        else:
            missing = [i for i in indices if not self._there_N[i]]
            for i, row_LW in zip(missing, self._compute(missing), strict=True):
                self._row_XW[self._spans[i]] = row_LW
            if missing:
                self._map.flush()
                self._there_N[missing] = True
            rows = [self._row_XW[self._spans[i]] for i in indices]
        D = self.target.hidden_size
        F = D * len(self.target.feature_layers) or D
        return [(row_LW[:, :F], row_LW[:, -D:]) for row_LW in rows]

    def _open(self, folder: Path, *, tokens: int) -> None:
        layers = self.target.feature_layers
        width = self.target.hidden_size * (1 + len(layers))
        rows, size = 2 * width * tokens, 2 * width * tokens + len(self.dialogues)
        names = (weights_digest(self.target.model), *map(str, layers), digest(self.dialogues))
        path = folder / "-".join(names)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                # a map of a file without room behind it ends the process by a signal
                os.posix_fallocate(file.fileno(), 0, size)
            self._map = np.memmap(path, np.uint8, "r+")
        except OSError as error:
            raise BadInput(
                f"cannot keep {size / 1e9:.1f} GB of --features in {folder} ({error}): make room, "
                "or compute them each time by --features online"
            ) from error
        bytes_X = torch.from_numpy(self._map)
        self._row_XW = bytes_X[:rows].view(torch.bfloat16).view(tokens, width)
        self._there_N = bytes_X[rows:].view(torch.bool)

    @torch.no_grad()
    def _compute(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Rows of several dialogues by one forward, [L, W] each.

        Dialogues are padded on the right, so causal attention needs no mask.
        """
        if not indices:
            return []
        dialogues = [self.dialogues[i] for i in indices]
        ids = [torch.tensor(d.ids) for d in dialogues]
        ids_BT = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        row_BTW, feature_BTF = self.target.hidden_and_features(ids_BT, use_cache=False)
        if self.target.feature_layers:
            row_BTW = torch.cat([feature_BTF, row_BTW], dim=-1)
        return [row_LW[: len(d.ids)] for row_LW, d in zip(row_BTW, dialogues, strict=True)]

"""The target's features of the training dialogues, computed once and kept on disk.

One flat file of bfloat16 rows, one row per token (1.1 KB a token at hidden size 576), written in
batches of similar length; a killed run continues at the batch where it stopped.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from eagle_fsd.training.data import Dialogue


class FeatureCache:
    """Features of a list of dialogues in a folder: features.bin and index.json.

    Args:
        folder: where the cache is, or will be.
        dialogues: what it is of; a cache of other dialogues is refused.
        hidden_size: width D of the features.
        target_name: recorded, and compared on reuse.
    """

    def __init__(
        self, folder: str | Path, dialogues: list[Dialogue], *, hidden_size: int, target_name: str
    ):
        self.folder = Path(folder)
        self.dialogues = dialogues
        self.hidden_size = hidden_size
        lengths = [len(d.ids) for d in dialogues]
        self._offset = np.concatenate([[0], np.cumsum(lengths)])
        digest = hashlib.sha256(json.dumps([d.ids for d in dialogues]).encode()).hexdigest()
        self._identity = {"target": target_name, "dialogues": digest, "hidden_size": hidden_size}
        self.folder.mkdir(parents=True, exist_ok=True)
        index = self._read_index()
        if index is not None and {k: index[k] for k in self._identity} != self._identity:
            raise ValueError(
                f"the feature cache {folder} is of other data or another target "
                f"({index['target']}); delete it or name another folder"
            )
        self._progress = index or {"batches_done": 0, "tokens_per_batch": 0}
        path, size = self.folder / "features.bin", int(self._offset[-1]) * hidden_size * 2
        if index is not None and (not path.is_file() or path.stat().st_size != size):
            raise ValueError(
                f"the feature cache {folder} is damaged: features.bin should hold {size} bytes; "
                "delete the folder"
            )
        self._rows = np.memmap(
            self.folder / "features.bin",
            dtype=np.int16,
            mode="r+" if index else "w+",
            shape=(int(self._offset[-1]), hidden_size),
        )

    def __getitem__(self, i: int) -> torch.Tensor:
        """Features of dialogue i, bfloat16 [L, D]."""
        rows = self._rows[self._offset[i] : self._offset[i + 1]]
        return torch.from_numpy(np.array(rows)).view(torch.bfloat16)

    @torch.inference_mode()
    def fill(self, model: PreTrainedModel, *, tokens_per_batch: int = 4096) -> None:
        """Compute what is missing. Positions are right-padded, so causal attention needs no mask.

        Args:
            model: the target; its features are the hidden states after the final norm.
            tokens_per_batch: padded tokens a forward; a killed run with another value begins anew.
        """
        batches = self._batches(tokens_per_batch)
        same = self._progress.get("tokens_per_batch") == tokens_per_batch
        complete = self._progress.get("complete", False)
        done = len(batches) if complete else self._progress["batches_done"] * same
        device = model.get_input_embeddings().weight.device
        total = int(self._offset[-1])
        left = sum(len(self.dialogues[i].ids) for batch in batches[done:] for i in batch)
        bar = tqdm(total=total, initial=total - left, unit="tok", desc="target features")
        for number, batch in enumerate(batches[done:], start=done + 1):
            longest = max(len(self.dialogues[i].ids) for i in batch)
            ids_BT = torch.zeros(len(batch), longest, dtype=torch.int64)
            for row, i in enumerate(batch):
                ids_BT[row, : len(self.dialogues[i].ids)] = torch.tensor(self.dialogues[i].ids)
            out = model.base_model(input_ids=ids_BT.to(device), use_cache=False)
            features_BTD = out.last_hidden_state.to("cpu", torch.bfloat16).view(torch.int16)
            for row, i in enumerate(batch):
                length = len(self.dialogues[i].ids)
                start = self._offset[i]
                self._rows[start : start + length] = features_BTD[row, :length].numpy()
                bar.update(length)
            if number % 20 == 0 or number == len(batches):
                self._rows.flush()
                self._write_index(
                    batches_done=number,
                    tokens_per_batch=tokens_per_batch,
                    complete=number == len(batches),
                )
        bar.close()

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

    def _read_index(self) -> dict | None:
        path = self.folder / "index.json"
        return json.loads(path.read_text()) if path.is_file() else None

    def _write_index(self, **progress: int) -> None:
        self._progress = progress
        temporary = self.folder / "index.json.tmp"
        temporary.write_text(json.dumps({**self._identity, **progress}))
        temporary.replace(self.folder / "index.json")

"""The tensors of a checkpoint, in one file or in shards that an index names: safetensors, or
pickles of tensors. Pickles are read with weights_only=True, and nothing else of them is ever run.
"""

import json
import pickle
import struct
import zipfile
from collections.abc import Set
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)

from eagle_fsd.config import BadInput

# what comes of files that are cut off or garbled, and of values of a wrong type or size
UNREADABLE = (SafetensorError, pickle.UnpicklingError, struct.error, StrictDataclassError)
UNREADABLE += (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError)
UNREADABLE += (RuntimeError, TypeError, ValueError)
# the first that is there is read, as transformers does
NAMES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)


class Checkpoint:
    """Of a folder, or of a hub id whose files are fetched as far as they are needed; shards are
    opened when one of their tensors is asked for. BadInput, here and in reading, names the file
    that is absent or cannot be read.

    Attributes:
        files: the names of those that hold the tensors, with that of the index.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        name = next((name for name in NAMES if self._find(name)), "")
        if not name:
            raise BadInput(
                f"no {SAFE_WEIGHTS_NAME} in {path}, nor an index of its shards, nor a "
                f"{WEIGHTS_NAME}: name a folder that holds weights"
            )
        self.files, self._opened = [name], {}
        content = self._open(name)
        if name.endswith(".json"):
            self._file_of = content
            self.files += sorted({*content.values()})
        else:
            self._file_of = dict.fromkeys(content.keys(), name)

    @property
    def keys(self) -> Set[str]:
        return self._file_of.keys()

    def tensor(self, key: str) -> torch.Tensor:
        """Mapped from the file, so that what is not looked at is not read."""
        name = self._file_of[key]
        opened = self._open(name)
        try:
            return opened[key] if isinstance(opened, dict) else opened.get_tensor(key)
        except UNREADABLE as error:
            raise self._unreadable(name, error) from error

    def _find(self, name: str) -> Path | None:
        file = cached_file(self.path, name, _raise_exceptions_for_missing_entries=False)
        return Path(file) if file else None

    def _open(self, name: str) -> dict | safe_open:
        """Tensors by name, or of an index the names of their files."""
        if name in self._opened:
            return self._opened[name]
        try:
            file = self._find(name)
            if file.suffix == ".json":
                files = json.loads(file.read_text())["weight_map"]
                content = {key: str(name) for key, name in files.items()}
            elif file.suffix != ".bin":
                content = safe_open(file, "pt")
            else:
                # a pickle from outside may run code; weights_only reads tensors and nothing else
                mapped = zipfile.is_zipfile(file)
                content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
                if not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
                    raise TypeError("it must map names to tensors")
        except UNREADABLE as error:
            raise self._unreadable(name, error) from error
        self._opened[name] = content
        return content

    def _unreadable(self, name: str, error: Exception) -> BadInput:
        broken = (
            "it is cut off, a pointer of Git LFS, of another form than its name says, or a pickle "
            "of more than tensors, which could run code and is never loaded"
        )
        there = broken if self._find(name) else "it is absent"
        # not what torch says, whose advice would be to run the pickle's code
        return BadInput(
            f"cannot read {Path(self.path, name)}: {there} ({type(error).__name__}): fetch it anew"
        )


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors are equal, in the dtype of one of them: one may be the other, rounded."""
    if one.shape != other.shape:
        return False
    return torch.equal(one.to(other.dtype), other) or torch.equal(one, other.to(one.dtype))

"""The tensors of a checkpoint, in one file or in shards that an index names: safetensors, or
pickles of tensors. Pickles are read with weights_only=True, and nothing else of them is ever run.
"""

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Sequence, Set
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers.utils import (
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)

from eagle_fsd.config import BadInput, one_line

# what comes of files that are cut off or garbled, and of values of a wrong type or size
UNREADABLE = (SafetensorError, pickle.UnpicklingError, struct.error, StrictDataclassError)
UNREADABLE += (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError)
UNREADABLE += (RuntimeError, TypeError, ValueError)
# the first that is there is read, as transformers does
NAMES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)


def model_folder(
    name: str | Path, patterns: Sequence[str] = (CONFIG_NAME,), *, others: str = ""
) -> Path:
    """A local folder, or what a hub id has of these files, in the hub's cache, where a copy stands
    in for a hub that cannot be reached; BadInput if it is neither, with what `others` may be named.
    The hub is asked once: transformers asks it six times for a file, for half a minute."""
    if os.path.isdir(name):
        return Path(name)
    give = f"give a folder with its files{others}"
    try:
        return Path(snapshot_download(str(name), allow_patterns=list(patterns)))
    except HFValidationError as error:
        raise BadInput(f"'{name}' is neither a folder here nor a hub id: {give}") from error
    except (OSError, ValueError) as error:  # as all of the hub's errors are
        raise BadInput(
            f"'{name}' is no folder here, and the hub cannot be reached or does not have it "
            f"({one_line(error.__cause__ or error)}): {give}, or set HF_HOME to where a copy of it "
            "was downloaded, which HF_HUB_OFFLINE=1 takes without asking the hub"
        ) from error


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

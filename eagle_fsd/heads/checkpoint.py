"""The tensors of a checkpoint, in one file or in shards that an index names: safetensors, or
pickles of tensors. Pickles are read with weights_only=True, and nothing else of them is ever run.
"""

import json
import pickle
import struct
import zipfile
from collections.abc import Set
from functools import cached_property, partial
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

from eagle_fsd.config import BadInput, one_line

# what comes of files that are cut off or garbled, and of values of a wrong type or size
UNREADABLE = (SafetensorError, pickle.UnpicklingError, struct.error, StrictDataclassError)
UNREADABLE += (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, OSError)
UNREADABLE += (RuntimeError, TypeError, ValueError)
# the first that is there is read, as transformers does
NAMES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
# what files of another form begin with
FORMS = {
    b"version https://git-lfs": "a pointer of Git LFS, which git lfs pull exchanges for the file",
    b"GGUF": "a GGUF file",
    b"PK\x03\x04": f"a pickle of torch.save: call it {WEIGHTS_NAME}",
    b"\x80": f"a pickle of an older torch.save: call it {WEIGHTS_NAME}",
}


class Checkpoint:
    """Its files are opened when one of their tensors is asked for.

    Args:
        path: a folder, or a hub id whose files are fetched as far as they are needed.

    Attributes:
        files: the names of those that hold the tensors, with that of the index.

    Raises:
        BadInput: here and in reading, names the file that is absent, broken or of another form.
    """

    def __init__(self, path: str | Path):
        self.path = str(path)
        find = partial(cached_file, self.path, _raise_exceptions_for_missing_entries=False)
        found = ((name, find(name)) for name in NAMES)
        name, file = next(((name, file) for name, file in found if file), ("", ""))
        if not name:
            held = sorted(p.name for p in Path(path).glob("*.*") if p.suffix in HOLDING)
            raise BadInput(
                f"no {SAFE_WEIGHTS_NAME} in {path}, nor an index of its shards, nor a "
                f"{WEIGHTS_NAME}: of weights it holds {', '.join(held) or 'nothing'}"
            )
        self.files = [name]
        self._opened: dict[str, dict | safe_open] = {}
        if name in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
            try:
                self._file_of = {**json.loads(Path(file).read_text())["weight_map"]}
                self.files += sorted({*self._file_of.values()})
            except UNREADABLE as error:
                raise BadInput(f"{file} is no index of weights ({one_line(error)})") from error

    @cached_property
    def _file_of(self) -> dict[str, str]:
        """By tensor; of an index what it says."""
        return dict.fromkeys(self._open(self.files[0]).keys(), self.files[0])

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
            raise BadInput(f"{Path(self.path, name)} holds no tensor {key!r}") from error

    def _open(self, name: str) -> "dict | safe_open":
        if name not in self._opened:
            file = Path(self.path, name)
            try:
                file = Path(cached_file(self.path, name))
                self._opened[name] = _tensors(file)
            except UNREADABLE as error:
                raise BadInput(f"cannot read {file}: it is {_fault(file, error)}") from error
        return self._opened[name]


HOLDING = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")  # files of weights, of any form


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors are equal, in the dtype of one of them: one may be the other, rounded."""
    if one.shape != other.shape:
        return False
    return torch.equal(one.to(other.dtype), other) or torch.equal(one, other.to(one.dtype))


def _tensors(file: Path) -> "dict | safe_open":
    if file.suffix != ".bin":
        return safe_open(file, "pt")
    # a pickle from outside may run code; weights_only reads tensors and nothing else
    mapped = zipfile.is_zipfile(file)
    tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if all(isinstance(k, str) and isinstance(t, torch.Tensor) for k, t in tensors.items()):
        return tensors
    raise TypeError("it must map names to tensors")


def _fault(file: Path, error: Exception) -> str:
    """What keeps a file from being read: its absence, its form or its damage."""
    if not file.is_file():
        return "absent"
    with file.open("rb") as opened:
        begin = opened.read(32)
    pickled = file.suffix == ".bin"
    if pickled and begin[8:9] == b"{":
        return f"a safetensors file: call it {SAFE_WEIGHTS_NAME}"
    for start, form in FORMS.items():
        if begin.startswith(start) and not (pickled and "pickle" in form):
            return form
    # torch's own advice would be to run the pickle's code
    hint = ", or a pickle of more than tensors, which could run code and is never loaded"
    return f"cut off or broken{hint if pickled else ''} ({type(error).__name__})"

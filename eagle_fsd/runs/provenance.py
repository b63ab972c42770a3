"""What a result was made with: command, commit, versions, machine."""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import TypeVar

from eagle_fsd.config import BadInput

PACKAGE = Path(__file__).parent.parent
ROOT = PACKAGE.parent  # the checkout, or where pip has installed the package
Json = TypeVar("Json", str, list, dict, object)
HASHED = 2**26  # bytes, read in a twentieth of a second; a large model's would take many seconds
CHANGED = ", last changed"
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "fschat", "gguf")


def describe_run(device: str) -> dict:
    """A JSON-able record to be written beside every output."""
    # a web address without what may hold a key: user, password, query, fragment
    user, rest = r"(?:[^\s?#\"']*@)?", r"(?:[?#][^\s\"']*)?"
    address = re.compile(rf"(?i)\b(https?://){user}([^\s?#\"']*){rest}")
    words = [address.sub(r"\1\2", word) for word in without_checkout(sys.argv)]
    return {
        "command": shlex.join(["python", *words]),
        "commit": _commit(),
        "library": source_digest(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "device": _device_name(device),
    }


def without_checkout(value: Json) -> Json:
    """The value as JSON gives it back, the checkout's path cut off texts that name a place in it,
    so that it can be published; a path that only begins or ends alike stays."""
    root, end = rf"(?<![^\s\"'=:,]){re.escape(str(ROOT))}", r"(?![^\s\"'\\:,])"
    text = re.sub(f"{root}{os.sep}*{end}", ".", json.dumps(value, ensure_ascii=False))
    return json.loads(re.sub(f"{root}{os.sep}+", "", text))


def digest(value: object) -> str:
    """16 hex digits of a JSON-able value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def file_digests(label: str, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """What tells two states of a folder's files apart, of those of the names that are there.

    Returns:
        LABEL/NAME -> 16 hex digits of the contents; of a file of more than HASHED bytes its size,
        and beside it, under LABEL/NAME + CHANGED, the time of its last change. Of a snapshot in the
        hub's cache LABEL/commit alone.
    """
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return {f"{label}/commit": folder.name}
    digests = {}
    for name in names:
        path, key = folder / name, f"{label}/{name}"
        try:
            if not path.is_file():
                continue
            status = path.stat()
            if status.st_size > HASHED:
                digests[key] = f"{status.st_size} bytes"
                digests[key + CHANGED] = f"{datetime.fromtimestamp(status.st_mtime, UTC)}"
                continue
            digests[key] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise BadInput(f"cannot read {path} ({error})") from error
    return digests


def source_digest() -> str:
    """Of this library's source as it lies on the disk, committed or not."""
    files = sorted(PACKAGE.rglob("[!.]*.py"))
    return digest([[str(path.relative_to(PACKAGE)), path.read_text("utf-8")] for path in files])


def _device_name(device: str) -> str:
    """The accelerator's name, or for "cpu" the processor's with the threads in use."""
    import torch  # not for options, which are parsed without it

    if device.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    if device == "auto":
        names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
        return ", ".join(names) or "no accelerator"
    name, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _commit() -> str:
    """The checkout's commit, with "+" where it has uncommitted changes. Of an installed library the
    commit of the git URL that pip was given; "unknown" of anything else."""
    if not (ROOT / ".git").exists():  # nor asked of a repository around the folder: it is another
        try:
            installed = distribution("eagle_fsd")
        except PackageNotFoundError:
            return "unknown"
        place = json.loads(installed.read_text("direct_url.json") or "{}")
        here = Path(installed.locate_file(PACKAGE.name)).resolve() == PACKAGE.resolve()
        return place.get("vcs_info", {}).get("commit_id", "unknown")[:7] if here else "unknown"
    git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:  # there is no git
        return "unknown"

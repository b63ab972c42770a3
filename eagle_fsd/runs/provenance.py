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
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

PACKAGE = Path(__file__).parent.parent
ROOT = PACKAGE.parent  # the checkout, or where pip has installed the package
Json = TypeVar("Json", str, list, dict, object)
# bytes; of a file of up to 64 MiB all are hashed, of a larger one blocks spread evenly over it: a
# twentieth of a second a file, where all of a large model would take many
BLOCK, BLOCKS = 2**18, 2**8
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "fschat", "gguf")


def describe_run(device: str) -> dict:
    """A JSON-able record to be written beside every output. Its commit ends in "+" where the
    checkout has uncommitted changes; its device is the accelerator's name, or of "cpu" the
    processor's with the threads in use."""
    import torch  # not for options, which are parsed without it

    commit = ""
    if (ROOT / ".git").exists():  # else git would tell of a repository around the folder
        git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
        with suppress(OSError):  # there is no git
            commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    if device == "cpu" or not torch.cuda.is_available():
        name, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
        if cpuinfo.is_file():
            models = re.findall(r"model name\s*: (.*)", cpuinfo.read_text())
            name = models[0] if models else name
        threads = torch.get_num_threads()
        many = "thread" if threads == 1 else "threads"
        name = f"{name}, {os.cpu_count()} cores, {threads} {many}"
    elif device == "auto":
        name = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    else:
        name = torch.cuda.get_device_name(device)
    backends = {}  # what torch was told of CUDA
    if device != "cpu" and torch.cuda.is_available():
        products = torch.backends.cuda.matmul
        backends = {
            "cudnn_attention": torch.backends.cuda.cudnn_sdp_enabled(),
            "tf32": products.allow_tf32,
            "sums_in_16_bits": {
                "bfloat16": products.allow_bf16_reduced_precision_reduction,
                "float16": products.allow_fp16_reduced_precision_reduction,
            },
        }
    return {
        "command": shlex.join(["python", *without_checkout(sys.argv)]),
        "commit": commit or "unknown",
        "library": source_digest(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "device": name,
        **({"backends": backends} if backends else {}),
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
    """LABEL/NAME -> 16 hex digits of the size and what is read of the contents, of those names that
    are there, so that a copy on another machine is the same. Of a snapshot in the hub's cache
    LABEL/commit alone."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return {f"{label}/commit": folder.name}
    digests = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        size, read = path.stat().st_size, hashlib.sha256()
        step = max(BLOCK, size // BLOCKS)
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(start)
                read.update(file.read(BLOCK))
        if step > BLOCK:
            read.update(f"{size}".encode())
        digests[f"{label}/{name}"] = read.hexdigest()[:16]
    return digests


def source_digest() -> str:
    """Of this library's source as it lies on the disk, committed or not."""
    files = sorted(PACKAGE.rglob("[!.]*.py"))
    return digest([[str(path.relative_to(PACKAGE)), path.read_text("utf-8")] for path in files])

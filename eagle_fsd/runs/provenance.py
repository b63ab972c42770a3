"""What a result was made with: command, commit, versions, machine."""

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).parent.parent.parent  # the checkout
Json = TypeVar("Json", str, list, dict, object)
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "fschat", "gguf")


def describe_run(device: str) -> dict:
    """A JSON-able record to be written beside every output."""
    return {
        "command": shlex.join(["python", *without_checkout(sys.argv)]),
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "device": _device_name(device),
    }


def without_checkout(value: Json) -> Json:
    """The value as JSON gives it back, the checkout's path cut off texts that name a place in it,
    so that it can be published; a path that only begins or ends alike stays."""
    root, end = rf"(?<![^\s\"'=:,]){re.escape(str(ROOT))}", r"(?![^\s\"'\\:,])"
    text = re.sub(f"{root}{os.sep}*{end}", ".", json.dumps(value, ensure_ascii=False))
    return json.loads(re.sub(f"{root}{os.sep}+", "", text))


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


def weights_digest(module: "torch.nn.Module") -> str:
    """A digest of names, shapes and 64 numbers of each parameter and buffer."""
    parts = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if value.is_meta:  # offloaded by device_map
            continue
        flat = value.detach().flatten()
        step = max(1, flat.shape[0] // 64)
        parts.update(f"{name} {tuple(value.shape)}".encode())
        parts.update(flat[::step].double().cpu().numpy().tobytes())
    return parts.hexdigest()[:16]


def _commit() -> str:
    """The checkout's commit, with "+" where it has uncommitted changes; "unknown" outside git."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:  # there is no git
        return "unknown"

"""What a result was made with: command, commit, versions, machine."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "accelerate", "numpy", "fschat")


def describe_run(options: dict) -> dict:
    """A JSON-able record to be written beside every output.

    The command is given without folders of this machine.
    """
    return {
        "command": " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "options": options,
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES},
        "device": describe_device(),
    }


def describe_device() -> str:
    """The accelerator's name, or the processor's with the threads in use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _commit() -> str:
    """The checkout's commit, with "+" where it has uncommitted changes; "unknown" outside git."""
    folder = Path(__file__).parent
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        status = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")

"""Runs a Python program in a process of its own and says whether it reached its end.

Against accidents of a model's answer: endless loops, memory, processes, the network, files. What
the process may do is set in cell.py. It starts in an empty temporary folder with almost no
environment, and its whole process group is killed when its time is over.
"""

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.config import BadInput

CELL = Path(__file__).with_name("confined.py")
SECONDS = 10.0  # of wall clock; the slowest of HumanEval's own solutions takes 0.2
MEMORY_BYTES = 1 << 30
RESULT_BYTES = 1 << 16


@dataclass(frozen=True)
class Execution:
    """How a program ended.

    Attributes:
        passed: its last line was reached.
        reason: "passed", "timeout", the name of the exception that ended it, or "ended early".
        isolation: what shut it in: "network namespace, seccomp"; without the first where the
            system does not permit one, with "audit hook" for the second where there is none.
    """

    passed: bool
    reason: str
    isolation: str


def execute(
    program: str, *, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES
) -> Execution:
    """Run a program's text.

    Args:
        seconds: wall clock; processor time is limited to one second more.
        memory_bytes: of address space.

    Raises:
        BadInput: the process did not start, which is no fault of the program.
    """
    token = secrets.token_hex(16)
    request = {"program": program, "token": token, "seconds": seconds, "memory_bytes": memory_bytes}
    prefix = _network_namespace()
    with tempfile.TemporaryDirectory(prefix="answer-") as folder, _pipe() as (reading, writing):
        # -s, -P: no user's packages, nothing from this folder; a fixed hash seed, so that a score
        # can be made again
        command = [*prefix, sys.executable, "-s", "-P", "-B", str(CELL), str(writing)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=_environment(folder),
                pass_fds=(writing,),
                start_new_session=True,
            )
        except OSError as error:
            raise BadInput(f"cannot start {command[0]} to run answers ({error})") from error
        try:
            process.communicate(json.dumps(request).encode(), timeout=seconds)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told = _read(reading)
    shut_in, _, end = told.partition("\n")
    if not shut_in:
        raise BadInput(
            f"a process for an answer was not ready within {seconds:g} s: is this machine "
            f"overloaded, or does {sys.executable} not start there?"
        )
    isolation = ", ".join([*(["network namespace"] if prefix else []), shut_in])
    if not late and end == token:
        return Execution(True, "passed", isolation)
    return Execution(False, "timeout" if late else end or "ended early", isolation)


@contextlib.contextmanager
def _pipe():
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


def _read(reading: int) -> str:
    """What was written so far; a process that outlives its group may still hold the other end."""
    os.set_blocking(reading, False)
    try:
        return os.read(reading, RESULT_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""


def _environment(folder: str) -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


@functools.cache
def _network_namespace() -> tuple[str, ...]:
    """What to put before a command, to give it a network of its own without any way out; () where
    that is not permitted."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    options = ("--net",) if os.geteuid() == 0 else ("--net", "--user", "--map-current-user")
    probe = subprocess.run([unshare, *options, "true"], capture_output=True)
    return (unshare, *options) if probe.returncode == 0 else ()

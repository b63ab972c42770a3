"""Runs the code of an answer against a problem's tests, in processes of their own.

With bubblewrap (`bwrap`) the code sees a read-only /usr and Python, an empty read-only /tmp, no
network, no process but its own, no privileges and almost no environment, and what it started is
killed when its time is over. What is left are faults of the kernel, whose calls are not filtered,
and as root the number of processes, and so the memory of all, within the time.

Without bubblewrap there are the limits of checked_call.py (time, memory, size and number of files)
and a throw-away folder. The code can then read and change what the user can, the process that
checks it too, use the network, and leave processes behind.
"""

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from eagle_fsd.config import BadInput

PROGRAM = Path(__file__).with_name("checked_call.py")
SECONDS = 10.0  # of wall clock; HumanEval's own solutions take 0.2
PROCESSES = 64  # Linux does not count root's
PASSED = "passed"
NOBODY = "65534"
ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # so that a score can be made again
}
EMPTY = "/answer"  # where the code begins; /tmp may hold the Python that runs it


def execute(
    program: str,
    *,
    prompt: str,
    test: str,
    entry_point: str,
    seconds: float = SECONDS,
) -> str:
    """Check a program's function.

    Args:
        program: untrusted; defines `entry_point`.
        prompt, test: the problem's, trusted: what precedes the function, and the function `check`.
        seconds: wall clock; processor time is limited to one second more.

    Returns:
        PASSED, "timeout", the name of the exception that ended the check, or "ended early".

    Raises:
        BadInput: the processes did not start, which is no fault of the program.
    """
    request = {"seconds": seconds, "entry_point": entry_point}
    # outside of bubblewrap the user's other processes count too
    request["processes"] = PROCESSES if bubblewrap() else None
    theirs, ours = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="answer-") as folder, theirs, ours:
        with _started("answer", request | {"program": program}, theirs, folder):
            theirs.close()  # or the checker would not see it end
            checker = request | {"prompt": prompt, "test": test}
            with _started("check", checker, ours, folder) as process:
                ours.close()
                late = False
                try:
                    told = process.communicate(timeout=seconds)[1]
                except subprocess.TimeoutExpired as error:
                    late, told = True, error.stderr or b""
    ready, _, reason = told.decode(errors="replace").partition("\n")
    if ready != "ready":
        raise BadInput(
            f"the processes that run and check answers were not ready in {seconds:g} s "
            f"({told[-200:].decode(errors='replace').strip() or 'no word'}): is this machine "
            f"overloaded, or does {sys.executable} not run there?"
        )
    if late:
        return "timeout"
    return PASSED if process.returncode == 0 else reason.strip() or "ended early"


@contextlib.contextmanager
def _started(
    role: str, request: dict, wire: socket.socket, folder: str
) -> Iterator[subprocess.Popen]:
    """A process of checked_call.py, killed with all its own when this ends."""
    with tempfile.TemporaryFile("w+") as file:
        json.dump(request, file)
        file.seek(0)
        # -s, -P: no user's packages, nothing from the folder
        command = [sys.executable, "-s", "-P", "-B", "-c", PROGRAM.read_text(), role]
        process = subprocess.Popen(
            [*bubblewrap(), *command, str(wire.fileno())],
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if role == "check" else subprocess.DEVNULL,
            cwd=folder,
            env=ENVIRONMENT,
            pass_fds=(wire.fileno(),),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr:
            process.stderr.close()


@functools.cache
def bubblewrap() -> list[str]:
    """bwrap with what the code may see, to go before a command; empty where it does not run."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return []
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent"]
    known = subprocess.run([bwrap, "--help"], capture_output=True, text=True).stdout
    command += ["--disable-userns"] if "--disable-userns" in known else []  # bubblewrap 0.8
    command += ["--new-session", "--cap-drop", "ALL", "--uid", NOBODY, "--gid", NOBODY]
    for place in ("/lib", "/lib64", "/bin"):
        if os.path.islink(place):
            command += ["--symlink", os.readlink(place), place]
        else:
            command += ["--ro-bind-try", place, place]
    python = {sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)}
    for place in ["/usr", "/etc/ld.so.cache", *sorted(python)]:
        command += ["--ro-bind-try", place, place]
    command += ["--dev", "/dev", "--remount-ro", "/dev", "--dir", "/tmp", "--dir", EMPTY]
    command += ["--chdir", EMPTY, "--remount-ro", "/"]
    probe = subprocess.run([*command, sys.executable, "-V"], capture_output=True)
    return command if probe.returncode == 0 else []

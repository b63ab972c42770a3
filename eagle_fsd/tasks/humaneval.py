"""HumanEval (Chen et al. 2021, arXiv 2107.03374): from a chat answer to a program, whether
it is Python, and pass@1.

The package's own execution runs inside the caller's process. Here answer and tests have processes
of their own (checked_call.py). With bubblewrap (`bwrap`) these see a read-only /usr and Python, an
empty read-only /tmp, no network, no other process, no privileges and almost no environment, and
what they started is killed when their time is over. What is left: faults of the kernel, whose calls
are not filtered, and its keyrings, which are the caller's; the memory of an answer's processes
together; and as root, with a Python that nobody else may read, their number.

Without it there are the limits of checked_call.py and a throw-away folder: the code can then read
and change what the user can, the checker too, use the network, and leave processes behind.
"""

import ast
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question

# An unclosed fence, of an answer that was cut off, reaches to the end.
FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON_TAGS = ("", "python", "python3", "py")  # of fences
TOP_LEVEL = re.compile(r"^(?:(?:from|import|def|class|async def)\b|@)", re.MULTILINE)
# where the paper cuts a bare completion off (section 2.1)
STOPS = re.compile(r"\n(?:class|def|#|if|print)")
FIELDS = ("prompt", "test", "entry_point")  # of a problem, all texts
PROGRAM = Path(__file__).with_name("checked_call.py")
SECONDS = 10.0  # of wall clock; HumanEval's own solutions take 0.2
PROCESSES = 64
PASSED = "passed"
ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # so that a score can be made again
}
EMPTY = "/answer"  # where the code begins; /tmp may hold the Python that runs it


def extract_code(answer: str, entry_point: str) -> str:
    """The Python code of an answer.

    The first fenced block that defines `entry_point`, else the first that names Python or no
    language; without any, text from an import, def, class or decorator on that defines it, as far
    as it is Python; else the answer up to the paper's stop sequences: a bare continuation.
    """
    defined = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)
    blocks = [code for tag, code in FENCE.findall(answer) if tag.lower() in PYTHON_TAGS]
    if blocks:
        return next(filter(defined.search, blocks), blocks[0])
    texts = (_longest_python(answer[start.start() :]) for start in TOP_LEVEL.finditer(answer))
    return next(filter(defined.search, texts), STOPS.split(answer, maxsplit=1)[0])


def build_program(prompt: str, code: str) -> str:
    """The program: the prompt, which holds imports and helpers, and then the code."""
    return prompt + ("\n" if TOP_LEVEL.search(code) else "") + code + "\n"


def check_program(answer: str, question: Question) -> dict[str, float]:
    """{"pass@1": 1.0 if the answer's code passes the problem's tests, "parses": 1.0 if it is Python
    and its function has a body}. Executes the answer.

    A small target solves few problems and writes Python in most of its answers, so that far fewer
    of them show by `parses` what a lossy rule breaks.
    """
    problem = {name: question.extra[name] for name in FIELDS}
    entry_point = problem["entry_point"]
    program = build_program(problem["prompt"], extract_code(answer, entry_point))
    passed = execute(program, **problem) == PASSED
    return {"pass@1": float(passed), "parses": float(has_body(program, entry_point))}


def has_body(program: str, entry_point: str) -> bool:
    """Whether it is Python and defines the function by more than a description and pass."""
    tree = _parsed(program)
    return any(
        getattr(node, "name", "") == entry_point and not all(map(_says_nothing, node.body))
        for node in (tree.body if tree else ())
    )


def _says_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(getattr(statement, "value", None), ast.Constant)
    return isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and constant)


def _parsed(text: str) -> ast.Module | None:
    """None if it is no Python; warnings about it are not shown."""
    with warnings.catch_warnings(action="ignore"):
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _longest_python(text: str) -> str:
    """The longest run of whole leading lines that parses; may be empty."""
    lines = text.splitlines(keepends=True)
    heads = ("".join(lines[:count]) for count in range(len(lines), 0, -1))
    return next(filter(_parsed, heads), "")


def execute(
    program: str, *, prompt: str, test: str, entry_point: str, seconds: float = SECONDS
) -> str:
    """Check a program's function.

    Args:
        program: untrusted; defines `entry_point`.
        prompt, test: the problem's, trusted.
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
                try:
                    printed, late = process.communicate(timeout=seconds)[1], False
                except subprocess.TimeoutExpired as error:
                    printed, late = error.stderr or b"", True
    ready, _, reason = printed.decode(errors="replace").partition("\n")
    if ready != "ready":
        raise BadInput(
            f"the processes that run and check answers were not ready in {seconds:g} seconds "
            f"({printed!r}): is this machine overloaded, or does {sys.executable} not run there?"
        )
    if late:
        return "timeout"
    return PASSED if process.returncode == 0 else reason.strip() or "ended early"


@contextlib.contextmanager
def _started(
    role: str, request: dict, wire: socket.socket, folder: str
) -> Iterator[subprocess.Popen]:
    """A process of checked_call.py, killed with its children when this ends."""
    with tempfile.TemporaryFile("w+") as file:
        json.dump(request, file)
        file.seek(0)
        # -s, -P: no user's packages, nothing from the folder
        command = [sys.executable, "-s", "-P", "-B", "-c", PROGRAM.read_text(), role]
        with subprocess.Popen(
            [*bubblewrap(), *command, str(wire.fileno())],
            stdin=file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if role == "check" else subprocess.DEVNULL,
            cwd=folder,
            env=ENVIRONMENT,
            pass_fds=(wire.fileno(),),
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@functools.cache
def bubblewrap() -> list[str]:
    """bwrap with what the code may see, to go before a command; empty where it does not run."""
    if (bwrap := shutil.which("bwrap")) is None:
        return []
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent"]
    known = subprocess.run([bwrap, "--help"], capture_output=True, text=True).stdout
    command += ["--disable-userns"] if "--disable-userns" in known else []  # bubblewrap 0.8
    command += ["--new-session", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"]  # nobody
    for place in ("/lib", "/lib64", "/bin"):
        linked = os.path.islink(place)
        command += ["--symlink", os.readlink(place)] if linked else ["--ro-bind-try", place]
        command.append(place)
    python = {sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)}
    for place in ["/usr", "/etc/ld.so.cache", *sorted(python)]:
        command += ["--ro-bind-try", place, place]
    command += ["--dev", "/dev", "--remount-ro", "/dev", "--dir", "/tmp", "--dir", EMPTY]
    command += ["--chdir", EMPTY, "--remount-ro", "/"]
    setpriv = shutil.which("setpriv") if os.geteuid() == 0 else None
    nobody = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups"] if setpriv else []
    for whole in ([*nobody, *command], command):  # nobody's processes are counted, root's are not
        if subprocess.run([*whole, sys.executable, "-V"], capture_output=True).returncode == 0:
            return whole
    return []

"""HumanEval (Chen et al. 2021, arXiv 2107.03374): from a chat answer to a program, whether
it is Python, and pass@1.

An answer runs in a process of its own with limits of time, memory and files (checked_call.py), and
where bubblewrap (`bwrap`) runs it sees a read-only /usr and Python, no network and no other
process. That keeps mistakes of a model away from the user's files; it is no defence against an
answer that was written to break out or to forge its verdict, which comes from the same process.
"""

import ast
import contextlib
import functools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from markdown_it import MarkdownIt

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question

PYTHON_TAGS = ("", "python", "python3", "py", "py3", "ipython")  # of fences
TOP_LEVEL = re.compile(r"^(?:(?:from|import|def|class|async def)\b|@)", re.MULTILINE)
# where the paper cuts a bare completion off (section 2.1)
STOPS = re.compile(r"\n(?:class|def|#|if|print)")
FIELDS = ("prompt", "test", "entry_point")  # of a problem, all texts
PROGRAM = Path(__file__).with_name("checked_call.py")
SECONDS = 10.0  # of wall clock; HumanEval's own solutions take 0.2
PASSED = "passed"
ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # so that a score can be made again
}


def extract_code(answer: str, entry_point: str) -> str:
    """The Python code of an answer, in which later code mends earlier.

    The last block of code that defines `entry_point`, of those that name Python or no language.
    Else, of the stretches of text from an import, def, class or decorator on, as far as they are
    Python, the last that defines it. Else the last fenced block that begins indented, as a body
    does, or the last. Without any the answer up to the paper's stop sequences: a bare continuation.
    """
    name = re.escape(entry_point)
    defined = re.compile(rf"^(?:(?:async )?def {name}|{name} = lambda)\b", re.MULTILINE)
    tokens = [t for t in MarkdownIt().parse(answer) if t.type in ("fence", "code_block")]
    tokens = [t for t in tokens if re.match(r"[\w+-]*", t.info)[0].lower() in PYTHON_TAGS]
    if found := [t.content for t in tokens if defined.search(t.content)]:
        return found[-1]
    end = 0
    for start in TOP_LEVEL.finditer(answer):
        if start.start() >= end:
            stretch = _longest_python(answer[start.start() :])
            end = start.start() + len(stretch)
            if defined.search(stretch):
                found.append(stretch)
    fenced = [t.content for t in tokens if t.type == "fence"]
    bodies = [block for block in fenced if block[:1].isspace()]
    return (found or bodies or fenced or [STOPS.split(answer)[0]])[-1]


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
    for node in tree.body if tree else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            if entry_point in (getattr(target, "id", "") for target in node.targets):
                return True
        elif getattr(node, "name", "") == entry_point and not all(map(_says_nothing, node.body)):
            return True
    return False


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
        BadInput: the process did not start, which is no fault of the program.
    """
    token = secrets.token_hex(16)  # which an answer that merely exits does not write
    request = {"program": program, "prompt": prompt, "test": test, "entry_point": entry_point}
    request |= {"token": token, "seconds": seconds}
    # -s, -P: no user's packages, nothing from the folder
    command = [*bubblewrap(), sys.executable, "-s", "-P", "-B", "-c", PROGRAM.read_text()]
    with (
        tempfile.TemporaryDirectory(prefix="answer-") as folder,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=ENVIRONMENT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        try:
            told, late = process.communicate(json.dumps(request), timeout=seconds)[0], False
        except subprocess.TimeoutExpired as error:
            told, late = (error.stdout or b"").decode(errors="replace"), True
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the answer started goes with it
                os.killpg(process.pid, signal.SIGKILL)
    ready, _, end = told.partition("\n")
    if ready != "ready":
        raise BadInput(
            f"the process that runs an answer was not ready in {seconds:g} seconds ({told!r}): is "
            f"this machine overloaded, or does {sys.executable} not run there?"
        )
    if late:
        return "timeout"
    return PASSED if end.strip() == token else end.strip() or "ended early"


@functools.cache
def bubblewrap() -> list[str]:
    """bwrap with what the code may see, to go before a command; empty where it does not run."""
    if (bwrap := shutil.which("bwrap")) is None:
        return []
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL"]
    python = {sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)}
    for place in ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", *sorted(python)]:
        command += ["--ro-bind-try", place, place]
    command += ["--dev", "/dev", "--remount-ro", "/dev", "--dir", "/tmp"]
    command += ["--dir", "/answer", "--chdir", "/answer"]  # empty; a checkout may lie in /tmp
    command += ["--remount-ro", "/"]
    runs = subprocess.run([*command, sys.executable, "-V"], capture_output=True).returncode == 0
    return command if runs else []

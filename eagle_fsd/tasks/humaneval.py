"""HumanEval (Chen et al. 2021, arXiv 2107.03374): from a chat answer to a program, whether it is
Python, and pass@1, for which the program is run."""

import ast
import contextlib
import inspect
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import warnings

from markdown_it import MarkdownIt

from eagle_fsd.evaluation.questions import Question

NO_SANDBOX = (
    "Answers' code runs with limits of time, memory and files, but in no sandbox against hostile "
    "code: do that in a container, or on a machine that may be thrown away."
)
PYTHON_TAGS = ("", "python", "python3", "py", "py3", "ipython")  # of fences
TOP_LEVEL = re.compile(r"^(?:(?:from|import|def|class|async def)\b|@)", re.MULTILINE)
# where the paper cuts a bare completion off (section 2.1)
STOPS = re.compile(r"\n(?:class|def|#|if|print)")
FIELDS = ("prompt", "test", "entry_point")  # of a problem, all texts
SECONDS = 10.0  # of wall clock; HumanEval's own solutions take 0.2
ENVIRONMENT = {  # all of it: keys and tokens are none of the answer's business
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # so that a score can be made again
}


def check_program(answer: str, question: Question) -> dict[str, float]:
    """{"pass@1": 1.0 if the answer's code passes the problem's tests, "parses": 1.0 if it is Python
    and its function has a body}. Executes the answer."""
    problem = {name: question.extra[name] for name in FIELDS}
    code = extract_code(answer, problem["entry_point"])
    # the prompt holds imports and helpers; a body continues it, a definition begins anew
    program = problem["prompt"] + ("\n" if TOP_LEVEL.search(code) else "") + code + "\n"
    parses = has_body(program, problem["entry_point"])
    return {"pass@1": float(passes(program, **problem)), "parses": float(parses)}


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
            # as many whole lines as are Python together
            lines = answer[start.start() :].splitlines(keepends=True)
            heads = ("".join(lines[:count]) for count in range(len(lines), 0, -1))
            stretch = next(filter(_parsed, heads), "")
            end = start.start() + len(stretch)
            if defined.search(stretch):
                found.append(stretch)
    fenced = [t.content for t in tokens if t.type == "fence"]
    bodies = [block for block in fenced if block[:1].isspace()]
    return (found or bodies or fenced or [STOPS.split(answer)[0]])[-1]


def has_body(program: str, entry_point: str) -> bool:
    """Whether it compiles and gives the function's name more than a description and pass."""
    tree = _parsed(program)
    for node in ast.walk(tree) if tree else ():
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.alias(asname=str(name)) | ast.alias(name):
                if name == entry_point:
                    return True
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                said = [s.value if isinstance(s, ast.Expr) else s for s in node.body]
                empty = all(isinstance(part, ast.Constant | ast.Pass) for part in said)
                if name == entry_point and not empty:
                    return True
    return False


def _parsed(text: str) -> ast.Module | None:
    """None: it is no Python, also where only compiling tells, as of a return outside a function."""
    with warnings.catch_warnings(action="ignore"):
        try:
            tree = ast.parse(text)
            compile(tree, "answer.py", "exec", dont_inherit=True)
            return tree
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def passes(
    program: str, *, prompt: str, test: str, entry_point: str, seconds: float = SECONDS
) -> bool:
    """Whether the program's function passes the problem's tests within the seconds, in a process
    and an empty folder of its own."""
    token = secrets.token_hex(16)  # which an answer that merely exits does not write
    problem = {"prompt": prompt, "test": test, "entry_point": entry_point}
    request = problem | {"program": program, "token": token, "seconds": seconds}
    source = inspect.getsource(_run_tests)
    source += "import json, sys\n_run_tests(**json.load(sys.stdin))"
    with (
        tempfile.TemporaryDirectory(prefix="answer-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            # -s, -P: no user's packages, nothing from the folder
            [sys.executable, "-s", "-P", "-B", "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=ENVIRONMENT | {"HOME": folder, "TMPDIR": folder},
            start_new_session=True,
        ) as process,
    ):
        try:
            told, _ = process.communicate(json.dumps(request).encode(), timeout=seconds)
        except subprocess.TimeoutExpired as error:  # a fork of it may have kept the pipe open
            told = error.stdout or b""
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the answer started goes with it
                os.killpg(process.pid, signal.SIGKILL)
    return told == token.encode()


def _run_tests(
    program: str, prompt: str, test: str, entry_point: str, token: str, seconds: float
) -> None:
    """Runs as text in a process that has nothing of this library: defines the answer's function,
    runs the tests on it, and writes the token once they have passed."""
    import collections.abc
    import functools
    import math
    import os
    import resource
    import sys
    import types

    # 1. What it tells goes to a copy of standard output; the answer has no stream.
    verdict = os.fdopen(os.dup(1), "w")
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)

    # 2. Limits, for good: seconds, bytes of address space and of a file, open files.
    limits = {resource.RLIMIT_CPU: math.ceil(seconds) + 1, resource.RLIMIT_AS: 1 << 30}
    limits |= {resource.RLIMIT_FSIZE: 1 << 20, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_CORE: 0}
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))

    own = len(prompt.splitlines())  # behind this line the program is the answer's
    views = collections.abc.Set | collections.abc.ValuesView
    harmless = {"__init__", "__new__", "__post_init__", "__repr__", "__str__", "__hash__"}

    def honest(value: object) -> object:
        """The value, unless it or what it holds would decide by the answer's own code what it is
        equal to, or comes to: an object that equals all is no answer."""
        if isinstance(value, collections.abc.Iterator):
            return map(honest, value)
        found, seen = [value], {}
        while found:
            if id(item := found.pop()) in seen:
                continue
            seen[id(item)] = item  # kept, so that its id stays its own
            for kind in type(item).__mro__:
                for name in vars(kind).keys() - harmless:
                    code = getattr(vars(kind)[name], "__code__", None)
                    if name[:2] == "__" and code and code.co_filename == "answer.py":
                        assert code.co_firstlineno <= own, f"{kind} has a {name} of the answer's"
            if isinstance(item, dict):
                found += item.values()
            if isinstance(item, list | tuple | dict | collections.deque | views):
                found += item
        return value

    # 3. The program and the tests as one module, but not as __main__, whose blocks are no part of
    # it: tests use helpers of the prompt, and pickle and dataclasses look for their module.
    try:
        module = sys.modules["answer"] = types.ModuleType("answer")
        exec(compile(program, "answer.py", "exec"), vars(module))
        function = vars(module)[entry_point]

        @functools.wraps(function)
        def candidate(*arguments: object, **named: object) -> object:
            return honest(function(*arguments, **named))

        exec(compile(test, "test.py", "exec"), vars(module))
        vars(module)["check"](candidate)
        print(token, end="", file=verdict, flush=True)
    finally:  # threads of the answer do not keep the process
        os._exit(0)

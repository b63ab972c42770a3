"""Code from answers; wrong and endless programs; HumanEval's own solutions."""

import time
from textwrap import indent

import psutil
import pytest

from eagle_fsd.evaluation.questions import Question
from eagle_fsd.tasks import humaneval
from eagle_fsd.tasks.humaneval import check_program, extract_code

pytestmark = pytest.mark.processes

PROMPT = 'import math\n\n\ndef area(r: float) -> float:\n    """Of a circle."""\n'
TEST = "def check(candidate):\n    assert abs(candidate(2) - 12.566) < 0.01\n"
EXTRA = {"prompt": PROMPT, "test": TEST, "entry_point": "area"}
PROBLEM = Question("Toy/0", "humaneval", ["?"], [], EXTRA)
BODY = "    return math.pi * r * r\n"
WHOLE = f"def area(r):\n{BODY}"

RIGHT = {
    "block": f"Here it is:\n\n```\n{WHOLE}```\nIt uses pi.",
    "block of the body": f"```python\n{BODY}```",
    "unclosed block": f"```python\n{WHOLE}",
    "shell block first": f"```bash\npip install x\n```\n```python\n{WHOLE}```",
    "text around": f"Define a function:\n\n{WHOLE}\nThis is the area of a circle.",
    "prose that begins like code": f"from geometry we know this.\nclass of formulas:\n\n{WHOLE}",
    "bare continuation that goes on": f"{BODY}\ndef perimeter(r):\n    return 2 *",
    "mended": "```python\ndef area(r):\n    return r\n```\nNo, that is wrong:\n"
    f"~~~py\n{WHOLE}~~~\nTest it:\n```python\nprint(area(1))\n```",
    "mended without blocks": f"def area(r):\n    return r\n\nNo, that is wrong:\n\n{WHOLE}",
    "mended body": f"```python\n    return r\n```\nNo:\n```python\n{BODY}```\n```\narea(1)\n```",
    "block in a list": f"1. So:\n\n   ```python\n{indent(WHOLE, '   ')}   ```",
    "fence within a text": "```python\ndef area(r):\n    '''\n    ```\n    area(1)\n    ```'''\n"
    f"{BODY}```",
    "block that begins amid a line": f"Sure: ```python\n{WHOLE}```",
    "assigned": "```python\narea = lambda r: math.pi * r * r\n```\n```python\narea(1)\n```",
    "with a main block": f'```python\n{WHOLE}\nif __name__ == "__main__":\n    input()\n```',
}
WRONG = {
    "empty": "",
    "cut off": "```python\ndef area(r):\n    return math.pi * (r",
    "exits in the function": "```python\ndef area(r):\n    raise SystemExit(0)\n```",
    "exits the process": "```python\nimport os\ndef area(r):\n    os._exit(0)\n```",
    "null byte": f"```python\n\0{WHOLE}```",
    "calls the test": "```python\nimport sys\ncheck = area = print\n```",
    "equal to all": "```python\nclass E(float):\n    __sub__ = lambda s, o: 0.0\n"
    "def area(r):\n    return E()\n```",
    "holds what is equal to all": "```python\nclass E:\n    def __eq__(self, other):\n"
    "        return True\ndef area(r):\n    return {1: [E()]}.values()\n```",
    "return outside": f"```python\n{WHOLE}\nreturn area(2)\n```",
    "deep brackets": "```python\nx = " + "(" * 50_000 + "\n```",
}


def test_right_answers_pass_and_wrong_ones_fail():
    for form, answer in RIGHT.items():
        assert check_program(answer, PROBLEM) == {"pass@1": 1.0, "parses": True}, form
    for form, answer in WRONG.items():
        whole = form.startswith(("exits", "calls", "equal", "holds"))
        assert check_program(answer, PROBLEM) == {"pass@1": 0.0, "parses": whole}, form
    assert extract_code(RIGHT["text around"], "area") == WHOLE + "\n"
    assert extract_code("```js\nx\n```", "area") == "```js\nx\n```"


def run(
    body: str,
    *,
    test: str = "assert candidate() == 2",
    seconds: float = 2,
    prompt: str = "def f():\n",
) -> bool:
    """Whether the check of a function f of this body passes."""
    program = prompt + indent(body, "    ")
    problem = {"prompt": prompt, "test": f"def check(candidate):\n    {test}\n"}
    return humaneval.passes(program, **problem, entry_point="f", seconds=seconds)


def refused(action: str, error: str) -> str:
    """A body that is right if the action ends with this error."""
    return f"try:\n    {action}\nexcept {error}:\n    return 2"


ENDLESS = ["while True: pass", "while True: print('x' * (1 << 20))"]
ENDLESS += ["import os; os.kill(os.getpid(), 19)"]  # SIGSTOP
EARLY = ["import os; os._exit(0)", "import sys; sys.exit()", "raise KeyboardInterrupt", "f()"]
EARLY += ["return object()"]
LIMITS = {"bytearray(3 << 30)": "MemoryError"}
LIMITS |= {"[open('/dev/null') for _ in range(99)]": "OSError"}
LIMITS |= {"open('big', 'w').write('x' * (1 << 21))": "OSError"}
LIMITS |= {"import os; os.environ['OPENAI_API_KEY']": "KeyError"}


def test_how_programs_end(monkeypatch):
    """Wrong where they end early or never; limits of memory and files hold, and no key is at hand.
    Right with threads, numpy and much output; values come as they are, of numpy's only numbers; the
    folder is empty."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-4711")
    for program in ENDLESS + EARLY:
        assert not run(program), program
    for action, error in LIMITS.items():
        assert run(refused(action, error)), action
    values = [1, 2.5, True, None, "\ud800", [1, (2, {3}), {"a": (1,), 2: 1j}], {}, (), b"x"]
    body = "import os, threading, numpy\nthread = threading.Thread(target=int)\n"
    body += "thread.start(), thread.join(), print('x' * (1 << 25))\nassert os.listdir() == []\n"
    body += f"return (numpy.ones(9) @ numpy.ones(9)).astype(int), {values!r}"
    assert run(body, test=f"assert candidate() == (9, {values!r})", seconds=9)


ENUM = "import enum\nclass C(enum.Enum):\n    A = 1\n    def __eq__(s, o): return s is o\n"
# a body and a test that it passes where Python runs them one after the other
PLAIN = {
    "from collections import Counter\nreturn Counter('aab')": "candidate() == {'a': 2, 'b': 1}",
    "from collections import defaultdict\nreturn defaultdict(int, a=1)": "candidate()['b'] == 0",
    "from collections import namedtuple\nreturn namedtuple('P', 'x')(1)": "candidate().x == 1",
    "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\nreturn P(1)": "candidate()"
    " == (1,)",
    "from fractions import Fraction\nreturn [Fraction(1, 2)]": "candidate() == [0.5]",
    "from decimal import Decimal\nreturn Decimal(2)": "candidate() == 2",
    "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nreturn P(1)": "candidate"
    "().x == 1",
    "import enum\nclass C(enum.IntEnum):\n    A = 1\nreturn C.A": "candidate() == 1",
    "import datetime\nreturn datetime.date(2026, 1, 2)": "candidate().day == 2",
    "return frozenset({1}), {1: 2}.keys()": "candidate() == ({1}, {1})",
    "return float('inf'), -float('inf')": "candidate() == (float('inf'), -float('inf'))",
    "yield from range(3)": "list(candidate()) == [0, 1, 2]",
    "held = []\nheld.append(held)\nreturn held": "len(candidate()) == 1",
    "return 1": "candidate.__name__ == 'f' and f() == 1",
    "import copy, pickle\nreturn pickle.loads(pickle.dumps(f))": "candidate() is f",
}


def test_values_are_compared_as_they_are():
    """Regression: a value was made anew from its text, and right ones without a literal failed; so
    did all of a prompt that holds an enum, or whose last function is whole."""
    for body, test in PLAIN.items():
        assert run(body, test=f"assert {test}"), body
        assert not run(body, test=f"assert not ({test})"), body
    equal = "class E:\n    def __eq__(self, other):\n        return True\n"
    assert not run(f"{equal}return {{1: E()}}.values()", test="assert list(candidate()) == [2]")
    assert not run(f"{equal}return iter([E()])", test="assert list(candidate()) == [2]")
    assert run("return C.A", test="assert candidate() is C.A", prompt=f"{ENUM}def f():\n")
    assert run("", prompt="def f():\n    return 2\n")
    answers = "def f(n=2): return n", "from operator import index as f", "f = max"
    for answer in ("", "if True:\n    def f(): return 2", *answers):
        program = f"def f():\n    'Two.'\n\n{answer}\n"
        assert humaneval.has_body(program, "f") == bool(answer), answer


def test_processes_that_an_answer_leaves_behind_are_killed():
    mark = f"{time.time_ns()}"
    body = "import subprocess as s, sys\nfor _ in range(5):\n"
    body += f"    s.Popen([sys.executable, '-c', 'import time; time.sleep(9)', '{mark}'])"
    assert run(body, test="candidate()", seconds=10)
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    assert not psutil.wait_procs(left, timeout=5)[1]

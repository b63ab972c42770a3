"""Run as text by humaneval.py: `python -c THIS`, with a request as JSON on standard input.

It defines an answer's function and runs the problem's tests on it. On standard output it writes
"ready", and once all is over the request's token if the tests passed, else the exception's name.
"""

import ast
import json
import math
import os
import resource
import sys

BOUNDS = {
    resource.RLIMIT_AS: 1 << 30,  # bytes of address space
    resource.RLIMIT_FSIZE: 1 << 20,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_CORE: 0,
}


def literal(value: object) -> object:
    """The value as its text says, so that an object that equals all is no answer."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].set_printoptions(legacy="1.25")  # 2.0, not np.float64(2.0)
    return ast.literal_eval(repr(value))


def check(program: str, prompt: str, test: str, entry_point: str) -> None:
    """Run the problem's tests; returns if they pass."""
    answer = {"__name__": "answer"}  # not __main__, whose blocks are no part of an answer
    exec(compile(program, "answer.py", "exec"), answer)

    def candidate(*arguments: object) -> object:
        return literal(answer[entry_point](*literal(arguments)))

    space = {"__name__": "check"}
    # the prompt's own helpers, which some tests use; it ends within its last function
    exec(compile(prompt + "\n    pass\n", "prompt.py", "exec"), space)
    space[entry_point] = candidate
    exec(compile(test, "test.py", "exec"), space)
    space["check"](candidate)


def main() -> None:
    request = json.load(sys.stdin)
    token, seconds = request.pop("token"), request.pop("seconds")
    verdict = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for kind, value in (BOUNDS | {resource.RLIMIT_CPU: math.ceil(seconds) + 1}).items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))  # for good
    print("ready", file=verdict, flush=True)
    try:
        check(**request)
        end = token
    except BaseException as error:  # SystemExit is no right answer either
        end = type(error).__name__
    print(end, file=verdict, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

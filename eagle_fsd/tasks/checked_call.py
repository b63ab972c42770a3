"""Run as text by humaneval.py, in two processes that talk over one socket:

    python -c THIS answer SOCKET    defines the answer's function and calls it when asked
    python -c THIS check SOCKET     runs the problem's tests, whose candidate asks the other

Each reads its request from standard input. The tests and their verdict, the checker's exit status,
are where the answer's code is not: that can only give values, as text that Python reads as a
literal. On standard error the checker writes "ready" once both are, then what the check failed
with.
"""

import ast
import json
import math
import os
import resource
import socket
import sys
from typing import TextIO

BOUNDS = {
    resource.RLIMIT_AS: 1 << 30,  # bytes of address space
    resource.RLIMIT_FSIZE: 1 << 20,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_CORE: 0,
}


def limit(seconds: float, processes: int | None) -> None:
    """Bound this process, for good; None: any number of processes."""
    bounds = BOUNDS | {resource.RLIMIT_CPU: math.ceil(seconds) + 1}
    if processes is not None:
        bounds[resource.RLIMIT_NPROC] = processes
    for kind, value in bounds.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def send(wire: TextIO, value: object) -> None:
    if "numpy" in sys.modules:
        sys.modules["numpy"].set_printoptions(legacy="1.25")  # 2.0, not np.float64(2.0)
    wire.write(f"{value!r}\n")
    wire.flush()


def receive(wire: TextIO) -> object:
    """Raises EOFError where the other process has ended, and others for what is no literal."""
    if line := wire.readline():
        return ast.literal_eval(line)
    raise EOFError


def serve(wire: TextIO, request: dict) -> None:
    """Run the answer's program, then call its function with the arguments that come."""
    send(wire, "ready")
    space = {"__name__": "answer"}  # not __main__, whose blocks are no part of an answer
    arguments = None
    while True:
        try:
            if arguments is None:
                value = exec(compile(request["program"], "answer.py", "exec"), space)
            else:
                value = space[request["entry_point"]](*arguments)
            send(wire, ("value", value))
        except BaseException as error:  # SystemExit is no answer either
            send(wire, ("error", type(error).__name__))
        arguments = receive(wire)


def check(wire: TextIO, request: dict) -> None:
    """Run the problem's tests; returns if they pass."""

    def answered() -> object:
        kind, value = receive(wire)
        if kind == "error":  # an exception of that name
            raise type(str(value)[:80], (Exception,), {})
        return value

    def candidate(*arguments: object) -> object:
        send(wire, arguments)
        return answered()

    answered()  # the program has run
    space = {"__name__": "check"}
    # the prompt's own helpers, which some tests use; it ends within its last function
    exec(compile(request["prompt"] + "\n    pass\n", "prompt.py", "exec"), space)
    space[request["entry_point"]] = candidate
    exec(compile(request["test"], "test.py", "exec"), space)
    space["check"](candidate)


def main() -> None:
    role, descriptor = sys.argv[1:]
    request = json.load(sys.stdin)
    wire = socket.socket(fileno=int(descriptor)).makefile("rw")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1) if role == "check" else (0, 1, 2):
        os.dup2(nothing, standard)
    limit(request["seconds"], request["processes"])
    if role == "answer":
        serve(wire, request)
    print(receive(wire), file=sys.stderr, flush=True)
    try:
        check(wire, request)
    except BaseException as error:
        early = isinstance(error, EOFError | ConnectionError)
        print("ended early" if early else type(error).__name__, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()

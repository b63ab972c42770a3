"""Run as text by sandbox.py, in two processes that talk over one socket, standard input:

    python -c THIS answer REQUEST_FD    defines the answer's function and calls it when asked
    python -c THIS check REQUEST_FD     runs the problem's tests, whose candidate asks the other

The tests and their verdict, the checker's exit status, are where the answer's code is not: that can
only give values, and a value that passes is the right one. Values travel as JSON, never as objects.
On standard error the checker tells "ready" once both are, and then what the check failed with.
"""

import json
import math
import os
import resource
import sys
from decimal import Decimal
from fractions import Fraction

FILE_BYTES = 1 << 20
OPEN_FILES = 64
PROCESSES = 64
KINDS = {kind.__name__: kind for kind in (tuple, set, frozenset, dict, complex, Decimal, Fraction)}


def encode(value: object) -> object:
    """As JSON; what JSON has not is {name of its type: its parts, or its text}."""
    if isinstance(value, list):
        return [encode(part) for part in value]
    for name, kind in KINDS.items():
        if isinstance(value, kind):
            parts = value.items() if kind is dict else value
            text = kind in (complex, Decimal, Fraction)
            return {name: str(value) if text else [encode(part) for part in parts]}
    return value.item() if hasattr(value, "item") else value  # numpy's numbers


def decode(value: object) -> object:
    """The inverse of encode."""
    if isinstance(value, list):
        return [decode(part) for part in value]
    if isinstance(value, dict):
        ((name, parts),) = value.items()
        return KINDS[name](decode(parts))
    return value


def limit(seconds: float, memory_bytes: int) -> None:
    """Bound this process, for good; the number of processes is not bounded for root."""
    for kind, value in (
        (resource.RLIMIT_CPU, math.ceil(seconds) + 1),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


class Wire:
    """Lines of JSON to and from the other process."""

    def __init__(self, descriptor: int):
        self._in, self._out = open(os.dup(descriptor)), open(os.dup(descriptor), "w")

    def send(self, value: object) -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()

    def receive(self) -> object:
        """Raises EOFError where the other process has ended."""
        line = self._in.readline()
        if not line:
            raise EOFError
        return json.loads(line)


def serve(wire: Wire, request: dict) -> None:
    """Run the answer's program, then call its function with the arguments that come."""
    wire.send("ready")
    space = {"__name__": "answer"}  # not __main__, whose blocks are no part of an answer
    arguments = None
    while True:
        try:
            if arguments is None:
                exec(compile(request["program"], "answer.py", "exec"), space)
                given = None
            else:
                given = encode(space[request["entry_point"]](*arguments))
            reply = json.dumps({"value": given})
        except BaseException as error:  # SystemExit is no answer either
            reply = json.dumps({"error": type(error).__name__[:80]})
        wire.send(json.loads(reply))
        arguments = decode(wire.receive())


class AnswerError(Exception):
    """The answer's code raised what the text names."""


def check(wire: Wire, request: dict) -> None:
    """Run the problem's tests; returns if they pass."""

    def ask() -> object:
        reply = wire.receive()
        if "error" in reply:
            raise AnswerError(str(reply["error"])[:80])
        return decode(reply["value"])

    def candidate(*arguments: object) -> object:
        wire.send(encode(list(arguments)))
        return ask()

    ask()  # the program has run
    space = {"__name__": "check"}
    # the prompt's own helpers, which some tests use; it ends within its last function
    exec(compile(request["prompt"] + "\n    pass\n", "prompt.py", "exec"), space)
    space[request["entry_point"]] = candidate
    exec(compile(request["test"], "test.py", "exec"), space)
    space["check"](candidate)


def main() -> None:
    role, descriptor = sys.argv[1:]
    with open(int(descriptor)) as file:
        request = json.load(file)
    wire = Wire(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1) if role == "check" else (0, 1, 2):
        os.dup2(nothing, standard)
    limit(request["seconds"], request["memory_bytes"])
    if role == "answer":
        serve(wire, request)
    print(wire.receive(), file=sys.stderr, flush=True)
    try:
        check(wire, request)
    except BaseException as error:
        name = str(error) if isinstance(error, AnswerError) else type(error).__name__
        name = "ended early" if isinstance(error, EOFError | ConnectionError) else name
        print(name, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()

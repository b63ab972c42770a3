"""How every command begins and ends: reading its options, bad input and Ctrl-C.

Nothing heavy is imported before options are parsed: `--help` and a typo are answered at once.
"""

import ast
import inspect
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from transformers import HfArgumentParser

from eagle_fsd.arm_names import PLAIN, check_own_names
from eagle_fsd.config import BadInput, nearest
from eagle_fsd.options import PluginOptions

# What other tools call an option of ours
ELSEWHERE = dict.fromkeys(("model", "model_path", "model_name_or_path", "base_model"), "target")
ELSEWHERE |= {"ea_model_path": "head", "max_tokens": "max_new_tokens"}


def run_command(
    run: Callable[..., None], options: Sequence[type], arguments: list[str] | None = None
) -> None:
    """Run with one instance of each options class, read from the arguments or the process's own,
    with the endings of ended_by."""
    ended_by(lambda: run(*parse(HfArgumentParser(options), arguments)))


def help_texts(options: type) -> dict[str, str]:
    """By option, the text under it in the source of its class; under the last one of the classes
    that the options build on, where several have it with a text."""
    texts = {}
    for group in reversed(options.__mro__[:-1]):
        (declared,) = ast.parse(inspect.getsource(group)).body
        for field, text in pairwise(declared.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def parse(parser: HfArgumentParser, arguments: list[str] | None = None) -> tuple:
    """An instance of each options class, and a namespace of the parser's other arguments if any."""
    words = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & {*words}:  # reading the sources takes a tenth of a second
        texts = {name: t for each in parser.dataclass_types for name, t in help_texts(each).items()}
        for action in parser._actions:
            action.help = texts.get(action.dest, action.help)
    # the parser would raise a plain ValueError, and that after options have looked for a device
    read, unknown = parser.parse_known_args(arguments)
    if unknown:
        # the first, without the dashes, by which all are alike
        known = [name.lstrip("-") for a in parser._actions for name in a.option_strings]
        name = next((word for word in unknown if word.startswith("--")), "").partition("=")[0]
        name = name.lstrip("-").replace("-", "_")
        meant = nearest(ELSEWHERE.get(name, name), known, before="--")
        raise BadInput(f"unknown arguments {' '.join(unknown)}{meant}; --help lists what is known")
    # where the tables are loaded, a program may have put rules of its own there
    if getattr(read, "plugin", None) == "" and "eagle_fsd.rules" not in sys.modules:
        check_own_names([*getattr(read, "arms", []), getattr(read, "arm", PLAIN)])
    parsed = parser.parse_args_into_dataclasses(arguments)
    for options in parsed:
        if isinstance(options, PluginOptions):
            options.load_plugin()
    return parsed


def ended_by(work: Callable[[], None]) -> None:
    """Do a command's work. Bad input ends the process with one line and status 1, Ctrl-C with 130
    and the advice that every command goes on from its files, a reader who has closed the pipe
    (`| head`) with 141; any other error keeps its traceback. What the terminal's encoding lacks is
    shown as "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook's is none
            stream.reconfigure(errors="replace")
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:
        # else the interpreter would flush what is left, and fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)  # as a shell reports it
    except BadInput as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(
            "interrupted: the same command goes on from what it has saved, if anything",
            file=sys.stderr,
        )
        sys.exit(130)  # as a shell reports it


def shown_command(name: str, *arguments: object) -> str:
    """Another command of the folder of the one that runs, as it is typed where the user stands."""
    paths = [sys.executable, Path(sys.argv[0]).with_name(name)]
    words = [min(os.path.relpath(path), os.path.abspath(path), key=len) for path in paths]
    return shlex.join([*words, *map(str, arguments)])


@contextmanager
def held_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back, so that a loop can end where its state is whole: the function given out
    returns whether there was one; a second one interrupts at once."""
    pressed = False

    def note(signal_number, frame) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        print("\ninterrupted: saving first; once more stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)

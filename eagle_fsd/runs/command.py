"""How every command begins and ends."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from transformers import HfArgumentParser

from eagle_fsd.config import BadInput


def run_command(
    run: Callable[..., None], options: Sequence[type], arguments: list[str] | None = None
) -> None:
    """Run with one instance of each options class (a field's "help" is its documentation), read
    from the arguments or the process's own, with the endings of ended_by."""
    ended_by(lambda: run(*parse(HfArgumentParser(options), arguments)))


def parse(parser: HfArgumentParser, arguments: list[str] | None = None) -> tuple:
    """An instance of each options class, and a namespace of the parser's other arguments if any."""
    # the parser would raise a plain ValueError, and that after options have looked for a device
    _, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise BadInput(f"unknown arguments {' '.join(unknown)}: see --help")
    return parser.parse_args_into_dataclasses(arguments)


def ended_by(work: Callable[[], None]) -> None:
    """Do a command's work. Bad input ends the process with one line and status 1, Ctrl-C with 130
    and the advice that every command goes on; any other error keeps its traceback."""
    try:
        work()
    except BadInput as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where it was", file=sys.stderr)
        sys.exit(130)  # as a shell reports it


@contextmanager
def held_interrupt() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back, so that a loop can end where its state is whole: the function given out
    tells the first one; the second interrupts at once."""
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

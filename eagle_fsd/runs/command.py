"""How every command begins and ends."""

import sys
from collections.abc import Callable, Sequence

from transformers import HfArgumentParser

from eagle_fsd.config import BadInput

INTERRUPTED = 130  # what a shell reports of a command ended by Ctrl-C


def run_command(
    run: Callable[..., None], options: Sequence[type], arguments: list[str] | None = None
) -> None:
    """Parse options, run, and end.

    Bad input ends the process with one line and status 1; Ctrl-C with status 130, and the advice
    that every command here goes on where it was. Any other error keeps its traceback.

    Args:
        run: called with one instance of each options class.
        options: dataclasses; a field's "help" is its documentation.
        arguments: of the command line; None: the process's own.
    """
    parser = HfArgumentParser(options)
    ended_by(lambda: run(*parse(parser, arguments)))


def parse(parser: HfArgumentParser, arguments: list[str] | None = None) -> tuple:
    """An instance of each options class, and a namespace of the parser's other arguments if any.

    Raises:
        BadInput: an argument that the parser does not know; it would raise a plain ValueError.
    """
    *parsed, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        raise BadInput(f"unknown arguments {' '.join(unknown)}: see --help")
    return tuple(parsed)


def ended_by(work: Callable[[], None]) -> None:
    """Do the work of a command that parses by itself, with the endings of run_command."""
    try:
        work()
    except BadInput as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted: the same command goes on where it was", file=sys.stderr)
        sys.exit(INTERRUPTED)

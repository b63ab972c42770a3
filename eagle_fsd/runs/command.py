"""How every command begins and ends, and the processes of one run, as `accelerate launch` or
`torchrun` starts them."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from transformers import HfArgumentParser

from eagle_fsd.config import BadInput

PATIENCE = timedelta(days=30)  # the shortest share of a run may wait this long for the longest


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


@dataclass(frozen=True)
class Processes:
    """This process among those of the run."""

    index: int = 0
    count: int = 1  # 1 without a launcher
    local_index: int = 0  # among those of this machine: the number of its accelerator

    @classmethod
    def launched(cls, *, cpu: bool) -> "Processes":
        """Join the launcher's group, if there is one."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=cpu, timeout=PATIENCE)
        return cls(state.process_index, state.num_processes, state.local_process_index)

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def device(self, device: str) -> str:
        """Each process its own accelerator, where only "cuda" was asked for."""
        return f"cuda:{self.local_index}" if device == "cuda" and self.count > 1 else device

    def wait(self) -> None:
        """Go on when all processes are here; if one has died the launcher ends the others."""
        if self.count > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()

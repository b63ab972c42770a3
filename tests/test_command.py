"""The ends of every command: bad input in one line, an error of ours with its traceback, Ctrl-C."""

import os
import signal
from dataclasses import dataclass

import pytest

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.stats import mcnemar
from eagle_fsd.runs.command import held_interrupt, run_command
from eagle_fsd.runs.jsonl import read_records


@dataclass
class Asked:
    count: int = 1

    def __post_init__(self):
        if self.count < 1:
            raise BadInput(f"--count must be at least 1, got {self.count}")


def test_ends(capsys):
    """sys.exit of a text prints it to standard error and gives status 1."""

    def work(options: Asked) -> None:
        if options.count == 2:
            raise KeyboardInterrupt
        list(read_records("gone.jsonl"))

    for arguments, told in {
        ("--count", "0"): "error: --count must be at least 1, got 0",
        ("--conut", "2", "more"): "error: unknown arguments --conut 2 more: see --help",
        (): "error: no file at gone.jsonl",
        ("--count", "2"): 130,
    }.items():
        with pytest.raises(SystemExit) as end:
            run_command(work, [Asked], list(arguments))
        assert end.value.code == told
    assert capsys.readouterr().err == "interrupted: the same command goes on where it was\n"


def test_an_error_of_ours_keeps_its_traceback():
    """A ValueError of the library is no fault of the user."""
    with pytest.raises(ValueError) as error:
        run_command(lambda options: mcnemar([1] * 3, [1] * 2), [Asked], [])
    assert not isinstance(error.value, BadInput)


def test_the_first_interrupt_is_told_and_the_second_interrupts(capsys):
    """And behind the loop Ctrl-C is as before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), held_interrupt() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted() and "saving" in capsys.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before

"""The ends of every command: bad input in one line, an error of ours with its traceback, Ctrl-C."""

import os
import signal
from dataclasses import dataclass

import pytest

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.stats import mcnemar
from eagle_fsd.runs.command import ended_by, held_interrupt, run_command
from eagle_fsd.runs.jsonl import read_records


@dataclass
class Asked:
    count: int = 1

    def __post_init__(self):
        if self.count < 1:
            raise BadInput(f"--count must be at least 1, got {self.count}")


@dataclass
class Named:
    name: str = "someone"


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_command_gets_its_options_and_ends_quietly():
    got = []
    run_command(lambda *options: got.extend(options), [Asked, Named], ["--name", "me"])
    assert got == [Asked(1), Named("me")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--count", "0"], "--count must be at least 1, got 0"),
        # the parser raises a plain ValueError here, which would end in a traceback
        (["--conut", "2", "more"], "unknown arguments --conut 2 more: see --help"),
        ([], "no file at gone.jsonl"),
    ],
    ids=["refused option", "unknown option", "in the work"],
)
def test_bad_input_is_one_line_and_status_1(arguments, told):
    """sys.exit of a text prints it to standard error and gives status 1."""
    with pytest.raises(SystemExit) as end:
        run_command(lambda options: list(read_records("gone.jsonl")), [Asked], arguments)
    assert end.value.code == f"error: {told}"


def test_an_error_of_ours_keeps_its_traceback():
    """A ValueError of the library is no fault of the user."""
    with pytest.raises(ValueError, match="shorter") as error:
        run_command(lambda options: mcnemar([1] * 3, [1] * 2), [Asked], [])
    assert not isinstance(error.value, BadInput)


def test_ctrl_c_tells_how_to_go_on(capsys):
    with pytest.raises(SystemExit) as end:
        ended_by(interrupt)
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted: the same command goes on where it was\n"


def test_the_first_interrupt_is_told_and_the_second_interrupts(capsys):
    """And behind the loop Ctrl-C is as before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), held_interrupt() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted() and "saving" in capsys.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before

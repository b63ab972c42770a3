"""The ends of every command: an error of ours with its traceback, Ctrl-C (bad input: see there)."""

import os
import signal
from dataclasses import dataclass

import pytest

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.stats import mcnemar
from eagle_fsd.runs.command import held_interrupt, run_command


@dataclass
class Asked:
    pass


def test_ctrl_c_outside_a_loop(capsys):
    def work(options: Asked) -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        run_command(work, [Asked], [])
    assert end.value.code == 130
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

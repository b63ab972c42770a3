"""Others at work on the machine: how many threads a model gets beside them, on a machine of the
test's own; and whether timings are refused or warned of."""

import os

import psutil
import pytest
import torch

import eagle_fsd
from eagle_fsd.engine.threads import choose_threads
from eagle_fsd.timing import check_timing_alone


@pytest.fixture
def machine(monkeypatch):
    """Two cores, and how busy each is, percent; this process has torch's own number of threads."""
    percents, threads = [0.0, 0.0], torch.get_num_threads()
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: percents)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield percents
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("busy", "threads"), [((0, 0), 2), ((30, 10), 2), ((100, 0), 1)])
def test_a_model_loads_with_the_threads_that_are_free(machine, models, capsys, busy, threads):
    """Bug held down: a first answer took a minute, since two threads waited for each other beside
    one busy process."""
    machine[:] = busy
    target, head = map(str, models)
    eagle_fsd.load(target, head=head, dtype="float32")
    assert torch.get_num_threads() == threads
    told = "with 2 threads" if threads == 2 else "with 1 of 2 threads, since other processes keep"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("chosen", ["OMP_NUM_THREADS", "torch.set_num_threads", "cuda"])
def test_a_number_that_somebody_chose_stays(chosen, machine, monkeypatch):
    """So it is on an accelerator, whose products have no threads here."""
    machine[:] = [100.0, 100.0]
    if chosen == "OMP_NUM_THREADS":
        monkeypatch.setenv(chosen, "2")
    elif chosen == "torch.set_num_threads":
        torch.set_num_threads(3)
    threads = torch.get_num_threads()
    told = choose_threads("cuda" if chosen == "cuda" else "cpu")
    assert told == ("" if chosen == "cuda" else f"with {threads} threads")
    assert torch.get_num_threads() == threads


def test_a_busy_neighbour_is_told(machine):
    machine[:] = [100.0, 0.0]
    warnings = check_timing_alone("auto")  # of the CPU alone where there is no CUDA device
    assert "cores busy" in warnings[-1] and "idle" in warnings[-1]

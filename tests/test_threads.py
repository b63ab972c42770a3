"""How many threads a model gets beside busy neighbours: on a machine of the test's own, whose clock
and cores are its. The load of the real one is read nowhere."""

import os
from types import SimpleNamespace

import pytest
import torch
from commands import QUESTIONS, load_command, model_options, write_rows
from training_runs import data_options, head_options, make_data, train_head

import eagle_fsd
from eagle_fsd.engine.threads import NAMED, choose_threads, free_threads, load_by_others

LINE = "with 1 of 2 threads, since other processes keep 1.0 cores busy"


class Machine:
    """Two cores; percent, of each of them, what is busy in the samples to come, the last for all
    that follow; sampled, the seconds of those taken. This process rests."""

    def __init__(self) -> None:
        self.percent: list[list[float]] = [[0.0, 0.0]]
        self.sampled: list[float] = []

    def cpu_percent(self, percpu: bool) -> list[float]:
        return self.percent[min(max(len(self.sampled), 1), len(self.percent)) - 1]


@pytest.fixture
def machine(monkeypatch):
    """A machine, this process on it with torch's own number of threads, which are two."""
    made, threads = Machine(), torch.get_num_threads()
    clock = SimpleNamespace(
        sleep=made.sampled.append,
        perf_counter=lambda: sum(made.sampled),
        process_time=lambda: 0.0,
    )
    monkeypatch.setattr("eagle_fsd.engine.threads.time", clock)
    monkeypatch.setattr("eagle_fsd.engine.threads.psutil.cpu_percent", made.cpu_percent)
    monkeypatch.setattr("eagle_fsd.engine.threads.psutil.cpu_count", lambda logical: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield made
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("default", "busy", "cores", "threads"),
    [
        *((2, 0, 2, 2), (2, 0.4, 2, 2), (2, 0.6, 2, 1), (2, 1, 2, 1), (2, 2, 2, 1)),
        *((64, 0.4, 64, 64), (64, 1, 64, 63), (64, 60, 64, 4), (64, 64, 64, 1)),
        *((8, 0.4, 16, 8), (8, 1, 16, 7), (8, 8, 16, 4)),  # hyperthreads
        (1, 0, 1, 1),
    ],
)
def test_threads_that_neighbours_leave_by_hand(default, busy, cores, threads):
    assert free_threads(default, busy, cores) == threads


def test_a_model_loads_with_the_threads_that_are_free(machine, models, capsys):
    """Bug held down: a first answer took a minute, since two threads waited for each other beside
    one busy process. What is chosen stays, and stands in one line with the dtype."""
    target, head = map(str, models)
    machine.percent = [[100.0, 0.0]]
    model = eagle_fsd.load(target, head=head, dtype="float32")
    assert torch.get_num_threads() == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"loading {target} in float32 on cpu {LINE}")
    assert "OMP_NUM_THREADS" in lines[0]
    assert eagle_fsd.generate(model, "Hi", max_new_tokens=2).tokens
    eagle_fsd.load(target, head=head, dtype="float32")
    assert torch.get_num_threads() == 1
    assert capsys.readouterr().err == f"loading {target} in float32 on cpu with 1 thread\n"


@pytest.mark.parametrize("percent", [[[0.0, 0.0]], [[30.0, 10.0]], [[100.0, 100.0], [0.0, 0.0]]])
def test_an_idle_machine_keeps_torchs_own_number(percent, machine):
    """A burst of others, gone at the second look, is none of its business."""
    machine.percent = percent
    assert choose_threads("cpu") == "with 2 threads"
    assert torch.get_num_threads() == 2
    assert len(machine.sampled) == len(percent)


@pytest.mark.parametrize("chosen", [*NAMED, "torch.set_num_threads", "cuda", "auto"])
def test_a_number_that_somebody_chose_stays(chosen, machine, monkeypatch):
    """And costs no time; so it is on an accelerator, whose products have no threads here."""
    machine.percent, device = [[100.0, 100.0]], "cpu"
    if chosen in NAMED:
        monkeypatch.setenv(chosen, "2")
    elif chosen == "torch.set_num_threads":
        torch.set_num_threads(3)
    else:
        device = chosen
    threads = torch.get_num_threads()
    assert choose_threads(device) == (f"with {threads} threads" if device == "cpu" else "")
    assert torch.get_num_threads() == threads and not machine.sampled


@pytest.mark.parametrize("number", ["0", "abc", "-3", "1.5", " "])
def test_a_number_that_openmp_does_not_take_is_no_choice(number, machine, monkeypatch):
    """Bug held down: it was taken for one, and both threads waited beside a busy process."""
    machine.percent = [[100.0, 0.0]]
    monkeypatch.setenv("OMP_NUM_THREADS", number)
    assert choose_threads("cpu").startswith(LINE) and torch.get_num_threads() == 1


def test_where_the_system_does_not_tell_its_load_torchs_own_number_stays(machine, monkeypatch):
    """Bug held down: without a readable /proc loading ended in a FileNotFoundError."""

    def unreadable(percpu: bool) -> list[float]:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr("eagle_fsd.engine.threads.psutil.cpu_percent", unreadable)
    assert choose_threads("cpu") == "with 2 threads"
    assert torch.get_num_threads() == 2


def answer(models, data, folder) -> None:
    options = [*model_options(models), "--prompt", "Hi", "--max_new_tokens", "1"]
    load_command("evaluate/answer.py").main(list(map(str, options)))


def replay(models, data, folder) -> None:
    target, head = models
    path = write_rows(folder / "question.jsonl", *QUESTIONS)
    options = ["--target", target, "--heads", head, "--question_file", path, "--questions", 1]
    options += ["--texts", folder / "texts", "--output", folder / "run", "--max_new_tokens", 4]
    options += ["--arms", "exact@eagle:3x2x2", "--device", "cpu"]
    load_command("evaluate/replay.py").main(list(map(str, options)))


def data_made(models, data, folder) -> None:
    make_data(data_options(models[0], folder / "made", "--dialogues", "1"))


def trained(models, data, folder) -> None:
    train_head(head_options(models[0], data, folder / "head", steps=1))


@pytest.mark.parametrize("command", [answer, replay, data_made, trained])
def test_every_way_of_loading_in_commands(command, machine, models, data, tmp_path, capsys):
    machine.percent = [[0.0, 100.0]]
    command(models, data, tmp_path)
    assert torch.get_num_threads() == 1
    assert capsys.readouterr().err.count(LINE) == 1


def test_own_work_is_no_load_of_others(monkeypatch):
    """A clock and a machine of the test's own, where this process computes on half a core."""
    first, *rest = sorted(os.sched_getaffinity(0))
    percents = [100.0] * (max(first, *rest, 0) + 2)  # cores of others are no business of ours
    percents[first] = 90.0
    for core in rest:
        percents[core] = 0.0
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(
        sleep=sleep, perf_counter=lambda: now, process_time=lambda: 7 + 0.5 * now
    )
    monkeypatch.setattr("eagle_fsd.engine.threads.time", clock)
    monkeypatch.setattr("eagle_fsd.engine.threads.psutil.cpu_percent", lambda percpu: percents)
    assert load_by_others(0.2) == pytest.approx(0.4)
    # bug held down: the list is of cores that are online, and may end before our own number
    percents = [90.0] * max(first, *rest, 1)
    assert load_by_others(0.2) == pytest.approx(0.9 * len(percents) - 0.5)

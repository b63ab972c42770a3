"""What a speed run is made of: peak memory, single forwards, rotation; and
whether timings are refused or warned of when others are at work."""

import contextlib
import shutil
import subprocess
import sys
from functools import partial

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.speed.by_context import price_lines
from eagle_fsd.speed.forwards import forward_rows, in_turn, rows_needed, time_forwards
from eagle_fsd.speed.profiled import peak_bytes
from eagle_fsd.timing import check_timing_alone, other_processes, rotated

CPU = torch.device("cpu")


def test_peak_memory_by_hand():
    """Two blocks of 4000 bytes at a time, then 8000 more while one of them is gone; and what an
    operator takes inside: logsumexp returns one number and holds as many as it reads."""
    before = torch.ones(1000)

    def work() -> None:
        first = before + 1
        second = first + 1
        del first
        third = torch.empty(2000)
        del second, third

    assert peak_bytes(CPU, work) == 4000 + 8000
    assert 4000 <= peak_bytes(CPU, lambda: torch.logsumexp(before, 0)) < 12100


def test_forwards_in_turn_and_their_rows_by_hand():
    """Nobody always follows the same. A draft level is (6 levels - 2 levels) / 4 of one turn."""
    assert rotated("abc", 4) == ["b", "c", "a"]
    called = []
    probes = {n: (partial(called.append, n), partial(called.append, ".")) for n in "ab"}
    seconds = in_turn(CPU, probes, 2, label="")
    assert [len(taken) for taken in seconds.values()] == [2, 2]
    assert "".join(called) == "a.b.b.a.a.b.b.a.a.b."
    seconds = {"stock": [2.0, 4.0], "draft 2x3": [1.0, 2.0], "draft 6x3": [3.0, 8.0]}
    rows = {row["forward"]: row for row in forward_rows(seconds)}
    assert rows["stock"]["median_ms"] == 3000 and rows["stock"]["median_vs_first"] == 1
    level = rows["draft level x3"]
    assert (level["median_ms"], level["min_ms"]) == (1000, 500)


@pytest.mark.parametrize("drafts", [False, True])
def test_forwards_are_timed(drafts):
    """All kinds, as often as asked, within the positions that are announced; the drafts are as wide
    as the model's own."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target), target, TreeConfig(7, 3, 3))
    model = Model(target, None, drafter if drafts else RootDrafter())
    context = prompt_tokens(target.max_positions - rows_needed(2))
    seconds = time_forwards(model, context, 2)
    names = ["stock", *(f"verify {width}" for width in (1, 4, 6, 8, 12, 16, 24, 60))]
    assert list(seconds) == names + ["draft 2x3", "draft 6x3"] * drafts
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())


# --- others at work -------------------------------------------------------------------------------


@contextlib.contextmanager
def other_process(code: str):
    """A process that has begun its work, ended afterwards."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            yield process
        finally:
            process.kill()


@pytest.mark.processes
def test_a_busy_neighbour_is_told():
    """On this process's own cores; where it rests nothing of it is counted."""
    with other_process("print('begun', flush=True)\nwhile True: pass"):
        warnings = check_timing_alone("auto")  # of the CPU alone where there is no CUDA device
        assert "cores busy" in warnings[-1] and "idle" in warnings[-1]
        assert torch.cuda.is_available() or len(warnings) == 1


def test_this_process_is_not_another():
    """Known by its id, or by being the only one where ids are the host's."""
    assert other_processes([7], 7) == []
    assert other_processes([7, 8, 9], 8) == [7, 9]
    assert other_processes([4711], 7) == []
    assert other_processes([4711, 4712], 7) == [4711, 4712]


@pytest.mark.processes
@pytest.mark.skipif(
    not torch.cuda.is_available() or not shutil.which("nvidia-smi"), reason="no CUDA device"
)
def test_a_neighbour_on_the_cuda_device_is_refused():
    """While it holds a context; when it has gone the device is ours."""
    code = "import torch; torch.zeros(1, device='cuda'); print('begun', flush=True); input()"
    with other_process(code), pytest.raises(BadInput, match="other processes use cuda"):
        check_timing_alone("cuda")
    assert not any("cuda" in warning for warning in check_timing_alone("cuda"))


def test_prices_by_hand():
    """A node of .7 ms and a level of .5 where a token takes 10: keep .07, deepen 1.2 / 10 / .6."""
    single = [
        {"context": 40, "forward": name, "median_ms": ms}
        for name, ms in [("verify 1", 10.0), ("verify 8", 14.9), ("draft level x4", 0.5)]
    ]
    rows = [("plain", 9, 12.0, 9), ("exact", 5, 20.0, 10), ("exact@hybrid", 5, 20.0, 99)]
    rows += [("exact@eagle:7x3x4", 0, None, 0)]
    rounds = [
        {"context": 40, "arm": arm, "rounds": n, "ms_per_round": ms, "round_tokens": tokens}
        for arm, n, ms, tokens in rows
    ]
    (line,) = price_lines(rounds, single)
    assert "a node takes 0.70 ms, a level 0.50, a token 10.00" in line
    assert line.endswith("exact@eagle:12x6x4,keep=0.07,deepen=0.2")
    assert not price_lines(rounds, single[:2]) and not price_lines(rounds[:1], single)

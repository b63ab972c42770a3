"""Whether timings are refused or warned of when others are at work."""

import contextlib
import shutil
import subprocess
import sys
import time

import pytest
import torch

from eagle_fsd.config import BadInput
from eagle_fsd.speed.clock import check_timing_alone, load_by_others, other_processes


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


def test_own_work_is_no_load_of_others(monkeypatch):
    """A time that this process itself spends computing, on an idle machine or a full one."""
    resting = min(load_by_others(0.2) for _ in range(3))

    def compute(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    monkeypatch.setattr("eagle_fsd.speed.clock.time.sleep", compute)
    assert min(load_by_others(0.2) for _ in range(3)) < resting + 0.4


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

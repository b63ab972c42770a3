"""CUDA without a GPU: torch's fake tensors have a device and a shape, but no numbers, and refuse to
mix devices. What the host reads of them is what the same work on the CPU has read."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

READS = ("tolist", "item", "numpy")
aten = torch.ops.aten

if not torch.backends.cuda.is_built():
    # As a torch built with CUDA does itself where there is no GPU: "cuda" gets a device guard that
    # does nothing, here that of "meta" (numbers: c10/core/DeviceType.h).
    libc10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 15).in_dll(libc10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[14]


class FakeCuda(FakeTensorMode):
    """Notes for what the host waits: "to cpu", "to cuda", and (on_cuda) reads by name, "tolist".
    Refuses an index on another device, which fake tensors let pass."""

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)
        self.waits: list[str] = []

    def __deepcopy__(self, memo: dict) -> "FakeCuda":
        return self  # in which a module with fake tensors is copied

    def dispatch(self, func, types, args=(), kwargs=None):
        output = super().dispatch(func, types, args, kwargs)
        if func in (aten.index.Tensor, aten.index_put_.default):
            devices = {value.device for value in (args[0], *args[1]) if value is not None}
            assert len(devices) == 1, f"{func} of tensors on {devices}"
        if func in (aten._to_copy.default, aten.copy_.default):
            source = args[-1] if func is aten.copy_.default else args[0]
            if source.device != output.device and not (kwargs or {}).get("non_blocking"):
                self.waits.append(f"to {output.device.type}")
        return output


def on_cuda(make: Callable[[], Sequence], work: Callable) -> tuple:
    """work("cpu", *made), work("cuda:0", *made), and for what the host waited in the second. What
    is made, on the CPU, is for the work to move."""
    known, mode = [], FakeCuda()

    def note(tensor: torch.Tensor, name: str, read: Callable):
        known.append((name, tensor.shape, read(tensor)))
        return known[-1][-1]

    def answer(tensor: torch.Tensor, name: str):
        *asked, value = known.pop(0)
        assert asked == [name, tensor.shape]
        mode.waits += [name] if tensor.device.type == "cuda" else []
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eagle_fsd.decoding.verified.VerifiedTree._row_by_row", False)
        for name in READS:
            patch.setattr(
                torch.Tensor, name, partialmethod(note, name, getattr(torch.Tensor, name))
            )
        want = work("cpu", *make())
    made = make()
    with pytest.MonkeyPatch.context() as patch, mode:
        for name in READS:
            patch.setattr(FakeTensor, name, partialmethod(answer, name), raising=False)
        got = work("cuda:0", *made)
    assert not known
    return want, got, mode.waits

"""CUDA without a GPU: torch's fake tensors have a device and a shape, and refuse to mix devices;
each has its numbers beside it, computed on the CPU."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakIdKeyDictionary

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
        self.numbers = WeakIdKeyDictionary()  # by fake tensor, on the CPU
        self._within = False

    def __deepcopy__(self, memo: dict) -> "FakeCuda":
        return self  # in which a module with fake tensors is copied

    def dispatch(self, func, types, args=(), kwargs=None):
        if func is aten._fused_sdp_choice.default:
            return 0  # of small operators, which a CPU has too
        kwargs = kwargs or {}
        outermost, self._within = not self._within, True  # what is within computes a part of it
        try:
            output = super().dispatch(func, types, args, kwargs)
        finally:
            self._within = not outermost
        if func in (aten.index.Tensor, aten.index_put_.default):
            devices = {value.device for value in (args[0], *args[1]) if value is not None}
            assert len(devices) == 1, f"{func} of tensors on {devices}"
        if func in (aten._to_copy.default, aten.copy_.default):
            source = args[-1] if func is aten.copy_.default else args[0]
            if source.device != output.device and not kwargs.get("non_blocking"):
                self.waits.append(f"to {output.device.type}")
        if outermost:
            with torch.no_grad():
                numbers = func(*tree_map(self._on_cpu, args), **tree_map(self._on_cpu, kwargs))
            for fake, real in zip(tree_flatten(output)[0], tree_flatten(numbers)[0], strict=True):
                if isinstance(fake, FakeTensor):
                    self.numbers[fake] = real
        return output

    def _on_cpu(self, value):
        """What an operator on the CPU is given in an argument's place."""
        if isinstance(value, FakeTensor):
            return self.numbers[value]
        return torch.device("cpu") if isinstance(value, torch.device) else value


def on_cuda(make: Callable[[], Sequence], work: Callable) -> tuple:
    """work("cpu", *made), work("cuda:0", *made), and for what the host waited in the second. What
    is made, on the CPU, is for the work to move."""
    want, made, mode = work("cpu", *make()), make(), FakeCuda()

    def read(tensor: FakeTensor, name: str):
        mode.waits += [name] if tensor.device.type == "cuda" else []
        with unset_fake_temporarily():
            return getattr(mode.numbers[tensor], name)()

    with pytest.MonkeyPatch.context() as patch, mode:
        for name in READS:
            patch.setattr(FakeTensor, name, partialmethod(read, name), raising=False)
        got = work("cuda:0", *made)
    return want, got, mode.waits

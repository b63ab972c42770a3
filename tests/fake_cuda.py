"""CUDA without a GPU: torch's fake tensors have a device and a shape, and refuse to mix devices;
each has its numbers beside it, computed on the CPU."""

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakIdKeyDictionary

READS = ("tolist", "item", "numpy", "__bool__")
aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
# Operators that return a tensor without running a kernel, beside those that return a view
NO_LAUNCH = re.compile("aten.(empty|new_empty|_unsafe_view|lift_fresh|detach|_local_scalar)|prim")

if not torch.backends.cuda.is_built():
    # As a torch built with CUDA does itself where there is no GPU: "cuda" gets a device guard that
    # does nothing, here that of "meta" (numbers: c10/core/DeviceType.h).
    libc10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 15).in_dll(libc10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[14]


class FakeCuda(FakeTensorMode):
    """Notes for what the host waits: "to cpu", "to cuda", and (on_cuda) reads by name, "tolist".
    Refuses an index on another device, which fake tensors let pass.

    Attributes:
        launches: how often each operator ran on the device that has a kernel of its own, by name;
            of one that is made of others, these, but for attention, which is fused there, and
            whose result lies in memory as that of the memory-efficient kernel: heads within rows.
        attended: sizes and strides of the queries, keys, values and mask of every attention.
    """

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)
        self.waits: list[str] = []
        self.launches: Counter[str] = Counter()
        self.attended: list[tuple] = []
        self.numbers = WeakIdKeyDictionary()  # by fake tensor, on the CPU
        self._within = False

    def __deepcopy__(self, memo: dict) -> "FakeCuda":
        return self  # in which a module with fake tensors is copied

    def dispatch(self, func, types, args=(), kwargs=None):
        if func is aten._fused_sdp_choice.default:
            return 0  # of small operators, which a CPU has too
        if func is aten.equal.default:
            self.waits.append("equal")
            with unset_fake_temporarily():
                return func(*map(self._on_cpu, args))
        kwargs, so_far = kwargs or {}, self.launches.copy()
        outermost, self._within = not self._within, True  # what is within computes a part of it
        try:
            output = super().dispatch(func, types, args, kwargs)
            if func is ATTENTION:
                output = output.transpose(1, 2).contiguous().transpose(1, 2)
        finally:
            self._within = not outermost
        if func in (aten.index.Tensor, aten.index_put_.default):
            devices = {value.device for value in (args[0], *args[1]) if value is not None}
            assert len(devices) == 1, f"{func} of tensors on {devices}"
        if func in (aten._to_copy.default, aten.copy_.default):
            source = args[-1] if func is aten.copy_.default else args[0]
            if source.device != output.device and not kwargs.get("non_blocking"):
                self.waits.append(f"to {output.device.type}")
        if func is ATTENTION:
            given = [*args[:4], kwargs.get("attn_mask")]
            self.attended.append(tuple((t.shape, t.stride()) for t in given if t is not None))
            self.launches = so_far + Counter([str(func)])
        elif self.launches == so_far and self._has_kernel(func, output):
            self.launches[str(func)] += 1
        if outermost:
            with torch.no_grad():
                numbers = func(*tree_map(self._on_cpu, args), **tree_map(self._on_cpu, kwargs))
            for fake, real in zip(tree_flatten(output)[0], tree_flatten(numbers)[0], strict=True):
                if isinstance(fake, FakeTensor):
                    self.numbers[fake] = real
        return output

    def _has_kernel(self, func, output) -> bool:
        views = [one.alias_info for one in func._schema.returns if one.alias_info is not None]
        is_view = any(not alias.is_write for alias in views)
        parts = [part for part in tree_flatten(output)[0] if isinstance(part, FakeTensor)]
        on_device = any(part.device.type == "cuda" for part in parts)
        return on_device and not is_view and not NO_LAUNCH.match(str(func))

    def _on_cpu(self, value):
        """What an operator on the CPU is given in an argument's place."""
        if isinstance(value, FakeTensor):
            return self.numbers[value]
        return torch.device("cpu") if isinstance(value, torch.device) else value


def on_cuda(make: Callable[[], Sequence], work: Callable) -> tuple:
    """work("cpu", *made), work("cuda:0", *made), and for what the host waited in the second. What
    is made, on the CPU, is for the work to move."""
    want, mode = work("cpu", *make()), FakeCuda()
    return want, within(mode, partial(work, "cuda:0", *make())), mode.waits


def within(mode: FakeCuda, work: Callable) -> object:
    """What the work returns, whose reads of tensors are noted and read."""

    def read(tensor: FakeTensor, name: str):
        mode.waits += [name] if tensor.device.type == "cuda" else []
        with unset_fake_temporarily():
            return getattr(mode.numbers[tensor], name)()

    with pytest.MonkeyPatch.context() as patch, mode:
        for name in READS:
            patch.setattr(FakeTensor, name, partialmethod(read, name), raising=False)
        return work()

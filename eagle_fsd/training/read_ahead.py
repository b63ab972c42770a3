"""The batches of a training, of which the next is read while a step runs."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from eagle_fsd.training.data import Batches, HeadBatch


class ReadAhead:
    """Batches on a device, of which each comes `stride` behind the one before it.

    One thread reads the next one's kept states, into pinned memory for CUDA. States that are not
    kept yet are computed where the batch is asked for: a forward beside a step would take its
    memory. So what is in a batch does not depend on the thread, and what the thread raises is
    raised where its batch is asked for.
    """

    def __init__(self, batches: Batches, device: torch.device, *, stride: int):
        self._batches, self._device, self._stride = batches, device, stride
        self._pinned = device.type == "cuda"
        # a thread's own CUDA device is the first, and pinning would take memory there
        begin = {}
        if self._pinned:
            # accelerate names the device of a process alone without its number
            index = torch.cuda.current_device() if device.index is None else device.index
            begin = {"initializer": torch.cuda.set_device, "initargs": (index,)}
        self._thread = ThreadPoolExecutor(1, "read ahead", **begin)
        self._next: dict[int, Future[HeadBatch | None]] = {}  # by number

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def batch(self, number: int) -> HeadBatch:
        ahead, following = self._next.get(number), number + self._stride
        read = self._read(number) if ahead is None else ahead.result()
        self._next = {following: self._thread.submit(self._read, following)}
        return self._batches.batch(number, self._device, read=read)

    def _read(self, number: int) -> HeadBatch | None:
        read = self._batches.read(number)
        if read is None or not self._pinned:
            return read
        return HeadBatch(*(part.pin_memory() for part in read))

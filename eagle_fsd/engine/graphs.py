"""Functions of fixed shapes, recorded once as CUDA graphs and replayed (or compiled: compiled.py).

A small model's forward is hundreds of kernels, and launching them takes longer than running them. A
recorded graph is launched at once, and does again what was recorded: same shapes, same addresses.
So what changes from round to round (tokens, positions, masks, cache rows) comes in as tensors, and
the cache is read up to a `bucket` of rows, the rows that are not valid hidden by the mask.

Not run on a GPU by its authors yet; on a CPU the functions run as they are, which the tests use.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.engine import CachedSequence, NodeForward
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.engine.attention import Folded
from eagle_fsd.recurrent.hooks import TreeForward

BUCKET_ROWS = 256
Output = TypeVar("Output")


def bucket_of(rows: int, size: int = BUCKET_ROWS) -> int:
    """Rows that a forward of fixed shapes reads, at least `rows`."""
    return -(-rows // size) * size


class Recorder:
    """Runs functions of tensors; on CUDA records each once by key, then replays it.

    Args:
        device: anything but CUDA runs every function as it is.
    """

    def __init__(self, device: torch.device):
        self.on = device.type == "cuda"
        self._device = device
        self.forget()

    def forget(self) -> None:
        """Drop all graphs: an address that they know has changed."""
        self._graphs: dict[Hashable, tuple] = {}
        # One pool for all graphs of a recorder. They never need each other's results: a replay may
        # overwrite what another graph of the same recorder has left. A pool whose graphs are all
        # gone cannot be used again.
        self._pool = torch.cuda.graph_pool_handle() if self.on else None

    def run(
        self,
        key: Hashable,
        function: Callable[..., Output],
        row_K: torch.Tensor,
        *others: torch.Tensor,
    ) -> Output:
        """function(row_K, *others); its result is good until the next run.

        Args:
            key: of the function and of all that is fixed in it; shapes included, but for K.
            function: reads nothing back to the host, and may be run several times.
            row_K: the cache rows that are read, 0 to K - 1.
            others: tensors on the device.
        """
        inputs = (row_K, *others)
        if not self.on:
            return function(*inputs)
        key = key, row_K.shape[0]
        with torch.cuda.device(self._device):
            if key not in self._graphs and not self._try_to_record(key, function, inputs):
                return function(*inputs)
            graph, held, output = self._graphs[key]
            for mine, given in zip(held, inputs, strict=True):
                mine.copy_(given)
            graph.replay()
            return output

    def _try_to_record(
        self, key: Hashable, function: Callable, inputs: tuple[torch.Tensor, ...]
    ) -> bool:
        now = torch.cuda.current_stream()
        try:
            self._graphs[key] = self._record(function, inputs)
            return True
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(now)  # a capture that fails leaves its own stream behind
            self.on = False
            self._graphs.clear()
            reason = str(error).splitlines()[0]
            warnings.warn(f"CUDA graphs are off, running eagerly: {reason}", stacklevel=3)
            return False

    def _record(self, function: Callable, inputs: tuple[torch.Tensor, ...]) -> tuple:
        held = [value.clone() for value in inputs]
        now, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(now)
        with torch.cuda.stream(aside):  # lazy initialisation must not be recorded
            for _ in range(2):
                function(*held)
        now.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=aside):
            output = function(*held)
        return graph, held, output


@contextmanager
def fixed_rows(cache: TreeCache, start: torch.Tensor, count: int, bucket: int) -> Iterator[None]:
    """The cache writes rows [start, start + count), start being on the device, and is read up to
    the bucket."""
    cache.fixed = start + torch.arange(count, device=start.device), bucket
    try:
        yield
    finally:
        cache.fixed = None


def visible_rows(seen_TE: torch.Tensor, start: torch.Tensor, bucket: int) -> torch.Tensor:
    """Which cache rows a node sees, bool [T, bucket].

    All rows before `start`, and of the rows [start, start + E) those that `seen_TE` says.

    Example: start 2, bucket 6, seen [[1, 0], [1, 1]] gives rows 110000 without the tree's, and so
    111000 and 111100.
    """
    E = seen_TE.shape[1]
    column_K = torch.arange(bucket, device=start.device) - start
    inside_K = (column_K >= 0) & (column_K < E)
    tree_TK = seen_TE[:, column_K.clamp(0, E - 1)] & inside_K
    return tree_TK | (column_K < 0)


class RecordedSequence(CachedSequence):
    """A sequence whose trees are drafted and verified by functions of fixed shapes.

    Graphs know the cache by its address, so the largest so far is kept from one sequence to the
    next.

    Attributes:
        read_rows, held_rows: the cache is read, and allocated, in multiples of these.
        length_on_device: `length`, int64 [], for what is recorded.
    """

    read_rows = held_rows = BUCKET_ROWS

    def __init__(self, new_cache: Callable[[int], TreeCache], device: torch.device):
        super().__init__(new_cache, device)
        self._recorder = self.new_recorder(device)
        self._bucket: int | None = None  # of the tree that is being drafted

    def new_recorder(self, device: torch.device) -> Recorder:
        """What runs the functions."""
        return Recorder(device)

    def start(self, capacity: int) -> None:
        self.length = 0
        self.length_on_device = torch.zeros((), dtype=torch.int64, device=self._device)
        if self.cache is None or self.cache.capacity < capacity:
            self.cache = self._new_cache(bucket_of(capacity, self.held_rows))
            self._recorder.forget()
        self.cache.clear()

    def advance(self, rows: int) -> None:
        self.length += rows
        self.length_on_device += rows

    def run(
        self, key: Hashable, function: Callable[..., Output], rows: int, *inputs: torch.Tensor
    ) -> Output:
        """See Recorder.run; of at least `rows` cache rows."""
        bucket = min(bucket_of(rows, self.read_rows), self.cache.capacity)
        row_K = torch.arange(bucket, device=self._device)
        return self._recorder.run((key, self.cache.capacity), function, row_K, *inputs)

    def verify(self, tree: DraftTree, forward: NodeForward) -> tuple[torch.Tensor, torch.Tensor]:
        """As a function of fixed shapes, of one node too."""
        N = tree.size

        def recorded(row_K, token_N, parent_N, depth_N, ancestor_NN, prefix):
            bucket = row_K.shape[0]
            position_N = prefix + depth_N
            tree_K = (row_K - prefix).clamp(0, N - 1)
            key_position_K = torch.where(row_K < prefix, row_K, position_N[tree_K])
            visible_NK = visible_rows(ancestor_NN, prefix, bucket)
            with fixed_rows(self.cache, prefix, N, bucket):
                # recurrent layers take a single token by transformers' own step
                nodes = TreeForward(parent_N, ancestor_NN) if N > 1 else None
                return forward(token_N, position_N, visible_NK, key_position_K, nodes)

        inputs = (
            tree.token_N,
            tree.parent_N,
            tree.depth_N,
            tree.ancestor_NN,
            self.length_on_device,
        )
        output = self.run(N, recorded, self.length + N, *inputs)
        self.cache.length = self.length + N
        return output

    def draft(
        self,
        grow: Callable[..., DraftTree],
        features_TF: torch.Tensor,
        token_T: torch.Tensor,
        *more: torch.Tensor,
        slots: int,
        rows: int,
        kind: Hashable,
    ) -> DraftTree:
        """As a function of fixed shapes, padded to the slots; a prompt does not fit them, and comes
        first."""
        T = token_T.shape[0]
        if self.length == 0 or T > slots:
            room = {"slots": slots, "rows": rows, "kind": kind}
            return super().draft(grow, features_TF, token_T, *more, **room)

        def fixed(row_K, *inputs):
            self._bucket = row_K.shape[0]
            try:
                return grow(*inputs)
            finally:
                self._bucket = None

        features_SF = nn.functional.pad(features_TF, (0, 0, 0, slots - T))
        token_S = nn.functional.pad(token_T, (0, slots - T))
        count = torch.full((), T, device=token_T.device)
        inputs = (features_SF, token_S, count, self.length_on_device, *more)
        return self.run(kind, fixed, self.length + slots + rows, *inputs)

    def step(
        self,
        forward: Callable[..., torch.Tensor],
        seen_TE: torch.Tensor | None,
        base: int | torch.Tensor,
    ) -> torch.Tensor:
        if self._bucket is None:
            return super().step(forward, seen_TE, base)
        T, E = seen_TE.shape
        with fixed_rows(self.cache, base + E - T, T, self._bucket):
            return forward(visible_TS=visible_rows(seen_TE, base, self._bucket))


class Graphs(Folded):
    """On one CUDA device: folded attention, verification and drafting as CUDA graphs."""

    name = "graphs"
    runs_states = False
    sequence = RecordedSequence

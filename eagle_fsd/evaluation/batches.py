"""Answers that are made together, for runs of quality: on an accelerator, where a forward waits for
its launches, eight of them should cost little more than one (results/batches).

Every answer runs the loop in a thread of its own. One thread at a time goes on, until it needs a
forward of target or head. When all stand still, those that wait for the same model get one padded
forward, and go on one after the other. So who runs together follows from the answers alone, never
from the clock, and nothing needs a lock. Prompts run alone. A text differs from the one that is
made alone where logits are closer than a product's rounding, which goes by how many rows it has.

Axes: M answers of a forward, N the most new rows of one of them, K cache rows that they read.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.cache import TextRows, TreeCache
from eagle_fsd.decoding.masks import additive_mask
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.timing import free_bytes

ALIGNED = 8  # CUDA's kernels want rows of a mask 16 bytes apart
WIDE = 32  # a step of more positions, a block of a prompt, would pad those of others to as many

Pair = tuple[torch.Tensor, torch.Tensor]
padded = partial(pad_sequence, batch_first=True)  # [M, N, ..] from M tensors [n, ..]


class Batch:
    """Up to `size` answers under way on `model`, which answers as ever outside `run`."""

    def __init__(self, model: Model, size: int):
        self.size, self._going = size, None
        self.alone: set[int] = set()  # numbers of the answers that had too few rows
        self._target = target = SharedTarget(model.target, self)
        self.model = replace(model, target=target)
        if isinstance(model.drafter, EagleDrafter):
            self.model = replace(self.model, drafter=SharedHead(model.drafter, target, self))

    def reserve(self, capacity: int) -> None:
        """Before the first forward: rows for each prompt, answer and tree. An answer that needs
        more is made alone, and numbered in `alone`."""
        for shared in (self.model.target, self.model.drafter):
            if isinstance(shared, SharedTarget | SharedHead):
                has_room = shared.rows.reserve(capacity)
                assert has_room, "forwards have run, with fewer rows"

    def run(self, calls: Iterable[Callable[[], object]]) -> Iterator[tuple[int, object]]:
        """Number and result of each answer, as they end. Behind one that raises none is begun, and
        when the others have ended its error is raised. At Ctrl-C all end."""
        waiting, failed = enumerate(calls), None
        self.alone.clear()
        under_way: dict[int, _Answer] = {}  # by the number of their text
        ready: list[tuple[_Answer, Pair | None]] = []
        try:
            while True:
                # 1. Who has got a forward, or begins, goes on to the next that it needs.
                for answer, given in ready:
                    self._going = answer
                    answer.go_on(given)
                    self._going = None
                    if answer.asked is None:
                        answer.join()
                        del under_way[answer.text]
                        failed = failed or answer.error
                        if not answer.error:
                            yield answer.number, answer.result
                # 2. Others begin in the places of those that have ended.
                free = [text for text in range(self.size) if text not in under_way]
                begun = zip(free, waiting, strict=False) if not failed else ()
                ready = [(_Answer(*each), None) for each in begun]
                under_way |= {answer.text: answer for answer, _ in ready}
                # 3. One forward. The head's first, so that trees grown earlier wait for others.
                if not ready and under_way:
                    standing = [under_way[text] for text in sorted(under_way)]
                    steps = [answer for answer in standing if answer.asked[0] is not self._target]
                    together = steps or standing
                    model, _ = together[0].asked
                    told = zip(*(answer.asked[1] for answer in together), strict=True)
                    ready = list(zip(together, model.together(*told), strict=True))
                if not ready:
                    break
        finally:
            for answer in under_way.values():
                answer.end()
            self._going = None  # at Ctrl-C it is one of these
        if failed:
            raise failed

    def wait(self, model: "SharedTarget | SharedHead", *told: object) -> Pair:
        """For a forward of it, which `together` runs with what each answer tells."""
        return self._going.wait((model, told))

    def next_turn(self) -> None:
        """The answer that goes on is done with its texts so far, and their rows are free for it."""
        if self._going is not None:
            self._going.rows.clear()

    def begin(self, rows: "SharedRows", capacity: int) -> TextRows | None:
        """Rows for the answer that goes on; None: they are too few, or it has some already."""
        answer = self._going
        if answer is None or rows in answer.rows:
            return None
        if not rows.reserve(capacity):
            self.alone.add(answer.number)
            return None
        answer.rows.append(rows)
        return TextRows(rows, answer.text)


class _Answer(threading.Thread):
    """Goes on while the thread that calls `go_on` stands still, and the other way round. `asked` is
    the forward that it waits for; None: it has ended, with its result or error."""

    def __init__(self, text: int, numbered: tuple[int, Callable[[], object]]):
        super().__init__(daemon=True)
        self.text, (self.number, self._call) = text, numbered
        self.asked = self.result = self.error = None
        self.rows: list[SharedRows] = []
        self._to, self._from = SimpleQueue(), SimpleQueue()
        self.start()

    def run(self) -> None:
        try:
            self._take()
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self._from.put(None)

    def go_on(self, given: Pair | None) -> None:
        self._to.put(given)
        self.asked = self._from.get()

    def wait(self, asked: tuple) -> Pair:
        self._from.put(asked)
        return self._take()

    def _take(self) -> Pair | None:
        if isinstance(given := self._to.get(), SystemExit):
            raise given
        return given

    def end(self) -> None:
        """At its next stop it closes what it has opened; one that stops no more is left."""
        self._to.put(SystemExit())
        self.join(timeout=5)


class SharedRows(TreeCache):
    """Keys and values of all answers; the last row of each takes what padding writes."""

    def reserve(self, capacity: int) -> bool:
        """So many a text; False: since the first forward there are fewer."""
        if not self.layers[0].is_initialized:
            self.capacity = max(self.capacity, -(-capacity // ALIGNED) * ALIGNED + ALIGNED)
        return capacity < self.capacity

    def buffers(self, index: int, key_states: torch.Tensor, value_states: torch.Tensor) -> Pair:
        if index == 0:
            row = key_states[0, :, 0].nbytes + value_states[0, :, 0].nbytes
            needed = row * self.capacity * len(self.layers) * self.texts
            if needed > (free := free_bytes(key_states.device)):
                raise BadInput(
                    f"--batch {self.texts} needs {needed / 1e9:.3g} GB for as many times "
                    f"{self.capacity} tokens, of which {free / 1e9:.3g} GB are free: lower it"
                )
        return super().buffers(index, key_states, value_states)


def joined(
    caches: Sequence[TextRows], rows: Sequence[torch.Tensor], seen: Sequence[torch.Tensor]
) -> tuple[TreeCache, torch.Tensor]:
    """Their cache, for a forward over these answers that writes these rows, int64 [n] each; and
    which rows each new one sees, bool [M, N, K] from [n, k] each."""
    cache, texts = caches[0].shared, [own.text for own in caches]
    end = -(-max(seen_NK.shape[1] for seen_NK in seen) // ALIGNED) * ALIGNED
    cache.write(padded(rows, padding_value=cache.capacity - 1), end, texts=texts)
    visible_MNK = padded([nn.functional.pad(own, (0, end - own.shape[1])) for own in seen])
    # all see a text's first token, and padding with them: what sees nothing might become NaN
    visible_MNK[:, :, 0] = True
    return cache, visible_MNK


class SharedTarget(Target):
    def __init__(self, target: Target, batch: Batch):
        vars(self).update(vars(target))
        self._batch = batch
        self.rows = SharedRows(self.num_layers, 0, texts=batch.size, **self._cache_settings)

    def begin(self, capacity):
        return self._batch.begin(self.rows, capacity) or super().begin(capacity)

    def verify(self, cache, tree):
        if not isinstance(cache, TextRows):
            return super().verify(cache, tree)
        return self._batch.wait(self, cache, tree)

    @torch.inference_mode()
    def together(self, caches, trees) -> list[Pair]:
        """As `verify`, of each."""
        rows, seen, positions = [], [], []
        for cache, tree in zip(caches, trees, strict=True):
            prefix, end = cache.committed, cache.committed + tree.size
            rows.append(torch.arange(prefix, end, device=self.device))
            seen.append(nn.functional.pad(tree.ancestor_NN, (prefix, 0), value=True))
            positions.append(prefix + tree.depth_N)
            cache.length = end
        cache, visible_MNK = joined(caches, rows, seen)
        position_MN = padded(positions)
        row_MK = torch.arange(cache.capacity, device=self.device).repeat(len(trees), 1)
        key_position_MK = row_MK.scatter_(1, cache.row_N, position_MN)[:, : cache.end]
        hidden_MND, features_MNF = self.forward(
            padded([tree.token_N for tree in trees]),
            cache=cache,
            attention_mask=self.masks(visible_MNK, key_position_MK[:, None], position_MN),
            position_ids=position_MN.clamp_max(self.max_positions - 1),
        )
        logits_MNV, sizes = self.readout(hidden_MND), [tree.size for tree in trees]
        each = zip(logits_MNV, features_MNF, sizes, strict=True)
        return [(logits_NV[:size], features_NF[:size]) for logits_NV, features_NF, size in each]


class SharedHead(EagleDrafter):
    def __init__(self, eagle: EagleDrafter, target: SharedTarget, batch: Batch):
        vars(self).update(vars(eagle))
        self.rows = SharedRows(self.head.config.num_hidden_layers, 0, texts=batch.size)
        self._batch, self.target = batch, target
        self._compiled_step = self._shared_step  # compiled code is of one text

    def new_cache(self, capacity):
        return self._batch.begin(self.rows, capacity) or super().new_cache(capacity)

    def _shared_step(self, cache, hidden_TD, token_T, place_T, row_T, visible_TS, *more):
        if len(token_T) > WIDE or not isinstance(cache, TextRows):
            return self.step(cache, hidden_TD, token_T, place_T, row_T, visible_TS, *more)
        if visible_TS is None:  # a position alone sees all before it
            visible_TS = torch.ones(1, cache.length + 1, dtype=torch.bool, device=token_T.device)
        return self._batch.wait(self, cache, hidden_TD, token_T, place_T, row_T, visible_TS, *more)

    @torch.inference_mode()
    def together(self, caches, hidden, tokens, places, rows, seen, _, read) -> list[Pair]:
        """As `step`, of each."""
        cache, visible_MTS = joined(caches, rows, seen)
        mask = additive_mask(visible_MTS, self.target.dtype, self._query_groups)
        inputs = padded(hidden), self.embed(padded(tokens)), padded(places)
        out_MTD = self.head(*inputs, cache=cache, mask=mask)
        outputs = [
            out_TD[: len(token_T)] if read_M is None else out_TD.index_select(0, read_M)
            for out_TD, token_T, read_M in zip(out_MTD, tokens, read, strict=True)
        ]
        logits = self.readout(torch.cat(outputs)).split([len(out_MD) for out_MD in outputs])
        return list(zip(outputs, logits, strict=True))

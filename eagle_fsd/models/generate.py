"""Sampling from the target for many prompts at once: training answers, and replay's plain texts.

The batch stays full: a finished row's place is given to the next prompt while the others go on.
Every row draws with uniforms of its own seed, so its text depends on its prompt, temperature and
seed, not on its neighbours (up to the rounding of batched kernels).

Axes: B rows of the batch, T new columns, C cached columns, R chosen rows, V vocabulary, D hidden
size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.cache import PreallocatedLayer, TreeCache
from eagle_fsd.decoding.sampling import draw
from eagle_fsd.decoding.target import Target

ROOM = 64  # columns to spare when a cache is made anew


@dataclass(frozen=True)
class Request:
    """A prompt to be continued.

    Attributes:
        key: the caller's name for it, handed on.
        ids: the prompt's tokens.
        max_new_tokens: budget.
        temperature: 0 is greedy.
        stops: tokens that end it; the one that did is part of the continuation.
        seed: of its draws.
    """

    key: object
    ids: list[int]
    max_new_tokens: int
    temperature: float
    stops: frozenset[int]
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """What the target continued a request with.

    Attributes:
        tokens: new tokens, a stop token included.
        finished: whether a stop token ended it, and not the budget.
    """

    request: Request
    tokens: list[int]
    finished: bool


class _Row:
    """A request that is being continued."""

    def __init__(self, request: Request):
        self.request = request
        self.tokens: list[int] = []
        self.done = False
        self.uniforms: list[float] = []
        if request.temperature > 0:
            generator = torch.Generator().manual_seed(request.seed)
            self.uniforms = torch.rand(request.max_new_tokens, generator=generator).tolist()

    @property
    def length(self) -> int:
        """Tokens in the cache: all but the last, which is not run yet."""
        return len(self.request.ids) + len(self.tokens) - 1

    def take(self, token: int) -> None:
        self.tokens.append(token)
        ended = token in self.request.stops
        self.done = ended or len(self.tokens) == self.request.max_new_tokens

    def completion(self) -> Completion:
        return Completion(self.request, self.tokens, self.tokens[-1] in self.request.stops)


class RowCache(TreeCache):
    """Keys and values of several rows, padded on the left so that all end in the same column."""

    @property
    def full(self) -> bool:
        """Whether the next step has no column left."""
        return self.length == self.capacity


class BatchGenerator:
    """Continues requests, `batch_size` at a time.

    Args:
        target: run by its engine; its own single sequence is not touched.
        batch_size: rows.
        refill_share: share of the batch that must be free before prompts are admitted; each
            admission copies the cache.
        tokens_per_prefill: padded prompt tokens a forward.
    """

    def __init__(
        self,
        target: Target,
        *,
        batch_size: int,
        refill_share: float = 1 / 16,
        tokens_per_prefill: int = 4096,
    ):
        self.target = target
        self.batch_size = batch_size
        self.refill_at = max(1, int(batch_size * refill_share))
        self.tokens_per_prefill = tokens_per_prefill
        self._rows: list[_Row] = []
        self._cache: RowCache | None = None

    @torch.inference_mode()
    def run(
        self,
        next_request: Callable[[], Request | None],
        *,
        stop: Callable[[int], bool] = lambda tokens: False,
    ) -> Iterator[Completion]:
        """Continue requests until none is running and `next_request` gives None.

        Args:
            next_request: asked whenever rows are free; after a None it is asked again once a
                completion was given out, which may have led to new requests.
            stop: asked before every forward, given the tokens under way; True ends the run, and
                what is under way is given out as far as it came.
        """
        self._stop = stop
        while not self._stopped():
            alive = [row for row in self._rows if not row.done]
            free = self.batch_size - len(alive)
            ended = False
            if not alive or free >= self.refill_at:
                for completion in self._admit(alive, next_request, free):
                    ended = True
                    yield completion
            elif self._cache.full:
                self._rebuild(alive, [])
            if self._rows:
                yield from self._step()
            elif not ended:
                return
        rows, self._rows, self._cache = self._rows, [], None
        yield from (row.completion() for row in rows if not row.done)

    def _stopped(self) -> bool:
        return self._stop(sum(len(row.tokens) for row in self._rows if not row.done))

    def _admit(
        self, alive: list[_Row], next_request: Callable[[], Request | None], free: int
    ) -> Iterator[Completion]:
        """Take new requests, run their prompts, and put the rows that go on below the old ones."""
        new: list[_Row] = []
        while len(new) < free and (request := next_request()) is not None:
            new.append(_Row(request))
        # prompts of similar length together: little padding
        new.sort(key=lambda row: len(row.request.ids))
        groups = []
        for group in self._groups(new):
            if self._stopped():  # prompts that were not run are not begun
                break
            groups.append((group, self._prefill(group)))
        if groups or self._cache is None or self._cache.full or self._wasteful(alive):
            self._rebuild(alive, groups)
        yield from (row.completion() for row in new if row.done)

    def _wasteful(self, alive: list[_Row]) -> bool:
        return len(self._rows) - len(alive) >= max(1, len(self._rows) // 16)

    def _groups(self, rows: list[_Row]) -> list[list[_Row]]:
        groups: list[list[_Row]] = []
        for row in rows:  # by length: a group's last row is its longest
            if groups and (len(groups[-1]) + 1) * len(row.request.ids) <= self.tokens_per_prefill:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def _prefill(self, rows: list[_Row]) -> RowCache:
        """Run the prompts of some rows and draw the first token of each."""
        T = len(rows[-1].request.ids)
        cache = RowCache(self.target.num_layers, T, pooled=self.target.one_device)
        token_BT = torch.zeros(len(rows), T, dtype=torch.int64)
        for b, row in enumerate(rows):
            token_BT[b, T - len(row.request.ids) :] = torch.tensor(row.request.ids)
        length_B = torch.tensor([len(row.request.ids) for row in rows])
        hidden_BTD = self._forward(token_BT, length_B, cache)
        self._draw(rows, hidden_BTD[:, -1])
        return cache

    def _rebuild(self, alive: list[_Row], groups: Sequence[tuple[list[_Row], RowCache]]) -> None:
        """Rows that go on, old and new, in a cache without the others."""
        parts = []
        if alive:
            kept = [i for i, row in enumerate(self._rows) if not row.done]
            parts.append((self._cache, torch.tensor(kept)))
        rows = list(alive)
        for group, cache in groups:
            going = [i for i, row in enumerate(group) if not row.done]
            if going:
                parts.append((cache, torch.tensor(going)))
                rows += [group[i] for i in going]
        self._cache = join(parts, max(row.length for row in rows)) if rows else None
        self._rows = rows

    def _step(self) -> Iterator[Completion]:
        """One more token for every row."""
        running = [row for row in self._rows if not row.done]
        token_B1 = torch.tensor([[row.tokens[-1]] for row in self._rows])
        # rows that are done run along until the next change; nobody reads what they say
        length_B = torch.tensor([row.length + 1 for row in self._rows])
        hidden_BD = self._forward(token_B1, length_B, self._cache)[:, -1]
        self._draw(self._rows, hidden_BD)
        yield from (row.completion() for row in running if row.done)

    def _forward(
        self, token_BT: torch.Tensor, length_B: torch.Tensor, cache: RowCache
    ) -> torch.Tensor:
        """Hidden states after the final norm [B, T, D]; length_B counts the new tokens too."""
        T = token_BT.shape[1]
        columns = cache.length + T
        column_C = torch.arange(columns)
        padding_B = columns - length_B
        position_BC = (column_C - padding_B[:, None]).clamp_(min=0)
        device = self.target.embed_tokens.weight.device
        hidden_BTD, _ = self.target.hidden_and_features(
            token_BT,
            attention_mask=(column_C >= padding_B[:, None]).long().to(device),
            position_ids=position_BC[:, -T:].to(device),
            past_key_values=cache,
            use_cache=True,
        )
        return hidden_BTD

    def _draw(self, rows: list[_Row], hidden_BD: torch.Tensor) -> None:
        """The next token of every row that is not done."""
        by_temperature: dict[float, list[int]] = {}
        for b, row in enumerate(rows):
            if not row.done:
                by_temperature.setdefault(row.request.temperature, []).append(b)
        for temperature, places in by_temperature.items():
            row_R = torch.tensor(places, device=hidden_BD.device)
            logits_RV = self.target.logits(hidden_BD[row_R])
            uniform_R = torch.zeros(len(places))
            if temperature > 0:
                drawn = (rows[b].uniforms[len(rows[b].tokens)] for b in places)
                uniform_R = torch.tensor(list(drawn))
            uniform_R = uniform_R.to(logits_RV.device)
            token_R = draw(logits_RV, uniform_R, SamplingConfig(temperature))
            for b, token in zip(places, token_R.tolist(), strict=True):
                rows[b].take(token)


def join(parts: list[tuple[RowCache, torch.Tensor]], columns: int) -> RowCache:
    """The chosen rows of several caches, one below the other, in a new cache.

    Args:
        parts: caches with the rows to keep, int64 [R].
        columns: length of the longest kept row; what lies further left is padding and cut off.

    Example: rows `ab` and `cde` of a cache, and `f` of another, with 3 columns: `.ab`, `cde`, `..f`
    """
    first = parts[0][0]
    joined = RowCache(len(first.layers), columns + ROOM, pooled=first.pooled)
    total = sum(len(row_R) for _, row_R in parts)
    for number, layer in enumerate(joined.layers):
        layer.lazy_initialization(*_like(first.layers[number], total))
        layer.length = columns
        # padding is masked, but masked NaN would still spread
        layer.keys[:, :, :columns].zero_()
        layer.values[:, :, :columns].zero_()
        top = 0
        for cache, row_R in parts:
            source = cache.layers[number]
            width = min(source.length, columns)
            where = slice(top, top + len(row_R)), slice(None), slice(columns - width, columns)
            row_R = row_R.to(source.keys.device)
            end = slice(source.length - width, source.length)
            layer.keys[where] = source.keys[:, :, end].index_select(0, row_R)
            layer.values[where] = source.values[:, :, end].index_select(0, row_R)
            top += len(row_R)
    return joined


def _like(layer: PreallocatedLayer, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand-ins with the wanted rows and the layer's heads and widths, for allocation."""
    return (
        layer.keys[:1].expand(rows, -1, -1, -1),
        layer.values[:1].expand(rows, -1, -1, -1),
    )

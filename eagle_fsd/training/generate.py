"""Sampling from the target for many prompts at once, at the machine's best rate.

The batch stays full: a finished row's place is given to the next prompt while the others go on.
Every row draws with uniforms of its own seed, so its text depends on its prompt, temperature and
seed, not on its neighbours (up to the rounding of batched kernels). What is asked is dialogues.py's
business.

Axes: B rows of the batch, T new columns, C cached columns, V vocabulary, D hidden size,
L tokens of a row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.sampling import draw
from eagle_fsd.decoding.target import Target
from eagle_fsd.training.row_cache import RowCache, join


@dataclass(frozen=True)
class Request:
    """A prompt to be continued.

    Attributes:
        key: the caller's name for it.
        ids: the prompt's tokens.
        max_new_tokens: budget.
        temperature: 0 is greedy.
        stops: tokens that end it; the one that did is part of the continuation.
        seed: of its draws.
    """

    key: tuple
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
        features_LD: hidden states after the final norm of prompt and new tokens, bfloat16 on the
            CPU, or None. The last token was never run: its row is zero.
    """

    request: Request
    tokens: list[int]
    finished: bool
    features_LD: torch.Tensor | None


class _Row:
    """A request that is being continued."""

    def __init__(self, request: Request):
        self.request = request
        self.tokens: list[int] = []
        self.features: list[torch.Tensor] = []  # [n, D] each
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
        features_LD = None
        if self.features:
            zero = torch.zeros_like(self.features[0][:1])
            features_LD = torch.cat([*self.features, zero])
        finished = self.tokens[-1] in self.request.stops
        return Completion(self.request, self.tokens, finished, features_LD)


class BatchGenerator:
    """Continues requests, `batch_size` at a time.

    Args:
        target: run by its engine; its own single sequence is not touched.
        batch_size: rows.
        keep_features: give every completion's features_LD.
        refill_share: share of the batch that must be free before prompts are admitted; each
            admission copies the cache.
        tokens_per_prefill: padded prompt tokens a forward.
    """

    def __init__(
        self,
        target: Target,
        *,
        batch_size: int,
        keep_features: bool = False,
        refill_share: float = 1 / 16,
        tokens_per_prefill: int = 4096,
    ):
        self.target = target
        self.batch_size = batch_size
        self.keep_features = keep_features
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
        if self.keep_features:
            kept_BTD = hidden_BTD.to("cpu", torch.bfloat16)
            for row, kept_TD in zip(rows, kept_BTD, strict=True):
                row.features.append(kept_TD[T - len(row.request.ids) :].clone())
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
        if self.keep_features:
            kept_BD = hidden_BD.to("cpu", torch.bfloat16)
            for b, row in enumerate(self._rows):
                if not row.done:
                    row.features.append(kept_BD[b : b + 1])
        self._draw(self._rows, hidden_BD)
        yield from (row.completion() for row in running if row.done)

    def _forward(
        self, token_BT: torch.Tensor, length_B: torch.Tensor, cache: RowCache
    ) -> torch.Tensor:
        """Hidden states after the final norm [B, T, D]; length_B counts the new tokens too."""
        T = token_BT.shape[1]
        columns = cache.columns + T
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

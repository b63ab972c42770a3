"""Sampling from the target for many prompts at once, for training answers and replay's plain texts;
and how the target rates an answer.

The batch stays full: where an eighth of its rows have ended, the next prompts take their places.
Every row draws with uniforms of its own seed, so its text depends on its prompt, temperature and
seed, not on its neighbours (up to the rounding of batched kernels).

Axes: B rows of the batch, H heads, T new columns, C cached columns, R chosen rows, V vocabulary, D
hidden size.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile

import torch

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.cache import PreallocatedLayer
from eagle_fsd.decoding.loop import check_tokens
from eagle_fsd.decoding.sampling import draw, no_numbers, uniforms
from eagle_fsd.decoding.target import Target
from eagle_fsd.families import text_body
from eagle_fsd.recurrent.states import RecurrentLayer

ROOM = 64  # columns to spare when a cache is made anew
TOKENS_PER_PREFILL = 4096  # prompt tokens a forward, with padding
NO_TOKEN = -1  # of a row whose logits are no numbers
GOING = 7 / 8  # share of the rows that go on when the others are exchanged


@dataclass(eq=False)
class Request:
    """A prompt's tokens, and those that the target continues it with, a stop token included."""

    prompt: list[int]
    max_new_tokens: int  # a stop token included
    temperature: float = 0.0  # 0: greedy
    stops: frozenset[int] = frozenset()  # tokens that end it
    seed: int = 0  # of its uniforms
    tokens: list[int] = field(default_factory=list)
    # if given: hidden states after the final norm of prompt and tokens but for the last one, which
    # is not run, in pieces [T, D]
    states: list[torch.Tensor] | None = None

    @property
    def finished(self) -> bool:
        """Whether a stop token ended it."""
        return not self.stops.isdisjoint(self.tokens[-1:])

    @property
    def ended(self) -> bool:
        return self.finished or len(self.tokens) == self.max_new_tokens

    @cached_property
    def uniforms(self) -> list[float]:
        generator = torch.Generator().manual_seed(self.seed)
        return uniforms(generator, self.max_new_tokens).tolist()


class Batch:
    """Requests under way, and their cache: padded on the left, so that all rows end in the same
    column. The last token of each row is not in it yet; the first step runs the prompts."""

    def __init__(self, target: Target, rows: list[Request]):
        self.target, self.rows = target, rows
        self.longest = max((len(row.prompt) + len(row.tokens) for row in rows), default=0)
        self.cache = target.begin(self.longest + ROOM)

    @property
    def going(self) -> list[int]:
        return [b for b, row in enumerate(self.rows) if not row.ended]

    def step(self) -> Iterator[Request]:
        """One more token for every row; gives out those that end by it. Rows that had ended before
        run along unread."""
        new = [row.tokens[-1:] or row.prompt for row in self.rows]  # what is in no cache yet
        T = max(map(len, new))
        token_BT = torch.tensor([[0] * (T - len(ids)) + ids for ids in new])
        length_B = torch.tensor([len(row.prompt) + len(row.tokens) for row in self.rows])
        end = self.cache.length + T
        # all of the buffer: contiguous keys, which attention reads far faster (attention.py)
        read = self.cache.capacity if T == 1 else end
        self.cache.write(self.cache.next_rows(T, self.target.device), read)
        column_C = torch.arange(read)
        position_BC = column_C - (end - length_B)[:, None]  # below 0: padding
        device = self.target.embed_tokens.weight.device
        seen_BC = ((position_BC >= 0) & (column_C < end)).to(device)
        mask = seen_BC.long()
        if T == 1:  # one query a row, [B, 1, 1, C]
            positions = position_BC.to(device)
            masks = self.target.masks(seen_BC, positions, positions[:, self.cache.length])
            each = masks if isinstance(masks, dict) else {"": masks}
            each = {kind: mask[0, 0, : len(new), None, None] for kind, mask in each.items()}
            mask = each.get("", each)
        hidden_BTD, _ = self.target.forward(
            token_BT,
            attention_mask=mask,
            position_ids=position_BC[:, end - T : end].clamp(min=0).to(device),
            cache=self.cache,
        )
        self.cache.length = end
        going = [self.rows[b] for b in self.going]
        for row, ids, hidden_TD in zip(self.rows, new, hidden_BTD, strict=True):
            if row.states is not None and not row.ended:
                row.states.append(hidden_TD[T - len(ids) :])
        logits_RV = self.target.readout(hidden_BTD[self.going, -1])
        for row, token in zip(going, next_tokens(going, logits_RV), strict=True):
            row.tokens.append(token)
        return (row for row in going if row.ended)


def next_tokens(rows: list[Request], logits_RV: torch.Tensor) -> list[int]:
    """A token a row, by its temperature and next uniform."""
    token_R = torch.zeros(len(rows), dtype=torch.int64, device=logits_RV.device)
    for temperature in {row.temperature for row in rows}:
        chosen = [r for r, row in enumerate(rows) if row.temperature == temperature]
        uniforms = [rows[r].uniforms[len(rows[r].tokens)] for r in chosen]
        uniform_R = torch.tensor(uniforms, device=logits_RV.device)
        token_R[chosen] = draw(logits_RV[chosen], uniform_R, SamplingConfig(temperature))
    # said by the tokens, which are read anyhow: an accelerator is waited for once
    tokens = token_R.where(logits_RV.amax(-1).isfinite(), NO_TOKEN).tolist()
    if NO_TOKEN in tokens:
        raise no_numbers("in a batch of answers")
    return tokens


def join(target: Target, batches: list[Batch]) -> Batch:
    """The rows of several batches that have not ended, one below the other, in a new cache.

    Example: rows `ab` and `cde` of a batch, and `f` of another: `.ab`, `cde`, `..f`
    """
    batches = [batch for batch in batches if batch.going]
    whole = Batch(target, [batch.rows[b] for batch in batches for b in batch.going])
    whole.cache.length = columns = max(whole.longest - 1, 0)  # the last token is in no cache yet
    for number, layer in enumerate(whole.cache.layers if batches else ()):
        before = [(batch.cache.layers[number], batch.going) for batch in batches]
        if isinstance(layer, RecurrentLayer):
            layer.take(before)
        if not isinstance(layer, PreallocatedLayer):
            continue
        like = before[0][0]
        layer.lazy_initialization(
            *(part[:1].expand(len(whole.rows), -1, -1, -1) for part in (like.keys, like.values))
        )
        end = 0
        for batch, (states, going) in zip(batches, before, strict=True):
            start, end, filled = end, end + len(going), batch.cache.length
            # flush with the last column; what is cut off on the left is padding
            count = min(filled, columns)
            for part, to in (states.keys, layer.keys), (states.values, layer.values):
                seen = part[:, :, filled - count : filled]
                row_R = torch.tensor(going, device=part.device)
                to[start:end, :, columns - count : columns] = seen.index_select(0, row_R)
    return whole


@torch.inference_mode()
def complete(
    target: Target,
    requests: Iterable[Request | None],
    *,
    batch_size: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Request]:
    """Continue requests, `batch_size` at a time, and give each out when it has ended. None among
    them says that the next depends on those under way, and is asked again when some have ended; it
    is the end where none is under way. `stop` is asked before every forward; it ends the run, and
    gives out what is under way as it is."""
    batch, waiting = Batch(target, []), iter(requests)
    while not stop():
        full = batch.cache.length == batch.cache.capacity
        if full or len(batch.going) <= GOING * len(batch.rows):
            free = islice(waiting, batch_size - len(batch.going))
            new = list(takewhile(lambda request: request is not None, free))
            if not (new or batch.going):
                return
            for request in new:
                check_tokens(target, request.prompt)
            parts = []
            new.sort(key=lambda request: len(request.prompt))  # similar lengths: little padding
            while new and not stop():  # prompts that were not run are not begun
                size = max(1, TOKENS_PER_PREFILL // len(new[-1].prompt))
                parts.append(Batch(target, new[-size:]))
                del new[-size:]
                yield from parts[-1].step()
            batch = join(target, [batch, *parts])
        if batch.rows:
            yield from batch.step()
    yield from (batch.rows[b] for b in batch.going)


@torch.inference_mode()
def rescore(target: Target, prompt: list[int], answer: list[int]) -> tuple[float, float]:
    """How the target rates an answer in one plain forward over prompt and answer: the share of the
    answer's tokens that are the argmax, and their mean log-probability, nats. The sequence being
    decoded is left alone."""
    ids = torch.tensor([prompt + answer], device=target.device)
    hidden_LD = text_body(target.model)(input_ids=ids, use_cache=False).last_hidden_state[0]
    rows_AD, token_A = hidden_LD[len(prompt) - 1 : -1], ids[0, len(prompt) :]
    hits, logp = 0, 0.0
    for hidden_CD, token_C in zip(rows_AD.split(256), token_A.split(256), strict=True):
        logp_CV = torch.log_softmax(target.readout(hidden_CD), dim=-1, dtype=torch.float32)
        hits += (logp_CV.argmax(-1) == token_C).sum().item()
        logp += logp_CV.gather(1, token_C[:, None]).sum().item()
    if math.isnan(logp):
        raise no_numbers("over an answer")
    return hits / len(answer), logp / len(answer)

"""Batched sampling: every row says what it would say alone, whoever comes and goes beside it."""

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, tiny_target

from eagle_fsd.models.generate import BatchGenerator, Completion, Request

STOPS = frozenset({5, 17, 41})
LENGTHS = [3, 29, 11, 2, 17, 11, 23, 5, 13, 7, 19]


def requests(temperature: float = 0.0, budget: int = 23) -> list[Request]:
    return [
        # budgets differ, so that rows end at different times
        Request((i,), prompt_tokens(n, seed=i), budget - i, temperature, STOPS, seed=100 + i)
        for i, n in enumerate(LENGTHS)
    ]


def run(target, asked: list[Request], **options) -> dict[tuple, Completion]:
    left = list(asked)
    generator = BatchGenerator(target, **options)
    return {c.request.key: c for c in generator.run(lambda: left.pop(0) if left else None)}


def alone(target, request: Request) -> list[int]:
    """transformers' greedy generate of one prompt."""
    out = target.model.generate(
        torch.tensor([request.ids]),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(request.stops),
        pad_token_id=0,
    )
    return out[0, len(request.ids) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["stock", "packed"])
def test_greedy_rows_equal_generate(family, engine):
    """Every family, refilled 3 rows at a time: token for token what generate gives alone."""
    target = tiny_target(family, engine=engine)
    got = run(target, requests(), batch_size=3)
    for request in requests():
        completion = got[request.key]
        assert completion.tokens == alone(target, request), request.key
        assert completion.finished == (completion.tokens[-1] in STOPS)
    assert len(got) == len(LENGTHS)
    # the cases are there: ended by itself, and by the budget
    assert {c.finished for c in got.values()} == {True, False}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_an_answer_longer_than_the_cache_has_room_for(attention):
    """The cache grows while nobody joins: 150 tokens, two growths."""
    target = tiny_target("llama", attention=attention)
    asked = [Request((i,), prompt_tokens(4 + i, seed=i), 150, 0.0, frozenset()) for i in range(3)]
    got = run(target, asked, batch_size=2)
    assert all(got[r.key].tokens == alone(target, r) for r in asked)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_batch_does_not_matter(temperature):
    """Batch 1, batch 7, late refills and small prefills: the same texts, sampled ones too."""
    target = tiny_target("llama")
    wanted = run(target, requests(temperature), batch_size=1)
    for options in (
        {"batch_size": 7},
        {"batch_size": 7, "refill_share": 0.9},
        {"batch_size": 50, "tokens_per_prefill": 1},
    ):
        got = run(target, requests(temperature), **options)
        assert {k: c.tokens for k, c in got.items()} == {k: c.tokens for k, c in wanted.items()}


def test_seeds_and_temperatures_are_a_rows_own():
    """Another seed says another thing, and a greedy row is greedy beside sampled ones."""
    target = tiny_target("llama")
    ids = prompt_tokens(9)
    asked = [Request((i,), ids, 30, [0.0, 1.0][i % 2], frozenset(), seed=i) for i in range(6)]
    got = run(target, asked, batch_size=6)
    sampled = {tuple(got[(i,)].tokens) for i in (1, 3, 5)}
    greedy = {tuple(got[(i,)].tokens) for i in (0, 2, 4)}
    assert len(sampled) == 3 and len(greedy) == 1
    assert list(greedy.pop()) == alone(target, asked[0])


def test_first_draws_follow_the_softmax():
    """4,000 seeds of one prompt: the first token's frequencies are the softmax at temperature 0.7
    (chi-square, tokens with 5 or more expected)."""
    target = tiny_target("llama")
    ids, rows = prompt_tokens(9), 4000
    asked = [Request((i,), ids, 1, 0.7, frozenset(), seed=i) for i in range(rows)]
    got = run(target, asked, batch_size=rows)
    with torch.no_grad():
        logits_V = target.model(torch.tensor([ids])).logits[0, -1]
    expected_V = rows * torch.softmax(logits_V / 0.7, -1)
    seen_V = torch.bincount(torch.tensor([c.tokens[0] for c in got.values()]), minlength=101)
    often_V = expected_V >= 5
    chi = ((seen_V - expected_V)[often_V] ** 2 / expected_V[often_V]).sum()
    freedom = int(often_V.sum()) - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_an_answer_may_ask_for_more():
    """A request that exists only once the last one is answered is served too, and so is a second
    one after an answer of a single token (the run ended there once)."""
    target = tiny_target("llama")
    everything = frozenset(range(101))
    queue = [Request((0,), prompt_tokens(5), 9, 0.0, everything)]
    generator = BatchGenerator(target, batch_size=4)
    seen = []
    for completion in generator.run(lambda: queue.pop() if queue else None):
        (number,) = completion.request.key
        seen.append(number)
        if number < 3:
            ids = completion.request.ids + completion.tokens
            queue.append(Request((number + 1,), ids, 9, 0.0, everything))
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(("asked_before", "begun"), [(0, 0), (1, 0), (2, 4), (5, 10), (8, 11)])
def test_a_stop_gives_out_what_is_under_way(asked_before, begun):
    """Before anything, between two prefills of the first batch, and after some tokens: each row is
    the beginning of what it would have said, and prompts that were not run are not begun.

    (A time limit was looked at only when a dialogue ended: two minutes took five.)
    """
    target = tiny_target("llama")
    whole = run(target, requests(), batch_size=11)
    calls = []

    def stop(tokens: int) -> bool:
        calls.append(tokens)
        return len(calls) > asked_before

    generator = BatchGenerator(target, batch_size=11, tokens_per_prefill=40)
    left = requests()
    got = list(generator.run(lambda: left.pop(0) if left else None, stop=stop))
    assert len(got) == begun
    for completion in got:
        tokens = completion.tokens
        assert tokens == whole[completion.request.key].tokens[: len(tokens)]
    assert all(len(c.tokens) < 23 for c in got)

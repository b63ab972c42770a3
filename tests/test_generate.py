"""Batched sampling: every row says what it would say alone, whoever comes and goes beside it. Of
every family and engine: test_matrix.py."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from answers import by_generate
from reference_accept import chi_square_p
from tiny import BOS, prompt_tokens, tiny_target

from eagle_fsd.config import BadInput
from eagle_fsd.models import generate
from eagle_fsd.models.generate import Request, complete

STOPS = frozenset({5, 17, 41})
LENGTHS = [3, 29, 11, 2, 17, 11, 23, 5, 13, 7, 19]


def requests(temperature: float = 0.0) -> list[Request]:
    return [
        # budgets differ, so that rows end at different times
        Request(prompt_tokens(n, seed=i), 23 - i, temperature, STOPS, seed=100 + i)
        for i, n in enumerate(LENGTHS)
    ]


def run(target, asked: list[Request], **options) -> list[Request]:
    """What is given out, in that order; every request once."""
    got = list(complete(target, asked, **options))
    assert len(set(got)) == len(got)
    return got


@pytest.fixture(scope="module")
def llama():
    return tiny_target("llama")


def alone(target, request: Request) -> list[int]:
    """transformers' greedy generate of one prompt."""
    budget, stops = request.max_new_tokens, sorted(request.stops)
    return by_generate(target, request.prompt, budget=budget, stop=stops)


def test_requests_that_wait_for_others_join_them(llama):
    """What follows a text is asked for when that has ended, beside those that go on."""
    first, other = Request(prompt_tokens(5, seed=1), 4), Request(prompt_tokens(9, seed=2), 40)
    second: list[Request] = []

    def asked():
        yield from (first, other)
        while not first.ended:
            yield None
        second.append(Request(first.prompt + first.tokens, 6))
        yield from second

    assert run(llama, asked(), batch_size=2) == [first, *second, other]
    assert all(request.tokens == alone(llama, request) for request in (first, *second, other))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_end_it(temperature):
    """Bug held down: greedy texts of such a target were token 0 to the end."""
    target = tiny_target("llama")
    target.model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(BadInput, match="logits are NaN or infinite in a batch of answers"):
        run(target, requests(temperature), batch_size=3)


def test_a_token_without_a_row_is_named(llama):
    """Bug held down: a tokenizer with an added [PAD] ended make_data.py in an IndexError."""
    with pytest.raises(BadInput, match="prompt token 101 is outside .* vocabulary of 101"):
        run(llama, [Request([BOS, 101], 5)], batch_size=1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_batch_does_not_matter(llama, monkeypatch, temperature):
    """Batch 1, batch 7, late refills and small prefills: the same texts, sampled too. The cache
    grows while nobody joins, and a seed is a row's own."""
    wanted = [*requests(temperature), Request(prompt_tokens(9), 70, temperature, seed=1)]
    wanted.append(Request(prompt_tokens(9), 70, 1.0, seed=2))
    run(llama, wanted, batch_size=1)
    assert wanted[-1].tokens != wanted[-2].tokens
    for going, prefill, batch_size in (0.9, 4096, 7), (0.1, 4096, 7), (0.9, 1, 50):
        monkeypatch.setattr(generate, "GOING", going)
        monkeypatch.setattr(generate, "TOKENS_PER_PREFILL", prefill)
        asked = [replace(request, tokens=[]) for request in wanted]
        run(llama, asked, batch_size=batch_size)
        assert [request.tokens for request in asked] == [request.tokens for request in wanted]


def test_first_draws_follow_the_softmax(llama):
    """4,000 seeds of one prompt: the first token's frequencies are the softmax at temperature 0.7,
    by chi-square."""
    ids, rows = prompt_tokens(9), 4000
    got = run(llama, [Request(ids, 1, 0.7, seed=i) for i in range(rows)], batch_size=rows)
    with torch.no_grad():
        logits_V = llama.model(torch.tensor([ids])).logits[0, -1]
    count = Counter(request.tokens[0] for request in got)
    law_V = torch.softmax(logits_V.double() / 0.7, -1)
    assert chi_square_p(count, dict(enumerate(law_V.tolist()))) > 1e-4


def test_answers_of_one_token_make_room(llama):
    """Bug held down: a run ended where all rows of its batch ended in the forward of their prompts,
    with the rest unasked."""
    asked = [Request(prompt_tokens(5 + n), 1) for n in range(7)]
    assert set(run(llama, asked, batch_size=2)) == set(asked)
    assert all(request.tokens == alone(llama, request) for request in asked)


@pytest.mark.parametrize(("asked_before", "begun"), [(2, 1), (8, 11)])
def test_a_stop_gives_out_what_is_under_way(llama, monkeypatch, asked_before, begun):
    """Between two prefills, and after some tokens: each row is the beginning of what it would have
    said. Bug held down: the time limit was looked at when a dialogue ended."""
    monkeypatch.setattr(generate, "TOKENS_PER_PREFILL", 40)
    whole, asked, calls = requests(), requests(), []
    run(llama, whole, batch_size=11)

    def stop() -> bool:
        calls.append(1)
        return len(calls) > asked_before

    assert len(run(llama, asked, batch_size=11, stop=stop)) == begun
    for request, wanted in zip(asked, whole, strict=True):
        assert request.tokens == wanted.tokens[: len(request.tokens)]
        assert len(request.tokens) < 23

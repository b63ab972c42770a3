"""Prompt look-up: what is drafted, and that decoding with it is plain decoding."""

import math
from functools import partial

import pytest
import torch
from answers import EXACT
from answers import run as run_one
from tiny import prompt_tokens, tiny_target

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.lookup import LookupDrafter, LookupSettings
from eagle_fsd.rules.fsd import Fsd

SETTINGS = [
    {},
    {"num_draft_tokens": 3, "max_ngram": 1},
    {"num_draft_tokens": 7, "max_ngram": 2, "num_continuations": 3},
]
run = partial(run_one, budget=40)


def proposal(text: list[int], **settings: int) -> DraftTree:
    drafter = LookupDrafter(LookupSettings(**settings))
    drafter.observe(torch.empty(len(text), 0), torch.tensor(text))
    return drafter.propose()


def test_longest_ngram_is_continued_as_it_went_on_before():
    """5 6 7 went on with 8; the shorter 6 7 and 7 went on with 9 more recently."""
    text = [5, 6, 7, 8, 1, 6, 7, 9, 2, 5, 6, 7]
    assert proposal(text, num_draft_tokens=4).token_N.tolist() == [7, 8, 1, 6, 7]
    assert proposal(text, num_draft_tokens=4, max_ngram=2).token_N.tolist() == [7, 9, 2, 5, 6]


def test_most_recent_occurrence_counts():
    tree = proposal([4, 8, 4, 9, 4], num_draft_tokens=2)
    assert tree.token_N.tolist() == [4, 9, 4]
    assert tree.parent_N.tolist() == [0, 0, 1] and tree.max_depth == 2


def test_match_at_the_end_is_read_on_into_its_own_drafts():
    """The text ends one token after the match; without that a loop would draft one token."""
    assert proposal([3, 3], num_draft_tokens=4).token_N.tolist() == [3] * 5
    tokens = proposal([1, 2, 3, 1, 2, 3], num_draft_tokens=7).token_N.tolist()
    assert tokens == [3, 1, 2, 3, 1, 2, 3, 1]


def test_nothing_to_look_up_is_a_lone_root():
    for text in ([4], [4, 5, 6, 7]):
        tree = proposal(text)
        assert tree.size == 1 and tree.max_depth == 0 and tree.token_N.tolist() == text[-1:]


def test_different_continuations_stand_side_by_side():
    """4 went on with 8 1, then 9 2, then 8 3: of the two 8 the last counts. 5 drafts are 3 + 2."""
    text = [4, 8, 1, 4, 9, 2, 4, 8, 3, 4]
    tree = proposal(text, num_draft_tokens=5, max_ngram=1, num_continuations=2)
    assert tree.token_N.tolist() == [4, 8, 3, 4, 9, 2]
    assert tree.parent_N.tolist() == [0, 0, 1, 2, 0, 4]
    assert proposal(text, num_draft_tokens=5, max_ngram=3).token_N.tolist() == [4, 8, 3, 4, 8, 3]


def test_no_draft_distribution():
    tree = proposal([1, 2, 1])
    assert tree.draft_logits_ER.shape[0] == 0
    assert (tree.draft_row_N == -1).all()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_greedy_output_is_plain_decoding(family, settings):
    """Token for token, with the trees of every round within max_nodes."""
    target = tiny_target(family)
    prompt = prompt_tokens(6) + prompt_tokens(23, vocab_size=7) * 2
    drafter = LookupDrafter(LookupSettings(**settings))
    plain = run(target, RootDrafter(), prompt)
    found = run(target, drafter, prompt)
    assert found.tokens == plain.tokens
    assert all(len(r.path) <= drafter.max_nodes for r in found.rounds)


@pytest.mark.parametrize("settings", SETTINGS)
def test_trees_never_exceed_max_nodes(settings):
    drafter = LookupDrafter(LookupSettings(**settings))
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        count = int(torch.randint(1, 5, (), generator=generator))
        token_T = torch.randint(0, 3, (count,), generator=generator)
        drafter.observe(torch.empty(count, 0), token_T)
        tree = drafter.propose()
        assert tree.size <= drafter.max_nodes
        assert tree.token_N[0] == token_T[-1]


def test_repetitive_text_yields_more_than_a_token_a_round():
    """A tiny greedy model falls into a loop; what it repeats is drafted."""
    target = tiny_target("llama")
    looping = run(target, RootDrafter(), prompt_tokens(9)).tokens
    prompt = prompt_tokens(9) + looping + looping
    result = run(target, LookupDrafter(), prompt)
    assert result.tokens_per_round > 1
    assert result.tokens == run(target, RootDrafter(), prompt).tokens


@pytest.mark.parametrize(
    ("child", "temperature"),
    [("draft", 0.0), ("deepest", 0.0), ("draft", 1.0), ("target", 1.0), ("sample", 1.0)],
)
def test_fsd_is_exact_without_a_divergence(child, temperature):
    """D is NaN and never passes, at any threshold; the same draws give the same tokens."""
    target = tiny_target("llama")
    prompt = prompt_tokens(23, vocab_size=5)
    fsd = Fsd(math.inf, child)
    settings = {"temperature": temperature, "seed": 3}
    expected = run(target, LookupDrafter(LookupSettings(num_continuations=2)), prompt, **settings)
    settings["rule"] = fsd
    found = run(target, LookupDrafter(LookupSettings(num_continuations=2)), prompt, **settings)
    assert found.tokens == expected.tokens
    assert found.fuzzy_share == 0


def test_sampling_emits_the_targets_distribution():
    """At temperature 1 the first token of the first round follows sum_x P(x) P(y | x), x being the
    root: within 4 standard errors for the tokens that matter, with drafts accepted on the way."""
    target = tiny_target("llama")
    prompt = prompt_tokens(83)
    V = target.vocab_size
    follows_VL = torch.cat([torch.tensor([prompt]).expand(V, -1), torch.arange(V)[:, None]], dim=1)
    root_V, next_VV = target.model(follows_VL).logits[:, -2:].softmax(-1).unbind(1)
    prob_V = root_V[0] @ next_VV
    count_V, drafted, runs = torch.zeros(V), 0, 300
    for seed in range(runs):
        config = DecodeConfig(Policy(EXACT, SamplingConfig(1.0)), StopConfig(2), seed)
        _, first = decode_rounds(target, LookupDrafter(LookupSettings(max_ngram=1)), prompt, config)
        count_V[first.tokens[0]] += 1
        drafted += first.acceptance.accepted_drafts > 0
    assert drafted > 0
    best_M = prob_V.topk(5).indices
    error_M = (prob_V * (1 - prob_V) / runs).sqrt()[best_M]
    assert ((count_V / runs - prob_V)[best_M].abs() < 4 * error_M).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens"),
        ({"max_ngram": 0}, "max_ngram"),
        ({"num_draft_tokens": 2, "num_continuations": 3}, "num_continuations"),
    ],
)
def test_refused_settings(settings, words):
    with pytest.raises(BadInput, match=words):
        LookupDrafter(LookupSettings(**settings))

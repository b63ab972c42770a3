"""What every drafter on every engine keeps for every tested family, in float32:

    a tree's logits are those of each path alone, and the cache that it leaves is a fresh prefill's;
    exact decoding is plain decoding, draw by draw, and at temperature 0 transformers' generate.

What is a family's, an engine's or a drafter's own is tested in files of their own.
"""

from functools import cache

import pytest
import torch
from answers import assert_same, by_generate, drafter_of, run
from reference_tree import assert_cache_is_of, close_of, largest_error, path_to, random_tree
from tiny import (
    FAMILIES,
    HEADS,
    PUBLISHED,
    WINDOW,
    prompt_tokens,
    random_model,
    target_and_head,
)
from tiny_recurrent import HYBRIDS, KINDS, hybrid_model

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.families import TESTED_FAMILIES
from eagle_fsd.models.generate import Request, complete
from eagle_fsd.recurrent.kinds import FAMILIES as RECURRENT_FAMILIES

WAYS = ("stock", "eager", "folded", "packed")  # engines; eager: stock with that attention
DRAFTERS = ["noisy", "eagle:15x5x4", "eagle:5x5x1", "eagle:7x3x4,sample=1", "ngram"]
DRAFTERS += ["eagle:12x4x4,keep=0.02,deepen=0.2", "hybrid:12x4x4,keep=0.02,recycle=8"]
DRAFTERS += ["language_model", "language_model:23x6x3"]
ASKED = [(2, 0.0), (30, 0.0), (13, 0.7)]  # lengths of prompts, and temperatures
NEW = 12  # tokens of an answer


def cases(fast: tuple[str, ...], quick: tuple[str, ...]) -> list:
    """(family, way) of all. Families that are not `fast` are left out of scripts/test.sh --fast,
    and those that are not `quick` either, out of scripts/test.sh."""
    marks = {family: pytest.mark.slow for family in [*FAMILIES, *HYBRIDS]}
    marks |= dict.fromkeys(quick, pytest.mark.processes) | dict.fromkeys(fast, ())
    every = [(family, way) for family in FAMILIES for way in WAYS]
    every += [(family, way) for family in HYBRIDS for way in ("stock", "packed")]
    return [pytest.param(*case, marks=marks[case[0]]) for case in every]


@cache
def target_of(family: str, way: str) -> Target:
    attention, engine = ("eager", "stock") if way == "eager" else ("sdpa", way)
    if family in HYBRIDS:
        model = hybrid_model(family, seed=3, attention=attention)
    else:
        model = random_model(FAMILIES[family](), seed=3, attention=attention)
    return Target(model, engine=ENGINES[engine]())


def test_the_families_are_those_that_are_said_to_be_tested():
    assert {make().model_type for make in FAMILIES.values()} == set(TESTED_FAMILIES)
    assert set(HYBRIDS) == set(RECURRENT_FAMILIES)


# --- a tree, and what it leaves -------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize(("family", "way"), cases(tuple(FAMILIES), tuple(HYBRIDS)))
def test_tree_logits_are_those_of_each_path_alone(family, way):
    """Features too; of prefixes shorter than a window and a convolution, of their size and longer,
    and of trees deeper than them."""
    target, rounds = target_of(family, way), [(1, 13), (WINDOW, 13), (5, 30), (3 * WINDOW + 2, 13)]
    for seed, (length, size) in enumerate(rounds):
        error = largest_error(target, prompt_tokens(length), random_tree(seed, size=size))
        assert error < close_of(target)


@torch.inference_mode()
@pytest.mark.parametrize(("family", "way"), cases((*FAMILIES, *KINDS), tuple(HYBRIDS)))
def test_cache_after_commit_is_a_fresh_prefill(family, way):
    """Keys, values and states of every layer, and the next logits. Paths: a deep one, the root
    alone, plain steps, one that skips siblings."""
    target, tokens = target_of(family, way), prompt_tokens(23, seed=1)
    cache = target.begin(23 + 80)
    target.prefill(cache, torch.tensor(tokens))
    plain = DraftTree.from_parents([31], [0])
    kept = [(random_tree(2), 12), (random_tree(3), 0), (plain, 0), (random_tree(5), 11), (plain, 0)]
    for tree, node in kept:
        target.verify(cache, tree)
        target.commit(cache, tree.ancestor_NN[node].nonzero()[:, 0])
        tokens += path_to(tree, node)
        assert cache.committed == cache.length == len(tokens)
        assert_cache_is_of(target, cache, tokens)
    want_V = target.model(torch.tensor([[*tokens, 31]])).logits[0, -1]
    got_V = target.verify(cache, plain)[0][0]
    torch.testing.assert_close(got_V, want_V, atol=close_of(target), rtol=0)


# --- answers --------------------------------------------------------------------------------------


@cache
def plain(family: str, way: str, length: int, temperature: float) -> list[int]:
    settings = {"temperature": temperature, "seed": 7, "budget": NEW}
    return run(target_of(family, way), RootDrafter(), prompt_tokens(length), **settings).tokens


def assert_exact_is_plain(family: str, way: str, name: str) -> None:
    target, accepted = target_of(family, way), 0
    drafter = drafter_of(name, target)
    for length, temperature in ASKED:
        want, prompt = plain(family, way, length, temperature), prompt_tokens(length)
        got = run(target, drafter, prompt, temperature=temperature, seed=7, budget=NEW)
        assert got.fuzzy_share == 0 and got.finish == "length" and len(got.tokens) == NEW
        if temperature:
            assert got.tokens == want
        else:
            assert_same(target, prompt, got.tokens, want)
        accepted += sum(round_.accepted_drafts for round_ in got.rounds)
    assert accepted > 5 or name != "noisy"


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(("family", "way"), cases(("gemma3", "lfm2"), (*FAMILIES, *KINDS)))
def test_exact_is_plain_decoding(family, way, name):
    """Same seed, same tokens, whatever the drafter and its trees: uniforms go by position."""
    assert_exact_is_plain(family, way, name)


@pytest.mark.parametrize(("family", "way"), cases(("gemma3", *KINDS), (*FAMILIES, *HYBRIDS)))
def test_plain_decoding_and_rows_of_a_batch_are_generate(family, way):
    """Rows begin, end and are moved beside each other, three at a time."""
    target, lengths = target_of(family, way), (2, 30, 5, 17, 1, 28)
    assert len(set(plain(family, way, 30, 0.0))) > 2
    asked = [Request(prompt_tokens(n), NEW - i) for i, n in enumerate(lengths)]
    assert len(list(complete(target, asked, batch_size=3))) == len(asked)
    for request in asked:
        want = by_generate(target, request.prompt, budget=request.max_new_tokens)
        assert_same(target, request.prompt, request.tokens, want)
    for length in lengths[:2]:
        want = by_generate(target, prompt_tokens(length), budget=NEW)
        assert_same(target, prompt_tokens(length), plain(family, way, length, 0.0), want)


@pytest.mark.slow  # a compilation for each width
@pytest.mark.parametrize("family", ["llama", "qwen3_5_text", "falcon_h1"])
def test_compiled_exact_is_plain_decoding_and_generate(family):
    """Of single tokens, which change states within the compiled code, and of trees."""
    for length, _ in ASKED[:2]:
        prompt, tokens = prompt_tokens(length), plain(family, "compiled", length, 0.0)
        assert_same(target_of(family, "stock"), prompt, tokens, plain(family, "stock", length, 0.0))
    assert_exact_is_plain(family, "compiled", "noisy")
    assert_exact_is_plain(family, "compiled", "eagle:5x5x1")


@pytest.mark.processes  # long
@pytest.mark.parametrize("name", HEADS | PUBLISHED)
def test_exact_decoding_with_every_head_is_plain(name):
    """With the head's layers exchanged by the engine. Trees of the stock layers: test_head.py."""
    stock, head = target_and_head(name, seed=6)
    target = Target(stock.model, engine=ENGINES["packed"](), feature_layers=stock.feature_layers)
    prompt = prompt_tokens(9, seed=2)
    want = run(target, RootDrafter(), prompt, budget=12).tokens
    got = run(target, EagleDrafter(head, target, TreeConfig(15, 5, 4)), prompt, budget=12)
    assert got.tokens == want and got.fuzzy_share == 0

"""Exact decoding with every kind of head: no token differs from plain decoding's."""

import pytest
from test_decode import assert_same, by_generate, run
from tiny import prompt_tokens
from tiny_eagle3 import HEADS, target_and_head

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("name", HEADS)
def test_greedy_tree_is_one_at_a_time_is_generate(name, family):
    """Exact decoding with each head == the plain loop == transformers' generate, float32."""
    target, head = target_and_head(name, family=family, seed=6)
    prompt = prompt_tokens(9, seed=2)
    plain = run(Target(target.model), RootDrafter(), prompt)
    assert_same(target, prompt, plain.tokens, by_generate(target, prompt))
    for tree in (TreeConfig(15, 5, 4), TreeConfig(5, 5, 1)):
        got = run(target, EagleDrafter(head, target, tree), prompt)
        assert_same(target, prompt, got.tokens, plain.tokens)
        assert got.fuzzy_share == 0

"""Exact decoding with every kind of head: no token differs from plain decoding's."""

import pytest
import torch
from tiny import prompt_tokens
from tiny_eagle3 import HEADS, target_and_head

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, Generation, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.rules.fsd import Exact

PROMPT = prompt_tokens(9, seed=2)
BUDGET = 16


def run(target: Target, drafter: Drafter) -> Generation:
    return decode(target, drafter, PROMPT, DecodeConfig(Policy(Exact()), StopConfig(BUDGET)))


@pytest.mark.parametrize(
    "name, family", [*((name, "llama") for name in HEADS), ("eagle", "gemma3"), ("eagle3", "qwen3")]
)
def test_greedy_tree_is_one_at_a_time_is_generate(name, family):
    """Exact decoding with each head == the plain loop == transformers' generate, float32."""
    target, head = target_and_head(name, family=family, seed=6)
    plain = run(Target(target.model), RootDrafter())
    whole = target.model.generate(
        torch.tensor([PROMPT]), do_sample=False, max_new_tokens=BUDGET, pad_token_id=0
    )
    assert plain.tokens == whole[0, len(PROMPT) :].tolist()
    for tree in (TreeConfig(15, 5, 4), TreeConfig(5, 5, 1)):
        got = run(target, EagleDrafter(head, target, tree))
        assert got.tokens == plain.tokens and got.fuzzy_share == 0

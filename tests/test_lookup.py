"""Prompt look-up: what is drafted, and that decoding with it is plain decoding."""

import math
from functools import partial

import pytest
import torch
from answers import EXACT
from answers import run as run_one
from tiny import prompt_tokens, tiny_target

from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.drafters.lookup import LookupDrafter, LookupSettings
from eagle_fsd.rules.fsd import Fsd

SETTINGS = [{}, {"num_draft_tokens": 3, "max_ngram": 1}]
run = partial(run_one, budget=40)


LOOKUPS = {  # text, settings, what is drafted
    # 5 6 7 went on with 8; the shorter 6 7 and 7 went on with 9 more recently
    "longest": ([5, 6, 7, 8, 1, 6, 7, 9, 2, 5, 6, 7], (4,), [8, 1, 6, 7]),
    "at most max_ngram": ([5, 6, 7, 8, 1, 6, 7, 9, 2, 5, 6, 7], (4, 2), [9, 2, 5, 6]),
    "most recent": ([4, 8, 4, 9, 4], (2,), [9, 4]),
    # read on into its own drafts; without that a loop would draft one token
    "at the end": ([3, 3], (4,), [3] * 4),
    "loop": ([1, 2, 3, 1, 2, 3], (7,), [1, 2, 3, 1, 2, 3, 1]),
    "nothing before": ([4], (), []),
    "nothing alike": ([4, 5, 6, 7], (), []),
    "the last of two alike": ([4, 8, 1, 4, 9, 2, 4, 8, 3, 4], (5, 3), [8, 3, 4, 8, 3]),
}


@pytest.mark.parametrize("text, settings, drafts", LOOKUPS.values(), ids=LOOKUPS)
def test_what_is_drafted(text, settings, drafts):
    """A chain without draft distributions."""
    drafter = LookupDrafter(LookupSettings(*settings))
    drafter.observe(torch.empty(len(text), 0), text)
    tree = drafter.propose()
    assert tree.token_N.tolist() == [text[-1], *drafts]
    assert tree.parent_N.tolist() == [0, *range(len(drafts))]
    assert tree.max_depth == tree.depth_N.max()
    assert tree.draft_logits_ER.shape[0] == 0 and (tree.draft_row_N == -1).all()


@pytest.mark.parametrize("settings", SETTINGS)
def test_trees_never_exceed_max_nodes(settings):
    drafter = LookupDrafter(LookupSettings(**settings))
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        count = int(torch.randint(1, 5, (), generator=generator))
        tokens = torch.randint(0, 3, (count,), generator=generator).tolist()
        drafter.observe(torch.empty(count, 0), tokens)
        tree = drafter.propose()
        assert tree.size <= drafter.max_nodes
        assert tree.token_N[0] == tokens[-1]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_output_is_plain_decoding(family, settings):
    """Token for token, by `fsd` too: D is NaN and never passes, at any threshold. A tiny greedy
    model falls into a loop; what it repeats is drafted."""
    target, drafter = tiny_target(family), LookupDrafter(LookupSettings(**settings))
    prompt = prompt_tokens(9)
    prompt += 2 * run(target, RootDrafter(), prompt).tokens
    for temperature in (0.0, 1.0):
        plain = run(target, RootDrafter(), prompt, temperature=temperature)
        for rule in (EXACT, Fsd(math.inf)):
            found = run(target, drafter, prompt, temperature=temperature, rule=rule)
            assert found.tokens == plain.tokens and found.fuzzy_share == 0
            assert temperature > 0 or found.tokens_per_round > 1

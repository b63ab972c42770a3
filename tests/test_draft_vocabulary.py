"""Divergence and acceptance over a reduced draft vocabulary: the mass outside it counts.

Axes: E expanded nodes, S steps, N nodes, V vocabulary, R draft vocabulary.
"""

import math
from dataclasses import replace

import pytest
import torch
from tiny import draft_tokens, prompt_tokens, target_and_head

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.divergence import DIVERGENCES, INFINITE_OUTSIDE
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, answer_uniforms, decode
from eagle_fsd.decoding.rule import Rule
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.rules.fsd import Exact, Fsd


def random_tree(generator: torch.Generator, token_R: torch.Tensor) -> DraftTree:
    """Root, two children, one grandchild; tokens of the draft vocabulary, rows over it."""
    picks = token_R[torch.randperm(token_R.shape[0], generator=generator)[:3]]
    return DraftTree(
        torch.cat([torch.tensor([1]), picks]),
        torch.tensor([0, 0, 0, 1]),
        torch.tensor([0, 1, -1, -1]),
        torch.randn(2, token_R.shape[0], generator=generator) * 2,
        max_depth=2,
        draft_token_R=token_R,
    )


@pytest.mark.parametrize("measure", DIVERGENCES)
@pytest.mark.parametrize("logits", ["raw", "processed"])
@pytest.mark.parametrize("child", ["draft", "target", "deepest", "sample"])
def test_mass_outside_the_draft_vocabulary_counts(measure, logits, child):
    """accept on rows over R tokens == accept on rows over V tokens with -inf outside."""
    generator = torch.Generator().manual_seed(7)
    token_R = draft_tokens(11, seed=1)
    warm = child == "sample" or logits == "processed"
    sampling = SamplingConfig(0.8, top_k=30) if warm else SamplingConfig(0.0)
    accepted = 0
    for _ in range(6):
        tree = random_tree(generator, token_R)
        full_EV = torch.full((2, 101), -math.inf)
        full_EV[:, token_R] = tree.draft_logits_ER
        full = replace(tree, draft_logits_ER=full_EV, draft_token_R=None)
        logits_NV = torch.randn(4, 101, generator=generator)
        logits_NV[:, token_R] += 3
        for threshold in (0.1, 0.35, 5.0):
            rule = Fsd(threshold, child=child, divergence=measure, logits=logits)
            policy = Policy(rule, sampling, record="full")
            uniform_S3 = answer_uniforms(3, 3)
            (one, _), (other, _) = (
                accept(t, logits_NV, uniform_S3, policy=policy) for t in (tree, full)
            )
            assert (one.path, one.tokens, one.fuzzy) == (other.path, other.tokens, other.fuzzy)
            for name in ("divergence", "tv", "regret"):
                expected = pytest.approx(getattr(other, name), abs=1e-6, nan_ok=True)
                assert getattr(one, name) == expected
            accepted += one.accepted_drafts
    finite = measure in ("js", "tv", "kl_draft_target")
    assert accepted > 0 or not finite


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_threshold_that_can_never_pass_is_refused(name):
    """Told before any token; T = 0 and infinity may be."""
    target, head = target_and_head("eagle, 37 tokens")
    drafter = EagleDrafter(head, target, TreeConfig(5, 2, 3))

    def rounds(rule: Rule) -> int:
        config = DecodeConfig(Policy(rule), StopConfig(9))
        return len(decode(target, drafter, prompt_tokens(5), config).rounds)

    never, late, always = (Fsd(T, divergence=name) for T in (0.0, 50.0, math.inf))
    assert rounds(never) == rounds(Exact()) >= rounds(always)
    if name not in INFINITE_OUTSIDE:
        assert rounds(late) == rounds(always)
        return
    with pytest.raises(BadInput, match=f"divergence {name} is infinite .* 37 tokens only"):
        rounds(late)

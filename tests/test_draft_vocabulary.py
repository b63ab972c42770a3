"""Divergence and acceptance over a reduced draft vocabulary: the mass outside it counts.

Axes: E expanded nodes, S steps, N nodes, V vocabulary, R draft vocabulary.
"""

import math
from dataclasses import replace

import pytest
import torch
from eagle_fsd.decoding.accept import accept, uniforms
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_eagle3 import draft_tokens

from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig
from eagle_fsd.decoding.divergence import DIVERGENCES, INFINITE_OUTSIDE
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter


def random_tree(generator: torch.Generator, token_R: torch.Tensor) -> DraftTree:
    """Root, two children, one grandchild; tokens of the draft vocabulary, rows over it."""
    picks = token_R[torch.randperm(token_R.shape[0], generator=generator)[:3]]
    return DraftTree.from_tensors(
        torch.cat([torch.tensor([1]), picks]),
        torch.tensor([0, 0, 0, 1]),
        torch.tensor([0, 1, -1, -1]),
        torch.randn(2, token_R.shape[0], generator=generator) * 2,
        max_depth=2,
        draft_token_R=token_R,
    )


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("logits", ["raw", "processed"])
@pytest.mark.parametrize("child", ["draft", "target", "deepest", "sample"])
def test_mass_outside_the_draft_vocabulary_counts(divergence, logits, child):
    """accept on rows over R tokens == accept on rows over V tokens with -inf outside."""
    generator = torch.Generator().manual_seed(7)
    token_R = draft_tokens(11, seed=1)
    warm = child == "sample" or logits == "processed"
    sampling = SamplingConfig(0.8, top_k=30) if warm else SamplingConfig(0.0)
    accepted = 0
    for _ in range(12):
        tree = random_tree(generator, token_R)
        full_EV = torch.full((2, 101), -math.inf)
        full_EV[:, token_R] = tree.draft_logits_ER
        full = replace(tree, draft_logits_ER=full_EV, draft_token_R=None)
        logits_NV = torch.randn(4, 101, generator=generator)
        logits_NV[:, token_R] += 3
        for threshold in (0.1, 0.35, 5.0):
            config = AcceptConfig(
                "fsd", divergence=divergence, threshold=threshold, logits=logits, child=child
            )
            uniform_S3 = uniforms(2, torch.Generator().manual_seed(3))
            one, other = (
                accept(t, logits_NV, uniform_S3, config=config, sampling=sampling)
                for t in (tree, full)
            )
            assert (one.path, one.tokens, one.fuzzy) == (other.path, other.tokens, other.fuzzy)
            for name in ("divergence", "tv", "regret"):
                expected = pytest.approx(getattr(other, name), abs=1e-6, nan_ok=True)
                assert getattr(one, name) == expected
            accepted += one.accepted_drafts
    finite = divergence in ("js", "tv", "kl_draft_target")
    assert accepted > 0 or not finite


def test_total_variation_is_at_least_the_mass_outside():
    """A worked case: the draft equals the target inside R, and 0.3 of the target lies outside."""
    target_V = torch.tensor([0.3, 0.35, 0.1, 0.25]).log()
    tree = DraftTree.from_tensors(
        torch.tensor([0, 1]),
        torch.tensor([0, 0]),
        torch.tensor([0, -1]),
        target_V[None, 1:],
        max_depth=1,
        draft_token_R=torch.tensor([1, 2, 3]),
    )
    draft_V = tree.draft_logits(torch.tensor([0]), 4)[0]
    assert draft_V[0] == -math.inf
    assert DIVERGENCES["tv"](target_V, draft_V) == pytest.approx(0.3, abs=1e-6)
    assert DIVERGENCES["kl_target_draft"](target_V, draft_V) == math.inf
    assert DIVERGENCES["kl_draft_target"](target_V, draft_V) == pytest.approx(-math.log(0.7))


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_threshold_that_can_never_pass_is_refused(divergence):
    """Infinite outside the draft vocabulary: told before any token; T = 0 and infinity may be."""
    target = tiny_target("llama")
    head = tiny_head(target, draft_vocab_size=11)
    head.set_draft_tokens(draft_tokens(11))
    drafter = EagleDrafter(head, target, TreeConfig(5, 2, 3))

    def rounds(threshold: float, rule: str = "fsd") -> int:
        accept = AcceptConfig(rule, divergence, threshold)
        config = DecodeConfig(accept, stop=StopConfig(9))
        return len(decode(target, drafter, prompt_tokens(5), config).rounds)

    assert rounds(0.0) == rounds(0.5, "exact") >= rounds(math.inf)
    if divergence not in INFINITE_OUTSIDE:
        assert rounds(50.0) == rounds(math.inf)
        return
    with pytest.raises(ValueError, match=f"divergence {divergence} is infinite .* 11 tokens only"):
        rounds(50.0)

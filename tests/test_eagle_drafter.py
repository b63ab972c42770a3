"""Trees that draft heads grow, against the slow version: path by path, without a cache.

Axes: T positions, D hidden size, F features (D or 3 D), V vocabulary.
"""

import math
from functools import cache, partial

import pytest
import reference_head
import torch
from reference_tree import grow, paths
from tiny import HEADS, fused_target, target_and_head, tiny_head3

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.models import DraftHead


def slow_logits(target: Target, head: DraftHead, tokens_T, features_TF, drafts) -> torch.Tensor:
    """Draft logits after a path over the target's whole vocabulary, [V], by the references."""
    tensors, config = dict(head.state_dict()), vars(head.config)
    embed_VD = target.embed(torch.arange(101))
    output_D = reference_head.after_path(tensors, config, embed_VD, tokens_T, features_TF, drafts)
    if head.config.eagle3:
        return reference_head.logits(tensors, config, output_D[None])[0]
    full_V = target.logits(output_D[None])[0]
    if head.d2t is None:
        return full_V
    masked_V = torch.full_like(full_V, -math.inf)
    masked_V[head.draft_token_R] = full_V[head.draft_token_R]
    return masked_V


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("name", HEADS)
def test_trees_are_those_of_the_slow_version(name, family):
    """Over rounds of observe and propose: tokens, parents and draft rows == path by path.

    Rounds commit 1 to 5 tokens, one of them by two observes; the second sequence starts anew in
    the same drafter. Gemma scales its embedding, which the head must see scaled.
    """
    scale = 0.5 if family == "gemma3" else 1.0  # its embedding is six times as large
    target, head = target_and_head(name, family=family, seed=4, scale=scale)
    drafter = EagleDrafter(head, target, TreeConfig(12, 3, 4))
    generator = torch.Generator().manual_seed(5)
    width = 40 * (3 if head.config.eagle3 else 1)
    for length in (1, 9):
        drafter.reset(40)
        tokens_T, features_TF = torch.empty(0, dtype=torch.int64), torch.empty(0, width)
        for commits in ([length], [4], [2, 3], [1]):
            for count in commits:
                new_T = torch.randint(0, 101, (count,), generator=generator)
                new_TF = torch.randn(count, width, generator=generator)
                drafter.observe(new_TF, new_T.tolist())
                tokens_T = torch.cat([tokens_T, new_T])
                features_TF = torch.cat([features_TF, new_TF])
            tree = drafter.propose()
            assert tree.token_N[0] == tokens_T[-1]
            assert tree.size == drafter.max_nodes == 13 and tree.max_depth == 3
            logits_of = cache(partial(slow_logits, target, head, tokens_T, features_TF))
            *_, kept = grow(logits_of, depth=3, top_k=4, drafts=12)
            node_paths = paths(tree.token_N.tolist(), tree.parent_N.tolist())
            assert set(node_paths[1:]) == set(kept) and node_paths[0] == ()
            if head.d2t is not None:
                drafted = set(tree.token_N[1:].tolist())
                assert drafted <= set(head.draft_token_R.tolist())
            for path, row in zip(node_paths, tree.draft_row_N.tolist(), strict=True):
                if row >= 0:
                    want_V, token_R = logits_of(path), tree.draft_token_R
                    want_R = want_V if token_R is None else want_V[token_R]
                    ours_R = tree.draft_logits_ER[row]
                    torch.testing.assert_close(ours_R, want_R, atol=1e-4, rtol=1e-4)
            assert (tree.draft_row_N >= 0).sum() >= 3
            assert drafter._sequence.cache.length == tokens_T.shape[0]  # drafts leave no rows


def test_a_target_that_gives_other_features_is_refused():
    """Before anything runs."""
    with pytest.raises(ValueError, match=r"reads hidden states \(2, 3, 4\).*\(1, 2, 3\)"):
        EagleDrafter(tiny_head3(), fused_target(layers=(1, 2, 3)), TreeConfig(3, 2, 2))

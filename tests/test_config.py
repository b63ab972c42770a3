"""Settings: what is refused, and the counts that follow from a tree's shape."""

import pytest
import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.grower import TreeGrower


@pytest.mark.parametrize("depth, top_k", [(1, 7), (5, 4), (5, 1)])
def test_pool_size_and_num_expanded_are_what_a_grower_drafts(depth, top_k):
    """TreeConfig's counts == candidates and expanded nodes of a tree that keeps all of them."""
    pool = top_k + (depth - 1) * top_k**2
    config = TreeConfig(pool, depth, top_k)
    grower = TreeGrower(config)
    logits_KV = torch.randn(1, 13)
    for _ in range(depth):
        token_K, slot_K = grower.add_level(logits_KV)
        assert token_K.shape == slot_K.shape == (top_k,)
        logits_KV = torch.randn(top_k, 13)
    tree = grower.finish(torch.tensor(0))
    assert config.pool_size == tree.size - 1 == pool
    assert config.num_expanded == tree.draft_logits_ER.shape[0]
    assert int(tree.depth_N.max()) == depth

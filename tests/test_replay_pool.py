"""The batched pool of replay against TreeGrower, tree by tree and draft by draft."""

from functools import cache

import pytest
import torch

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.grower import TreeGrower
from eagle_fsd.drafters.pool import Growth, visited_roots


@cache
def logits_after(path: tuple[int, ...], vocab: int, grain: float) -> torch.Tensor:
    """Logits that depend on the path alone; a coarse grain makes ties, in rows and in sums."""
    seed = sum((token + 3) * 31**place for place, token in enumerate(path)) % 2**31
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 2
    return (logits / grain).round() * grain


def best(path: tuple[int, ...], K: int, grain: float) -> tuple[torch.Tensor, torch.Tensor]:
    logp = torch.log_softmax(logits_after(path, 13, grain)[None], dim=-1, dtype=torch.float32)
    return tuple(part[0] for part in logp.topk(K, dim=-1))


def grow_pool(texts_BT: torch.Tensor, tree: TreeConfig, grain: float) -> tuple[Growth, int]:
    """As growth.py does with a head; also how many nodes were run."""
    B, ran = texts_BT.shape[0], 0
    K, S = tree.branch_top_k, tree.tree_depth
    growth = Growth.empty(B, tree, torch.device("cpu"))
    paths = [[(b,)] for b in range(B)]
    rows = [[best(p, K, grain) for p in line] for line in paths]
    score = torch.stack([torch.stack([r[0] for r in line]) for line in rows])
    token = torch.stack([torch.stack([r[1] for r in line]) for line in rows])
    for level in range(1, S + 1):
        growth.add_level(level, score, token, texts_BT[:, level - 1])
        if level == S:
            break
        best_BK, run_BK = growth.frontier(level, tree)
        ran += int(run_BK.sum())
        if not run_BK.any():
            break
        kept = score.flatten(1).gather(1, best_BK)
        tokens = token.flatten(1).gather(1, best_BK)
        paths = [
            [(*paths[b][best_BK[b, k] // K], int(tokens[b, k])) for k in range(K)] for b in range(B)
        ]
        score = torch.full((B, K, K), -torch.inf)
        token = torch.full((B, K, K), -1)
        for b, k in run_BK.nonzero().tolist():
            logp, index = best(paths[b][k], K, grain)
            score[b, k], token[b, k] = kept[b, k] + logp, index
    return growth, ran


def walk_of_tree(b: int, text: list[int], config: TreeConfig, grain: float):
    """The text's path in TreeGrower's tree: its length, and by level whether there are children,
    and whether the best of them is the text's token."""
    grower = TreeGrower(config)
    paths = [(b,)]
    for _ in range(config.tree_depth):
        logits = torch.stack([logits_after(path, 13, grain) for path in paths])
        token_K, slot_K = grower.add_level(logits)
        paths = [
            (*paths[slot], token) for slot, token in zip(slot_K, token_K.tolist(), strict=True)
        ]
    tree = grower.finish(torch.tensor(0))
    node, has, right = 0, [], []
    for token in text[: config.tree_depth]:
        children = [n for n in range(1, tree.size) if tree.parent_N[n] == node]
        has.append(bool(children))
        logp = logits_after((b, *text[: len(has) - 1]), 13, grain)
        top = max(children, key=lambda n: logp[tree.token_N[n]].item(), default=None)
        right.append(top is not None and int(tree.token_N[top]) == token)
        hit = [n for n in children if tree.token_N[n] == token]
        if not hit:
            break
        node = hit[0]
    return len(has) - 1 + bool(hit), has, right


@pytest.mark.parametrize("grain", [1e-6, 0.5], ids=["distinct", "ties"])
@pytest.mark.parametrize(("K", "S", "M"), [(1, 4, 4), (3, 4, 11), (4, 3, 36), (6, 2, 9)])
def test_pool_equals_tree_grower(K, S, M, grain):
    """For every size and depth: accepted, children and their best, with most nodes never run."""
    generator = torch.Generator().manual_seed(K)
    B = 23
    texts_BT = torch.zeros(B, S, dtype=torch.int64)
    for b in range(B):  # mostly good tokens, sometimes any
        path = (b,)
        for s in range(S):
            good = best(path, min(3, K), grain)[1]
            pick = int(torch.randint(0, len(good) + 1, (1,), generator=generator))
            texts_BT[b, s] = good[pick] if pick < len(good) else 7
            path = (*path, int(texts_BT[b, s]))
    growth, ran = grow_pool(texts_BT, TreeConfig(M, S, K), grain)
    seen = set()
    for depth in range(1, S + 1):
        for drafts in range(depth, min(M, TreeConfig(depth, depth, K).pool_size) + 1):
            config = TreeConfig(drafts, depth, K)
            accepted = growth.accepted(config).tolist()
            has_BS = growth.has_child(config)
            for b in range(B):
                want, has, right = walk_of_tree(b, texts_BT[b].tolist(), config, grain)
                assert accepted[b] == want
                assert has_BS[b, : len(has)].tolist() == has
                if grain < 0.1:  # among equal children the first is best, here and there
                    mine = has_BS[b] & growth.child_is_text_BS[b, :depth]
                    assert mine[: len(right)].tolist() == right
                seen.add(want)
    assert len(seen) > 2
    assert ran < B * K * (S - 1) or K == 1


def test_jump():
    """The docstring's example: from each root, accepted + 1 ahead."""
    assert visited_roots(torch.tensor([2, 0, 0, 1, 0, 1])) == [0, 3, 5]
    assert visited_roots(torch.tensor([], dtype=torch.int64)) == []

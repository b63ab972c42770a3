"""The rule `path`. Draw by draw it is held against the recursive reference in test_accept.py."""

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from reference_accept import SlowAccept, random_round

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.rules.price import PathRule

INF = math.inf


def all_paths(children: list[list[int]], v: int = 0) -> list[tuple[int, ...]]:
    """Every path from v down, v alone first, in the draft's order."""
    return [(v,), *((v, *rest) for c in children[v] for rest in all_paths(children, c))]


def test_the_value_is_the_best_of_all_paths():
    """At temperature 0: brute force over every path from the root; of equal paths x's child comes
    first, then the draft's order. Quarters as logits and prices make equal values exactly equal."""
    checked = Counter()
    for seed in range(400):
        rng = random.Random(seed)
        tree, logits_NV, uniform_S3 = random_round(seed, vocab=7, ties=seed % 2 == 0)
        # of tokens tied for the last place transformers' top-k keeps all
        sampling = SamplingConfig(0.0, top_k=rng.choice([0, 3]) if seed % 2 else 0)
        stop = set(rng.sample(range(7), rng.choice([0, 0, 1, 2])))
        rule = PathRule(rng.choice([0.25, 0.5, 1.0, 2.0]))
        policy = Policy(rule, sampling)
        slow = SlowAccept(tree, logits_NV, policy, stop)
        hit = [slow.hit(v, logits.index(max(logits))) for v, logits in enumerate(slow.target)]
        allowed = [slow.options(v) for v in range(tree.size)]

        def gain(v: int, c: int, hit=hit, allowed=allowed, slow=slow, rule=rule) -> float:
            if c == hit[v]:
                return 1.0
            cost = slow.regret(v, slow.token[c]) / rule.price
            return 1 - cost if c in allowed[v] else -INF

        paths = {
            path: sum(gain(v, c) for v, c in itertools.pairwise(path))
            for path in all_paths(slow.children)
        }
        best = max(paths.values())
        got = accept(tree, logits_NV, uniform_S3, policy=policy, stop_token_ids=stop)
        assert paths[tuple(got.path)] == pytest.approx(best, abs=1e-5), seed
        if seed % 2 == 0:
            equal = [path for path, value in paths.items() if value == best]
            turns = [[(c != hit[v], c) for v, c in itertools.pairwise(path)] for path in equal]
            assert tuple(got.path) == equal[turns.index(min(turns))], seed
            checked["ties"] += len(equal) > 1
        checked["fuzzy"] += any(got.fuzzy)
        checked["narrowed"] += any(
            c not in allowed[v] and c != hit[v] for v in range(tree.size) for c in slow.children[v]
        )
        checked["stopped"] += any(slow.token[v] in stop for v in range(1, tree.size))
    assert min(checked[k] for k in ("ties", "fuzzy", "narrowed", "stopped")) > 20, checked


def test_where_nothing_exceeds_p_x_is_kept():
    """Bug held down: with all that top-k leaves drafted, rounding alone parts the new distribution
    from P; for the largest numbers that are drawn the first draft was taken, outside top-k too."""
    for seed in range(60):
        row_V = torch.randn(11, generator=torch.Generator().manual_seed(seed))
        left = row_V.topk(5).indices.tolist()
        tree = DraftTree.from_parents([0, row_V.argmin().item(), *left], [0] * 7)
        uniform_S3 = torch.tensor([[seed / 60, 0.5, 1 - 2**-24]]).expand(2, 3)
        policy = Policy(PathRule(0.5), SamplingConfig(0.7, 5))
        got = accept(tree, row_V.expand(7, 11), uniform_S3, policy=policy)
        assert got.tokens[0] in left

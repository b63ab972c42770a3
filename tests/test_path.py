"""The rule `path`: at temperature 0 the best of all paths, above it a distribution over them.

Draw by draw it is held against the recursive reference in test_accept.py.
"""

import itertools
import math
import random
from collections import Counter
from functools import partial

import pytest
import torch
from reference_accept import GREEDY, SlowAccept, random_round

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.verified import VerifiedTree, tabulate
from eagle_fsd.rules.price import PathRule

INF = math.inf


def verify(round_: tuple, policy: Policy, stop=()) -> VerifiedTree:
    """The tree as `accept` shows it to the rule."""
    settings = {"sampling": policy.sampling, "columns": policy.columns}
    return tabulate(*round_, **settings, stop_token_ids=stop)


# --- temperature 0 --------------------------------------------------------------------------------


def all_paths(children: list[list[int]], v: int = 0) -> list[tuple[int, ...]]:
    """Every path from v down, v alone first, in the draft's order."""
    return [(v,), *((v, *rest) for c in children[v] for rest in all_paths(children, c))]


def test_the_value_is_the_best_of_all_paths():
    """Brute force over every path from the root; of equal paths x's child comes first, then the
    draft's order. Quarters as logits and prices make equal values exactly equal."""
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
        round_ = (tree, logits_NV, uniform_S3)
        values, _ = rule.best_values(verify(round_, policy, stop))
        assert values[0] == pytest.approx(best, abs=1e-5), seed
        got = accept(*round_, policy=policy, stop_token_ids=stop)
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


# --- above 0: the distribution --------------------------------------------------------------------


def objective(slow: SlowAccept, new: list[dict[int, float]], b_over_tau: float) -> float:
    """E[accepted drafts] - (tau / b) KL(emitted || exact's), over the whole tree."""

    def parts(v: int) -> tuple[float, float]:
        tokens = divergence = 0.0
        for c, q in new[v].items():
            below, cost = parts(c)
            p = slow.p[v][slow.token[c]]
            tokens += q * (1 + below)
            divergence += q * cost + (q * math.log(q / p) if q else 0.0)
        if new[v]:
            left, outside = 1 - math.fsum(new[v].values()), slow.outside(v)
            divergence += left * math.log(left / outside) if outside and left > 1e-12 else 0.0
        return tokens, divergence

    tokens, divergence = parts(0)
    return tokens - divergence / b_over_tau


def perturbed(slow, new, rng: random.Random, size: float) -> list[dict[int, float]]:
    """The distribution with random weights at every open node, renormalised."""
    other = []
    for probs in new:
        if not probs:
            other.append(probs)
            continue
        weights = {c: q * math.exp(rng.gauss(0, size)) for c, q in probs.items()}
        left = max(0.0, 1 - math.fsum(probs.values())) * math.exp(rng.gauss(0, size))
        total = math.fsum(weights.values()) + left
        other.append({c: q / total for c, q in weights.items()})
    return other


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.7])
def test_no_other_distribution_is_worth_more(tau):
    """Its objective == (tau / b) log z(root), and every perturbed one's is less."""
    rng, less = random.Random(1), 0
    for seed, price in itertools.product(range(4), (0.3, 1.0, 3.0)):
        round_ = random_round(seed)
        policy = Policy(PathRule(price), SamplingConfig(tau))
        verified, slow = verify(round_, policy), SlowAccept(*round_[:2], policy)
        tilt = partial(policy.rule.tilt, verified)
        new = [  # the rule's own probability of every child
            {c: slow.p[v][slow.token[c]] * math.exp(tilt(v, c)) for c in below}
            for v, below in enumerate(verified.children)
        ]
        value = objective(slow, new, price / tau)
        log_z = policy.rule.log_z(verified)
        assert log_z == pytest.approx([slow.log_z(v) for v in range(len(log_z))], abs=1e-5)
        assert value == pytest.approx(tau / price * log_z[0], abs=1e-5)
        for size in (0.01, 0.1, 0.5, 2.0, 5.0):
            other = objective(slow, perturbed(slow, new, rng, size), price / tau)
            assert other <= value + 1e-6
            less += other < value - 1e-6
    assert less > 30


def test_as_the_temperature_falls_the_value_becomes_that_of_temperature_zero():
    """tau log z / b -> V, with the same price: the dial means the same at every temperature."""
    for seed, price in itertools.product(range(10), (0.3, 1.0, 3.0)):
        round_ = random_round(seed)
        rule = PathRule(price)
        values, _ = rule.best_values(verify(round_, Policy(rule, GREEDY)))
        gaps = []
        for tau in (0.3, 0.03, 0.003):
            log_z = rule.log_z(verify(round_, Policy(rule, SamplingConfig(tau))))
            gaps.append(abs(tau / price * log_z[0] - values[0]))
        # each of at most 5 levels adds at most tau log(12) / b
        bound = 5 * 0.003 * math.log(12) / price
        assert gaps[2] <= bound and gaps[2] <= max(gaps[0], 1e-3), (seed, price, gaps)


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

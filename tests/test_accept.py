"""Acceptance rules against a slow recursive reference and at their limits.

The laws that they emit by are tested by sampling, in test_sample.py.
"""

import itertools
import math
import traceback
from dataclasses import fields

import pytest
import torch
from reference_accept import SlowAccept, random_round

from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decoding.accept import accept, uniforms
from eagle_fsd.decoding.divergence import ALIASES, DIVERGENCES
from eagle_fsd.decoding.loop import DecodeConfig
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.decoding.visit import Judge
from eagle_fsd.rules.fuzzy import CHILD_CHOICES, RULES, expected_length

GREEDY, FILTERED, PLAIN = SamplingConfig(), SamplingConfig(0.7, 7, 0.9), SamplingConfig(1.0)
SAMPLINGS = [
    pytest.param(sampling, id=f"temperature-{sampling.temperature}")
    for sampling in (GREEDY, FILTERED, PLAIN)
]
FUZZY_RULES = ("fsd", "fsd-paper")
INF = math.inf


def children_for(sampling: SamplingConfig) -> list[str]:
    return [child for child in CHILD_CHOICES if child != "sample" or sampling.temperature > 0]


def ladder(tree: DraftTree, logits_NV: torch.Tensor, divergence: str = "js") -> list[float]:
    """Thresholds 0, between any two divergences of this tree's parents, and infinity."""
    config = AcceptConfig(divergence=divergence)
    slow = SlowAccept(tree, logits_NV, config=config, sampling=GREEDY)
    at_parents = sorted(slow.divergence(v) for v in range(tree.size) if slow.children[v])
    return [0.0, *(sum(pair) / 2 for pair in itertools.pairwise(at_parents)), INF]


def with_draft(tree: DraftTree, draft_EV: torch.Tensor) -> DraftTree:
    tensors = (tree.token_N, tree.parent_N, tree.draft_row_N, draft_EV)
    return DraftTree.from_tensors(*tensors, max_depth=tree.max_depth)


# --- against the slow reference -----------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("rule", RULES)
def test_agrees_with_the_recursive_reference(rule, divergence, sampling):
    """Path, tokens, fuzzy flags, D where judged, TV and regret, on random trees."""
    kinds = ["raw"] if sampling.temperature == 0 else ["raw", "processed"]
    fuzzy = 0
    for child, kind, seed in itertools.product(children_for(sampling), kinds, range(5)):
        config = AcceptConfig(rule=rule, child=child, divergence=divergence, logits=kind)
        tree, logits_NV, uniform_S3 = random_round(101 * seed + len(child))
        thresholds = ladder(tree, logits_NV, divergence)
        for threshold in {0.0, *thresholds[1::3], INF}:
            settings = {"config": config, "sampling": sampling, "threshold": threshold}
            got = accept(tree, logits_NV, uniform_S3, **settings)
            want = SlowAccept(tree, logits_NV, **settings).walk(uniform_S3.tolist())
            assert got.path == [step.node for step in want]
            for name in ("tokens", "fuzzy"):
                assert getattr(got, name) == [getattr(step, name[:5]) for step in want], name
            for name in ("divergence", "tv", "regret"):
                approx = [getattr(step, name) for step in want]
                approx = pytest.approx(approx, rel=1e-4, abs=2e-6, nan_ok=True)
                assert getattr(got, name) == approx, (name, settings)
            assert got.accepted_drafts == len(got.path) - 1 == len(got.tokens) - 1
            fuzzy += sum(got.fuzzy)
    assert (fuzzy > 0) == (rule != "exact")


@pytest.mark.parametrize("rule", FUZZY_RULES)
def test_ties_at_temperature_zero(rule):
    """Equal logits, common in bf16: the first argmax is P, and child `target` follows P.

    Bug held down: with two children tied for the argmax, `target` took the first child in node
    order though P gave it 0, so that the greedy token was replaced and counted as fuzzy.
    """
    for seed, child in itertools.product(range(60), children_for(GREEDY)):
        tree, logits_NV, uniform_S3 = random_round(seed, vocab=5, ties=True)
        config = AcceptConfig(rule=rule, child=child, threshold=INF)
        got = accept(tree, logits_NV, uniform_S3, config=config, sampling=GREEDY)
        want = SlowAccept(tree, logits_NV, config=config, sampling=GREEDY)
        assert got.path == [step.node for step in want.walk(uniform_S3.tolist())], (seed, child)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("rule", [*FUZZY_RULES, "random"])
def test_expected_length_of_deepest(rule, sampling):
    """L(v) at every node == the recursive formula."""
    for seed in range(20):
        tree, logits_NV, _ = random_round(seed)
        config = AcceptConfig(rule=rule, child="deepest")
        for threshold in ladder(tree, logits_NV)[::2]:
            settings = {"config": config, "sampling": sampling, "threshold": threshold}
            got = expected_length(Judge(tree, logits_NV, **settings)).tolist()
            slow = SlowAccept(tree, logits_NV, **settings)
            assert got == pytest.approx([slow.length(v) for v in range(tree.size)], abs=1e-5)


def test_deepest_takes_the_first_of_equals():
    """Bug held down: subtrees of equal expected length were told apart by rounding noise alone.

    In a full binary tree at T = inf all of a level have one L, the number of levels below.
    """
    parents = [0] + [(node - 1) // 2 for node in range(1, 31)]
    tokens = [0] + [3 if node % 2 else 5 for node in range(1, 31)]
    config = AcceptConfig(child="deepest", threshold=INF)
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        draft_NV, logits_NV = torch.randn(2, 31, 7, generator=generator)
        tensors = (torch.tensor(tokens), torch.tensor(parents), torch.arange(31), draft_NV)
        tree = DraftTree.from_tensors(*tensors, max_depth=4)
        logits_NV[:, [3, 5]] -= 2  # so that D is needed
        uniform_S3 = torch.rand(5, 3, generator=generator)
        got = accept(tree, logits_NV, uniform_S3, config=config, sampling=PLAIN)
        taken = [node for node, fuzzy in zip(got.path[1:], got.fuzzy, strict=False) if fuzzy]
        assert len(got.path) == 5 and all(node % 2 for node in taken), (seed, got.path)


# --- the limits of the threshold ----------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_threshold_zero_is_exact(sampling):
    """fsd at T = 0 emits exactly what exact emits with the same uniforms, even where D = 0."""
    for seed, child in itertools.product(range(100), children_for(sampling)):
        tree, logits_NV, uniform_S3 = random_round(seed)
        if seed % 5 == 0:  # a perfect draft: D = 0 at every parent
            row_E = [
                tree.draft_row_N.tolist().index(row) for row in range(tree.draft_row_N.max() + 1)
            ]
            tree = with_draft(tree, logits_NV[row_E])
        round_ = (tree, logits_NV, uniform_S3)
        want = accept(*round_, config=AcceptConfig(rule="exact"), sampling=sampling)
        config = AcceptConfig(rule="fsd", threshold=0, child=child)
        got = accept(*round_, config=config, sampling=sampling)
        assert (got.path, got.tokens) == (want.path, want.tokens)
        assert not any(got.fuzzy) and not any(got.tv)
        config = AcceptConfig(rule="fsd-paper", threshold=0, child=child)
        paper = accept(*round_, config=config, sampling=sampling)
        assert (paper.path, paper.tokens) == ([0], want.tokens[:1])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("rule", FUZZY_RULES)
def test_paths_grow_with_the_threshold(rule, sampling):
    """Same draws: the path at T1 is a prefix of that at T2 > T1, for draft, target and sample."""
    grown = 0
    for seed, child in itertools.product(range(30), children_for(sampling)):
        if child == "deepest":
            continue
        tree, logits_NV, uniform_S3 = random_round(seed)
        config, shorter = AcceptConfig(rule=rule, child=child), [0]
        for threshold in ladder(tree, logits_NV):
            path = accept(
                tree, logits_NV, uniform_S3, config=config, sampling=sampling, threshold=threshold
            ).path
            assert path[: len(shorter)] == shorter
            grown += len(path) > len(shorter) > 1
            shorter = path
    assert grown > 10


@pytest.mark.parametrize("rule", FUZZY_RULES)
def test_greedy_deepest_never_shrinks(rule):
    """Temperature 0: the length of `deepest`'s path is L(root) and never shrinks as T grows."""
    config, grown = AcceptConfig(rule=rule, child="deepest"), 0
    for seed in range(60):
        tree, logits_NV, uniform_S3 = random_round(seed)
        length = 0
        for threshold in ladder(tree, logits_NV):
            settings = {"config": config, "sampling": GREEDY, "threshold": threshold}
            accepted = accept(tree, logits_NV, uniform_S3, **settings).accepted_drafts
            assert accepted == SlowAccept(tree, logits_NV, **settings).length(0)
            assert accepted >= length
            grown += accepted > length
            length = accepted
    assert grown > 30


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("rule", FUZZY_RULES)
def test_threshold_infinity_ends_at_a_leaf(rule, divergence):
    """T = inf accepts any divergence that is a number, infinite ones included."""
    infinite = 0
    for seed, sampling in itertools.product(range(8), (GREEDY, FILTERED, PLAIN)):
        tree, logits_NV, uniform_S3 = random_round(seed)
        draft_EV = tree.draft_logits_ER.clone()
        draft_EV[:, tree.token_N.bincount(minlength=11) == 0] = -INF  # tokens nobody drafted
        kinds = ["raw"] if sampling == GREEDY else ["raw", "processed"]
        drafts = (tree, with_draft(tree, draft_EV))
        for a_tree, child, kind in itertools.product(drafts, children_for(sampling), kinds):
            config = AcceptConfig(rule, divergence, INF, kind, child)
            got = accept(a_tree, logits_NV, uniform_S3, config=config, sampling=sampling)
            assert got.path[-1] not in tree.parent_N[1:]
            assert all(tree.parent_N[c] == v for v, c in itertools.pairwise(got.path))
            infinite += INF in got.divergence
    assert (infinite > 0) == (divergence not in ("js", "tv"))


@pytest.mark.parametrize("child", ["draft", "sample"])
def test_children_of_no_draft_probability_are_still_children(child):
    """Bug held down: with -inf for every child, the walk went to the root or to the last node."""
    draft_EV = torch.zeros(2, 7)
    draft_EV[:, [2, 3, 5]] = -INF
    tokens, parents = torch.tensor([0, 2, 3, 5]), torch.tensor([0, 0, 0, 1])
    tree = DraftTree.from_tensors(
        tokens, parents, torch.tensor([0, 1, -1, -1]), draft_EV, max_depth=2
    )
    config = AcceptConfig("fsd-paper", "kl_target_draft", INF, "raw", child)
    got = accept(tree, torch.zeros(4, 7), torch.rand(3, 3), config=config, sampling=PLAIN)
    assert got.path in ([0, 1, 3], [0, 2])


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_nan_never_passes(divergence):
    """One NaN in each draft row: fsd is exact and fsd-paper ends at the root, even at T = inf."""
    for seed, sampling in itertools.product(range(5), (GREEDY, FILTERED, PLAIN)):
        tree, *rest = random_round(seed)
        draft_EV = tree.draft_logits_ER.clone()
        draft_EV[:, seed] = math.nan
        tree = with_draft(tree, draft_EV)
        want = accept(tree, *rest, config=AcceptConfig("exact"), sampling=sampling)
        for child in children_for(sampling):
            config = AcceptConfig("fsd", divergence, INF, "raw", child)
            got = accept(tree, *rest, config=config, sampling=sampling)
            assert (got.path, got.tokens) == (want.path, want.tokens)
            config = AcceptConfig("fsd-paper", divergence, INF, "raw", child)
            assert accept(tree, *rest, config=config, sampling=sampling).path == [0]


def test_a_tree_without_distributions_is_decoded_exactly():
    """E = 0 (a drafter that is no language model): nothing to judge, so nothing passes."""
    tree, logits_NV, uniform_S3 = random_round(7)
    tree = DraftTree.from_parents(tree.token_N.tolist(), tree.parent_N.tolist())
    for sampling in (GREEDY, PLAIN):
        round_ = (tree, logits_NV, uniform_S3)
        want = accept(*round_, config=AcceptConfig("exact"), sampling=sampling)
        for child in children_for(sampling):
            config = AcceptConfig(threshold=INF, child=child)
            assert accept(*round_, config=config, sampling=sampling).path == want.path


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_random_has_no_use_for_a_divergence(sampling):
    """Rate 0 is exact, rate 1 ends at a leaf; D is neither needed nor judged."""
    for seed, child in itertools.product(range(30), ("draft", "target", "deepest")):
        tree, logits_NV, uniform_S3 = random_round(seed)
        nan = with_draft(tree, torch.full_like(tree.draft_logits_ER, math.nan))
        round_ = (tree if child == "draft" else nan, logits_NV, uniform_S3)
        want = accept(*round_, config=AcceptConfig("exact"), sampling=sampling)
        config = AcceptConfig("random", threshold=0, child=child)
        never = accept(*round_, config=config, sampling=sampling)
        assert (never.path, never.tokens) == (want.path, want.tokens)
        config = AcceptConfig("random", threshold=1, child=child)
        always = accept(*round_, config=config, sampling=sampling)
        assert always.path[-1] not in tree.parent_N[1:]
        assert all(math.isnan(value) for value in always.divergence)
    with pytest.raises(ValueError, match="a probability, at most 1; got 1.5"):
        AcceptConfig("random", threshold=1.5)


def test_threshold_holds_its_own_value():
    """D <= T: T equal to D passes, the next float32 below does not."""
    tree, logits_NV, uniform_S3 = random_round(11)
    config = AcceptConfig("fsd-paper", "js")
    settings = {"config": config, "sampling": GREEDY}
    at_root = accept(tree, logits_NV, uniform_S3, **settings).divergence[0]
    below = torch.tensor(at_root).nextafter(torch.tensor(0.0)).item()
    assert accept(tree, logits_NV, uniform_S3, threshold=at_root, **settings).path != [0]
    assert accept(tree, logits_NV, uniform_S3, threshold=below, **settings).path == [0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("rule", FUZZY_RULES)
def test_threshold_over_nodes(rule, sampling):
    """A tensor [N] gives every parent its own T; a constant one is the number."""
    for seed, child in itertools.product(range(15), children_for(sampling)):
        tree, *rest = random_round(seed)
        settings = {"config": AcceptConfig(rule, child=child), "sampling": sampling}
        threshold_N = torch.tensor([0.0, 0.05, 0.2, INF])[torch.arange(tree.size) * (seed + 1) % 4]
        slow = SlowAccept(tree, rest[0], threshold=threshold_N.tolist(), **settings)
        got = accept(tree, *rest, threshold=threshold_N, **settings)
        assert got.path == [step.node for step in slow.walk(rest[1].tolist())]
        constant = accept(tree, *rest, threshold=torch.full((tree.size,), 0.2), **settings)
        assert constant.path == accept(tree, *rest, threshold=0.2, **settings).path


# --- settings, randomness, devices --------------------------------------------------------------


@pytest.mark.parametrize(
    "field, known",
    [("rule", RULES), ("child", CHILD_CHOICES), ("divergence", [*DIVERGENCES, *ALIASES])],
)
def test_unknown_names_list_the_known(field, known):
    """Every name of the table stands in the error; so does the wrong one."""
    with pytest.raises(ValueError, match="'nonsense'") as error:
        AcceptConfig(**{field: "nonsense"})
    assert all(name in str(error.value) for name in known)


def test_settings_are_checked_where_they_meet():
    """DecodeConfig refuses what has no meaning at temperature 0; aliases become canonical."""
    for values in ({"logits": "processed"}, {"child": "sample"}):
        with pytest.raises(ValueError, match="temperature > 0"):
            DecodeConfig(accept=AcceptConfig(**values), sampling=GREEDY)
        DecodeConfig(accept=AcceptConfig(**values), sampling=FILTERED)
    for alias, name in ALIASES.items():
        assert AcceptConfig(divergence=alias) == AcceptConfig(divergence=name)


def test_every_round_takes_the_same_block_of_uniforms():
    """uniforms: [max_depth + 1, 3] in [0, 1), from the generator alone; accept takes no other."""
    block_S3 = uniforms(4, torch.Generator().manual_seed(3))
    assert block_S3.shape == (5, 3) and block_S3.dtype == torch.float32
    assert torch.equal(block_S3, uniforms(4, torch.Generator().manual_seed(3)))
    assert 0 <= block_S3.min() and block_S3.max() < 1
    tree, logits_NV, _ = random_round(5)
    state = torch.get_rng_state()
    for rule, child in itertools.product(RULES, CHILD_CHOICES):
        config = AcceptConfig(rule, child=child)
        accept(tree, logits_NV, block_S3, config=config, sampling=PLAIN)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_nothing_is_read_back_before_the_end(sampling):
    """Off the CPU the only read is the last one (tensors on `meta` cannot be read at all).

    Bug held down: `token_N[child]` with a 0-d index reads the index, once a step.
    """
    tree, logits_NV, uniform_S3 = random_round(2)
    values = {f.name: getattr(tree, f.name) for f in fields(tree)}
    tensors = {k: v.to("meta") for k, v in values.items() if isinstance(v, torch.Tensor)}
    tree = DraftTree(**(values | tensors))
    for rule, child in itertools.product(RULES, children_for(sampling)):
        config = AcceptConfig(rule, child=child)
        with pytest.raises((RuntimeError, NotImplementedError)) as error:
            accept(
                tree, logits_NV.to("meta"), uniform_S3.to("meta"), config=config, sampling=sampling
            )
        frames = traceback.extract_tb(error.value.__traceback__)
        last = [frame for frame in frames if "eagle_fsd" in frame.filename][-1]
        assert ".tolist()" in last.line, f"{rule}, {child}: read at line {last.lineno}: {last.line}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu():
    """The walk that never stops early gives the same Acceptance."""
    for seed, sampling in itertools.product(range(10), (GREEDY, FILTERED, PLAIN)):
        tree, *rest = random_round(seed)
        tensors = [tree.token_N, tree.parent_N, tree.draft_row_N, tree.draft_logits_ER]
        there = DraftTree.from_tensors(*(t.cuda() for t in tensors), max_depth=tree.max_depth)
        for rule, child in itertools.product(RULES, children_for(sampling)):
            settings = {"config": AcceptConfig(rule, child=child), "sampling": sampling}
            want = accept(tree, *rest, **settings)
            got = accept(there, *(t.cuda() for t in rest), **settings)
            assert (got.path, got.tokens, got.fuzzy) == (want.path, want.tokens, want.fuzzy)
            for name in ("divergence", "tv", "regret"):
                approx = pytest.approx(getattr(want, name), rel=1e-4, abs=1e-5, nan_ok=True)
                assert getattr(got, name) == approx

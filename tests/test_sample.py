"""From logits to P, draws from it, and the distributions that acceptance rules emit."""

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from reference_accept import SlowAccept, chi_square_p, slow_p

from eagle_fsd.config import SamplingConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.loop import answer_uniforms
from eagle_fsd.decoding.sampling import argmax, draw, filter_logits, inverse_cdf, next_token_probs
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.rules.children import Random
from eagle_fsd.rules.fsd import Exact, Fsd, FsdPaper


def random_logits(rows: int, vocab: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def test_filters_by_hand():
    """P = (.5, .25, .15, .1): top-k 3 comes before top-p .8, which then needs only two tokens."""
    logits_1V = torch.tensor([[0.25, 0.5, 0.1, 0.15]]).log()
    keep_both_1V = filter_logits(logits_1V, SamplingConfig(1.0, top_k=3, top_p=0.8)) > -math.inf
    assert keep_both_1V.tolist() == [[True, True, False, False]]  # .5 + .25 of .9 is .83
    keep_p_1V = filter_logits(logits_1V, SamplingConfig(1.0, top_p=0.8)) > -math.inf
    assert keep_p_1V.tolist() == [[True, True, False, True]]  # .5 + .25 of 1 is not .8


def test_a_neutral_filter_changes_nothing_and_bfloat16_becomes_float32():
    """Temperature 1 without top-k and top-p is the identity, in float32.

    Bug held down: temperature 2 (an int) was refused inside transformers, in mid-decoding.
    """
    logits_RV = random_logits(3, 11).bfloat16()
    got_RV = filter_logits(logits_RV, SamplingConfig(temperature=1))
    assert got_RV.dtype == torch.float32
    assert torch.equal(got_RV, logits_RV.float())
    assert torch.equal(filter_logits(logits_RV, SamplingConfig(temperature=2)), got_RV / 2)


def test_p_is_the_reference_s():
    """P of all tokens by hand; it sums to 1; removed tokens have 0; what is drawn has not."""
    logits_RV = random_logits(13, 37, seed=1)
    logits_RV[5, ::3] = -math.inf
    settings = itertools.product((0.3, 1.0, 2.0), (0, 1, 5, 1000), (1.0, 0.9, 1e-6))
    for sampling in [SamplingConfig(), *itertools.starmap(SamplingConfig, settings)]:
        prob_RV = next_token_probs(logits_RV, sampling)
        drawn_R = draw(logits_RV, torch.full((13,), 0.5), sampling)
        assert drawn_R.dtype == torch.int64 and prob_RV.dtype == torch.float32
        torch.testing.assert_close(prob_RV.sum(1), torch.ones(13))
        want_RV = torch.tensor([slow_p(logits, sampling) for logits in logits_RV.tolist()])
        torch.testing.assert_close(prob_RV, want_RV, rtol=1e-4, atol=1e-6)
        assert (prob_RV.gather(1, drawn_R[:, None]) > 0).all()


def test_greedy_is_the_first_argmax():
    """Temperature 0 ignores the uniform and takes the first of equals, as `generate` does."""
    logits_RV = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0], [0.0, -1.0, -2.0, -3.0, -math.inf]])
    for uniform in (0.0, 0.6, 0.999):
        assert draw(logits_RV, torch.full((2,), uniform), SamplingConfig()).tolist() == [1, 0]
    prob_RV = next_token_probs(logits_RV, SamplingConfig())
    assert prob_RV.tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_the_argmax_is_the_first_of_the_largest_in_every_type():
    """As torch's own: of two alike the first, and a NaN before any number. (On a CPU it is taken by
    another library.)"""
    generator = torch.Generator().manual_seed(0)
    logits_RV = torch.randint(0, 9, (13, 101), generator=generator).float()
    logits_RV[1, 40], logits_RV[2, 50:52] = math.nan, math.inf
    logits_RV[3, :] = -math.inf
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(argmax(logits_RV.to(dtype)), logits_RV.argmax(-1))
    assert argmax(logits_RV)[1:4].tolist() == [40, 50, 0]


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(1.0), SamplingConfig(0.7, top_p=0.9), SamplingConfig(1.5, top_k=3)]
)
def test_draws_follow_p(sampling):
    """30,000 draws over 7 tokens against P, by chi-square; removed tokens never come."""
    logits_1V = random_logits(1, 7, seed=3)
    uniform_R = torch.rand(30_000, generator=torch.Generator().manual_seed(4))
    drawn_R = draw(logits_1V.expand(30_000, 7), uniform_R, sampling)
    count = dict(enumerate(drawn_R.bincount(minlength=7).tolist()))
    assert chi_square_p(count, dict(enumerate(slow_p(logits_1V[0].tolist(), sampling)))) > 1e-4


def test_the_numbers_of_an_answer_are_uniform_and_go_by_position():
    uniform_S3 = answer_uniforms(5, 4000)
    assert uniform_S3.dtype == torch.float32 and uniform_S3[:9].equal(answer_uniforms(5, 9))
    for uniform_S in uniform_S3.T:
        count = Counter((8 * uniform_S).long().tolist())
        assert chi_square_p(count, dict.fromkeys(range(8), 1 / 8)) > 1e-4


def test_inverse_cdf_at_its_boundaries():
    """An interval holds its left end; weight zero is never drawn, neither first nor last."""
    weight_V = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0, 0.0])
    below = 1 - 2**-24  # the largest float32 below 1
    wants = {0.0: 1, 0.25 * below: 1, 0.25: 3, 0.75 * below: 3, 0.75: 4, below: 4}
    for uniform, want in wants.items():
        for scale in (1.0, 3.0, 1e-30):  # weights need not sum to 1
            got_1 = inverse_cdf(scale * weight_V[None], torch.tensor([uniform]))
            assert got_1.tolist() == [want], (uniform, scale)


def test_inverse_cdf_is_exact_over_a_large_vocabulary():
    """Flat over 100,003 tokens: the middle of every interval hits its own token (float64 sums)."""
    vocab = 100_003
    token_R = torch.tensor([0, 1, 2, 49_999, 50_000, 99_991, 100_002])
    uniform_R = (token_R.double() + 0.5) / vocab
    weight_RV = torch.softmax(torch.zeros(1, vocab), -1).expand(len(token_R), vocab)
    assert torch.equal(inverse_cdf(weight_RV, uniform_R), token_R)
    tail_1V = torch.tensor([[1.0, 1e-9, 1e-9, 1e-9]])  # float32 sums would never leave token 0
    uniform_1 = torch.tensor([1 + 1.5e-9], dtype=torch.float64) / (1 + 3e-9)
    assert inverse_cdf(tail_1V, uniform_1).tolist() == [2]


# --- what the rules emit ------------------------------------------------------------------------

DRAWS = 2500


@pytest.mark.parametrize("sampling", [SamplingConfig(1.0), SamplingConfig(0.7, top_p=0.9)])
def test_exact_emits_and_accepts_what_the_target_says(sampling):
    """First token and first two tokens of 2,500 texts by chi-square; the first round's accepted
    drafts by z-test: E[accepted | tree] = sum over drafts of the product of P along the path.

    The target is a Markov chain over 7 tokens, from token 0; a round that ends after one token is
    followed by another, with fresh uniforms. So whatever the trees hold, the first two tokens are
    distributed as P(a | 0) P(b | a). Only some tokens are drafted, so that rounds end both ways.
    """
    logits_VV = random_logits(7, 7, seed=6)
    trees = [
        DraftTree.from_parents(
            [a, (a + 1) % 7, (a + 3) % 7, (a + 2) % 7, (a + 5) % 7], [0, 0, 0, 1, 1]
        )
        for a in range(7)
    ]
    generator, policy = torch.Generator().manual_seed(7), Policy(Exact(), sampling)
    pairs, accepted = [], []
    for _ in range(DRAWS):
        text, drafts = [0], []
        while len(text) < 3:
            tree, uniform_S3 = trees[text[-1]], torch.rand(3, 3, generator=generator)
            logits_NV = logits_VV[tree.token_N]
            got = accept(tree, logits_NV, uniform_S3, policy=policy)
            text += got.tokens
            drafts.append(got.accepted_drafts)
        pairs.append(tuple(text[1:3]))
        accepted.append(drafts[0])
    law_VV = [slow_p(logits, sampling) for logits in logits_VV.tolist()]
    first = Counter(a for a, _ in pairs)
    assert chi_square_p(first, dict(enumerate(law_VV[0]))) > 1e-4
    both = {(a, b): law_VV[0][a] * law_VV[a][b] for a in range(7) for b in range(7)}
    assert chi_square_p(Counter(pairs), both) > 1e-4
    tree = trees[0]
    token, parent, reach = tree.token_N.tolist(), tree.parent_N.tolist(), [1.0]
    for node in range(1, tree.size):
        reach.append(reach[parent[node]] * law_VV[token[parent[node]]][token[node]])
    mean = sum(accepted) / DRAWS
    variance = sum((n - mean) ** 2 for n in accepted) / (DRAWS - 1)
    assert sum(reach[1:]) > 0.2
    assert abs(mean - sum(reach[1:])) < 4 * math.sqrt(variance / DRAWS)


def round_of_eighths() -> tuple[DraftTree, torch.Tensor]:
    """A tree whose P are eighths and whose Q over siblings are quarters, and the target's logits.

    The root's children are nodes 1, 2, 3 with tokens 1, 2, 4: `target` prefers node 1, `draft`
    node 3. Nodes 2 and 3 have two and three children, the others none.
    """
    tokens, parents = [0, 1, 2, 4, 3, 5, 0, 6, 2], [0, 0, 0, 0, 2, 2, 3, 3, 3]
    eighths_NV = torch.tensor([[0, 1, 2, 1, 2, 1, 1]]).repeat(9, 1)
    eighths_NV[0] = torch.tensor([1, 2, 1, 1, 0, 3, 0])
    eighths_NV[2] = torch.tensor([0, 1, 0, 4, 1, 2, 0])
    eighths_NV[3] = torch.tensor([1, 3, 0, 2, 1, 0, 1])
    draft_EV = torch.full((3, 7), 0.05)
    draft_EV[0, [1, 2, 4]] = torch.tensor([0.2, 0.2, 0.4])
    draft_EV[1, [3, 5]] = torch.tensor([0.2, 0.6])
    draft_EV[2, [0, 6, 2]] = torch.tensor([0.2, 0.2, 0.4])
    row_N = torch.tensor([0, -1, 1, 2, -1, -1, -1, -1, -1])
    tree = DraftTree(
        torch.tensor(tokens), torch.tensor(parents), row_N, draft_EV.log(), max_depth=2
    )
    return tree, (eighths_NV / 8).log()


def judged(tree: DraftTree, passing: set[int]) -> DraftTree:
    """D is a number at these nodes only, so that T = inf passes there and nowhere else."""
    draft_EV = tree.draft_logits_ER.clone()
    for node in {0, 2, 3} - passing:
        draft_EV[tree.draft_row_N[node]] = math.nan
    return replace(tree, draft_logits_ER=draft_EV)


@pytest.mark.processes  # long
@pytest.mark.parametrize(
    "kind, child",
    [*itertools.product((Fsd, FsdPaper), ("draft", "target", "sample")), (Random, "target")],
)
def test_fuzzy_rules_emit_their_distributions_exactly(kind, child):
    """That of a round's first two tokens, with no sampling error, where D passes and where not;
    and TV.

    P comes in eighths, `sample` and `random` choose in quarters: the middles of the cells of a
    step's uniforms, all combined over two steps, weigh every outcome by its very probability.
    """
    tree, logits_NV = round_of_eighths()
    quarters = [0.125, 0.375, 0.625, 0.875]
    chosen = quarters if child == "sample" else [0.5]
    tried = quarters if kind is Random else [0.5]
    step = itertools.product([(cell + 0.5) / 8 for cell in range(8)], chosen, tried)
    cells = list(itertools.product(step, repeat=2))
    rule = kind(0.25 if kind is Random else math.inf, child)
    policy = Policy(rule, SamplingConfig(1.0))
    for passing in ({0, 2}, {0, 3})[: 1 if kind is Random else 2]:
        round_ = judged(tree, passing), logits_NV
        slow, got, want = SlowAccept(*round_, policy), defaultdict(float), defaultdict(float)
        for tokens, p in slow.round_distribution().items():
            want[tokens[:2]] += p
        for first, second in cells:
            uniform_S3 = torch.tensor([first, second, (0.3, 0.6, 0.5)])
            accepted = accept(*round_, uniform_S3, policy=policy)
            assert accepted.tv == pytest.approx([slow.tv(v) for v in accepted.path], abs=1e-6)
            got[tuple(accepted.tokens[:2])] += 1 / len(cells)
        assert dict(got) == pytest.approx(dict(want), abs=1e-6), passing


@pytest.mark.parametrize("rule, child", [(Fsd, "draft"), (FsdPaper, "sample")])
def test_fuzzy_rules_draw_from_their_distributions(rule, child):
    """All tokens of a round over 2,500 draws, by chi-square; D passes at the root and node 2."""
    tree, logits_NV = round_of_eighths()
    tree, policy = judged(tree, {0, 2}), Policy(rule(math.inf, child), SamplingConfig(1.0))
    block_RS3 = torch.rand(DRAWS, 3, 3, generator=torch.Generator().manual_seed(8))
    count = Counter(
        tuple(accept(tree, logits_NV, uniform_S3, policy=policy).tokens) for uniform_S3 in block_RS3
    )
    slow = SlowAccept(tree, logits_NV, policy)
    assert chi_square_p(count, slow.round_distribution()) > 1e-4

"""Rule rejection on sampled drafts: draw by draw as a slow version, and P's own law."""

import itertools
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from answers import EXACT, TREES, run
from reference_accept import chi_square_p, random_round, slow_draw, slow_p
from tiny import (
    FAMILIES,
    prompt_tokens,
    random_model,
    tiny_head,
    tiny_target,
)

from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.sampling import draw_distinct
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.rules.rejection import Rejection

SAMPLINGS = [SamplingConfig(1.0), SamplingConfig(0.7, top_p=0.8), SamplingConfig(1.4, top_k=2)]
TREE = TREES[2]


def slow_rejection(p: list[float], q: list[float], children: list[int], uniforms) -> int:
    """The token emitted at a node."""
    point = uniforms[2]
    for child in children:
        if q[child] == 0:  # it was not drawn
            continue
        accept = min(1.0, p[child] / q[child])
        if point < accept:
            return child
        point = (point - accept) / (1 - accept)
        p = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
        p = [a / math.fsum(p) for a in p]
        q = [0.0 if token == child else b for token, b in enumerate(q)]
        q = [b / (math.fsum(q) or 1.0) for b in q]
    return slow_draw(p, uniforms[0])


@pytest.mark.parametrize("sampling", [*SAMPLINGS, SamplingConfig()])
def test_every_token_is_the_slow_version_s(sampling):
    """On random trees, whose siblings may stand for any draws. The path ends at a stop token; what
    is drawn behind one is of no answer. No token counts as fuzzy; at temperature 0 all are
    exact."""
    accepted = 0
    for seed in range(40):
        tree, logits_NV, uniform_S3 = random_round(seed)
        tokens, parents = tree.token_N.tolist(), tree.parent_N.tolist()
        stop = set(tokens[3:5])
        policy = Policy(Rejection(), sampling)
        got = accept(tree, logits_NV, uniform_S3, policy=policy, stop_token_ids=stop)
        node, path, emitted = 0, [], []
        while node is not None:
            path.append(node)
            children = [c for c in range(1, tree.size) if parents[c] == node]
            p, q = slow_p(logits_NV[node].tolist(), sampling), []
            if children:
                q = slow_p(tree.draft_logits_ER[tree.draft_row_N[node]].tolist(), sampling)
            drafts = {tokens[c]: c for c in children}
            uniforms = uniform_S3[len(path) - 1].tolist()
            emitted.append(slow_rejection(p, q, [*drafts], uniforms))
            ended = node > 0 and tokens[node] in stop
            node = None if ended else drafts.get(emitted[-1])
        assert (got.path, got.tokens) == (path, emitted), seed
        assert not any(got.fuzzy) and not any(got.tv)
        accepted += got.accepted_drafts
        if sampling.temperature == 0:
            exact = Policy(EXACT, sampling)
            assert got.tokens == accept(tree, logits_NV, uniform_S3, policy=exact).tokens
    assert accepted > 10


@pytest.mark.parametrize("siblings", [1, 2, 4])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_token_is_distributed_as_the_target_says(sampling, siblings):
    """Of 100,000 nodes, each with siblings of its own draws, by chi-square; of one draft a share of
    sum min(P, Q) is accepted, of more a larger one. Top-k leaves fewer tokens than siblings."""
    generator = torch.Generator().manual_seed(3)
    target_1V, draft_1V = 1.5 * torch.randn(2, 1, 7, generator=generator)
    M = 100_000
    drawn_MC = draw_distinct(
        draft_1V.expand(M, 7), torch.rand(M, siblings, generator=generator), sampling
    )
    assert (drawn_MC.sort(1).values.diff(dim=1) > 0).all()
    p, q = (slow_p(row[0].tolist(), sampling) for row in (target_1V, draft_1V))
    first = Counter(drawn_MC[:, 0].tolist())
    assert chi_square_p(first, dict(enumerate(q))) > 1e-4
    prob_MV, draft_prob_MV = (torch.tensor([row]).expand(M, 7) for row in (p, q))
    rows = SimpleNamespace(prob_MV=prob_MV, draft_distribution_MV=draft_prob_MV, child_MK=drawn_MC)
    emitted_M = Rejection().draw_exact(rows, torch.rand(M, 3, generator=generator))
    assert chi_square_p(Counter(emitted_M.tolist()), dict(enumerate(p))) > 1e-4
    share = (emitted_M[:, None] == drawn_MC).any(1).double().mean().item()
    overlap = math.fsum(map(min, p, q))
    if siblings == 1:
        assert share == pytest.approx(overlap, abs=5 * math.sqrt(0.25 / M))
    else:
        assert share > overlap + 0.02


@torch.inference_mode()
@pytest.mark.parametrize(
    "drafter, tree",
    [
        ("none", TREE),
        pytest.param(
            "head", TreeConfig(12, 4, 4, keep=0.12, deepen=0.5), marks=pytest.mark.processes
        ),
        pytest.param("model", TreeConfig(6, 3, 3), marks=pytest.mark.processes),
    ],
)
def test_answers_are_distributed_as_the_target_says(drafter, tree):
    """The second and third token of 500 answers, by chi-square: the whole loop on a target of
    seven tokens, drafts and acceptance by one seed, of which no number is used for two tokens. A
    priced tree is pruned by the order of the draws, never by what was drawn."""
    config = FAMILIES["llama"]()
    config.vocab_size, config.num_hidden_layers = 7, 1
    model, other = (random_model(config, seed=seed, scale=1.0) for seed in (0, 1))
    target, prompt, rule = Target(model), [3, 5], Rejection()
    if drafter == "none":
        made, rule = RootDrafter(), EXACT
    elif drafter == "head":
        made = EagleDrafter(tiny_head(target, vocab_size=7), target, tree)
        made = made.with_tree(tree, samples=True)
    else:
        made = LanguageModelDrafter(Target(other), target, tree, samples=True)
    said = Counter()
    for seed in range(500):
        got = run(target, made, prompt, rule=rule, temperature=1.0, seed=seed, budget=3)
        said[tuple(got.tokens[1:])] += 1
    law = Counter()
    for a, b in itertools.product(range(7), repeat=2):
        rows_LV = model(torch.tensor([[*prompt, a, b]])).logits[0].softmax(-1).double()
        for c in range(7):
            law[b, c] += (rows_LV[1, a] * rows_LV[2, b] * rows_LV[3, c]).item()
    assert chi_square_p(said, law) > 1e-4


def test_where_q_is_p_every_draft_of_a_chain_is_accepted():
    """With the target as its own draft model; at temperature 0 the text is plain's."""
    target, prompt = tiny_target("llama"), prompt_tokens(9)
    drafter = LanguageModelDrafter(target, target, TreeConfig(3, 3, 1), samples=True)
    asked = {"rule": Rejection(), "seed": 4, "budget": 13}
    for temperature in (0.7, 0.0):
        answer = run(target, drafter, prompt, temperature=temperature, **asked)
        assert answer.tokens_per_round == 4 and answer.fuzzy_share == 0
    assert answer.tokens == run(target, RootDrafter(), prompt, budget=13).tokens

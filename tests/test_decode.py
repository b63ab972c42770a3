"""The decoding loop: seeds, budgets and ends of answers, what drafters are told, and what is
refused. Exact answers of every family and drafter: test_matrix.py."""

import math

import pytest
import torch
from answers import EXACT, TREES, assert_same, by_generate, drafter_of, run
from tiny import (
    BOS,
    NoisyTargetDrafter,
    prompt_tokens,
    random_model,
    tiny_head,
    tiny_target,
)
from transformers import GPT2Config

from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, answer_uniforms
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter, DraftTree, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter, head_drafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.models.generate import rescore
from eagle_fsd.rules.price import PathRule
from eagle_fsd.rules.rejection import Rejection


@pytest.mark.parametrize("rule", [PathRule(0.8), Rejection()], ids=str)
def test_seeds_and_budgets(rule):
    """At temperature 1 the same seed repeats the run, round by round, and other seeds differ; a
    shorter answer is the longer one's beginning."""
    target, prompt = tiny_target("qwen3", seed=3), prompt_tokens(9)
    drafter = NoisyTargetDrafter(target, TREES[1], noise=0.5)
    if isinstance(rule, Rejection):
        drafter = LanguageModelDrafter(target.first_layers(2), target, TREES[1], samples=True)
    settings = {"rule": rule, "temperature": 1.0, "seed": 5}
    long = run(target, drafter, prompt, budget=40, **settings)
    torch.manual_seed(99)  # no randomness but the given seed's
    again = run(target, drafter, prompt, budget=40, **settings)
    assert repr(long) == repr(again)  # a TV may be NaN
    assert run(target, drafter, prompt, budget=40, **settings | {"seed": 6}).tokens != long.tokens
    for budget in (1, 2, 3, 17):
        short = run(target, drafter, prompt, budget=budget, **settings)
        assert short.tokens == long.tokens[:budget] and short.finish == "length"
        assert budget > 1 or short.rounds == []


def test_stop_tokens_wherever_they_stand_in_a_path():
    """Each token of the answer in turn as stop token: kept, nothing after it, like generate; in the
    middle of an accepted path too, of which tokens_per_round counts the whole."""
    target, prompt = tiny_target("gemma3", seed=4), prompt_tokens(11, seed=4)
    plain = run(target, RootDrafter(), prompt).tokens
    drafters = [drafter_of(name, target) for name in ("noisy", "eagle", "language_model")]
    in_the_middle = 0
    for stop in list(dict.fromkeys(plain))[::2]:
        want = plain[: plain.index(stop) + 1]
        for drafter in drafters:
            # a stop token that just fits the budget ends the answer as "stop"
            got = run(target, drafter, prompt, stop=(stop, 101), budget=len(want))
            assert got.tokens == want and got.finish == "stop"
            emitted = 1 + sum(len(r.tokens) for r in got.rounds)
            in_the_middle += len(want) < emitted
            assert got.rounds == [] or got.tokens_per_round == (emitted - 1) / len(got.rounds)
    assert by_generate(target, prompt, stop=(stop, 101)) == want
    assert in_the_middle > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_told(temperature):
    """By round, or in prefill; and when an answer is rescored. Bug held down: greedy went on with
    the NaN's index, sampling with the last token. (Of every rule: test_accept.py.)"""
    target, prompt = tiny_target("llama", seed=5), prompt_tokens(7, seed=5)
    forwards = []  # a broken one is the last

    def after_norm(module, args, output):
        forwards.pop()
        return output if forwards else output * math.nan

    target.model.base_model.norm.register_forward_hook(after_norm)
    for drafter in (RootDrafter(), EagleDrafter(tiny_head(target), target, TREES[2])):
        for count, told in {1: "in prefill", 4: r"after \d+ tokens of the answer"}.items():
            forwards += range(count)
            with pytest.raises(BadInput, match=f"NaN or infinite {told}.* in float32 or bfloat16"):
                run(target, drafter, prompt, temperature=temperature)
    forwards += [0]
    with pytest.raises(BadInput, match="over an answer"):
        rescore(target, prompt, [3])


@torch.inference_mode()
def test_drafters_are_told_every_feature_with_the_token_after_it(monkeypatch):
    """Observed features == those of the committed text in one forward; tokens == the text itself.

    A wrong row would not change a greedy answer: it would only make heads draft badly.
    """
    target, prompt = tiny_target("gemma3", seed=11), prompt_tokens(9)
    drafter, told = NoisyTargetDrafter(target, TREES[2], noise=0.3), []
    observe = type(drafter).observe
    monkeypatch.setattr(
        type(drafter), "observe", lambda *pair: (told.append(pair[1:3]), observe(*pair))
    )
    answer = run(target, drafter, prompt)
    features_TD = torch.cat([features for features, _ in told])
    text = [*prompt, answer.tokens[0], *(t for r in answer.rounds for t in r.tokens)]
    assert [token for _, tokens in told for token in tokens] == text[1:]
    alone = target.model(torch.tensor([text]), output_hidden_states=True)
    torch.testing.assert_close(features_TD, alone.hidden_states[-1][0, :-1], atol=1e-4, rtol=0)
    assert answer.tokens_per_round > 1.5


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SamplingConfig(temperature=None), "temperature must be a number, got None"),
        (lambda: StopConfig(2.5), "max_new_tokens must be an integer, got 2.5"),
        (lambda: DecodeConfig(Policy(EXACT), seed=2**64), r"seed must be from -9\d+ to 9\d+, got"),
        (lambda: [BOS, -1], "prompt token -1 is outside the target's vocabulary of 101"),
        (lambda: [BOS] * 247, "prompt of 247 tokens . max_new_tokens 5 is beyond .* 251 positions"),
    ],
)
def test_impossible_requests_are_refused(make, message):
    """Before any work. Bug held down: what clients send for "not given" ended in a TypeError or
    torch's own error about a long, some of them behind the prefill."""
    with pytest.raises(BadInput, match=message):
        run(tiny_target("llama"), RootDrafter(), make(), budget=5)


def test_torch_s_defaults_change_no_draw():
    """Bug held down: a program that had called torch.set_default_dtype(torch.float64) got other
    samples of the same seed, and one with another default device an error."""
    target, prompt = tiny_target("llama"), prompt_tokens(11)
    drafter = EagleDrafter(tiny_head(target), target, TREES[2])
    wanted = run(target, drafter, prompt, temperature=1.0).tokens
    torch.set_default_dtype(torch.float64)
    try:
        assert run(target, drafter, prompt, temperature=1.0).tokens == wanted
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert answer_uniforms(7, 5).device.type == "cpu"


def test_the_last_position_can_be_reached():
    """prompt + budget == max positions decodes to the end, though drafts would lie beyond it.

    Bug held down: GPT-2 looks positions up in a table, which a tree at the end ran off.
    """
    config = GPT2Config(
        vocab_size=101, n_embd=40, n_layer=2, n_head=4, n_positions=31, eos_token_id=None
    )
    target, prompt = Target(random_model(config, seed=0)), prompt_tokens(11)
    plain = run(target, RootDrafter(), prompt, budget=20)
    assert len(plain.tokens) == 20
    drafter = EagleDrafter(tiny_head(target), target, TREES[2])
    assert_same(target, prompt, run(target, drafter, prompt, budget=20).tokens, plain.tokens)


def test_a_head_whose_drafts_are_never_taken_is_told_once(capsys):
    """After the answer, and for all of its trees together; a head that drafts is not. Bug held
    down: a head of no use decoded at 1.00 tokens a round without a word."""
    target, prompt = tiny_target("llama"), prompt_tokens(9)
    plain = run(target, RootDrafter(), prompt, budget=60).tokens
    head = tiny_head(target, draft_vocab_size=5)
    head.set_draft_tokens(torch.tensor(sorted({*range(target.vocab_size)} - {*plain})[:5]))
    drafter = head_drafter(head, target, TreeConfig(5, 2, 3))
    for each in (drafter, drafter.with_tree(TreeConfig(3, 1, 3))):
        assert run(target, each, prompt, budget=60).tokens == plain
    (line,) = capsys.readouterr().err.splitlines()
    assert "1.00 tokens a round in the first 59 rounds: hardly a draft of the head" in line
    drafter = LanguageModelDrafter(target.first_layers(3), target, TreeConfig(3, 3, 1))
    run(target, drafter, prompt, budget=200)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("keep", [0.0, 0.1])
@pytest.mark.parametrize("samples", [False, True])
def test_a_head_without_finite_logits_is_named(samples, keep):
    """As a target is. Bugs held down: a head that overflows drafted nothing, without a word; and
    where `keep` prices trees, which dropped what is no number, still did."""
    target = tiny_target("llama")
    head = tiny_head(target)
    with torch.no_grad():
        head.layers[0].mlp.down_proj.weight *= 1e38
        head.layers[0].mlp.up_proj.weight *= 1e38
    tree = TreeConfig(5, 2, 3, keep=keep)
    drafter = head_drafter(head, target, tree).with_tree(tree, samples=samples)
    with pytest.raises(BadInput, match="the head's logits are NaN or infinite in drafting"):
        run(target, drafter, prompt_tokens(9), temperature=0.7)


class Given(Drafter):
    """Trees of these parents, the root's token and then 1, 2, 3 and so on, but for a change."""

    max_nodes = 4

    def __init__(self, parents, changed=None, *, depth=2):
        self.parents, self.changed, self.depth = parents, changed or {}, depth

    def observe(self, features_TF, next_tokens, logits_NV=None):
        self.root = next_tokens[-1]

    def propose(self):
        tokens = [self.root, *range(1, len(self.parents))]
        for node, token in self.changed.items():
            tokens[node] = token
        rows = torch.tensor([tokens, self.parents, [-1] * len(tokens)])
        return DraftTree(*rows, torch.empty(0, 0), max_depth=self.depth)


class Nothing(Given):
    def propose(self):
        return None


@pytest.mark.parametrize(
    ("drafter", "told"),
    [
        (Given([0, 0, 1], {0: 1}), "root, node 0, is token 1"),
        (Given([0, 0, 2]), "node 2 is below node 2"),  # another root
        (Given([1, 0, 1]), "node 0 is below node 1"),
        (Given([0, 2, 0]), "node 1 is below node 2"),
        (Given([0, 0, 0], {2: 1}), "node 1 has a sibling of the same token, 1"),
        (Given([0, 0, 1, 2]), "max_depth 2 or max_children is less than 3"),
        (Given([0, 0, 0, 0, 0]), "a tree of 5 nodes: more than its max_nodes, 4"),
        (Given([0, 0], {1: 101}), "token 101: the target's are below 101"),
        (Given([0, 0], {1: -1}), "token -1"),
        (Nothing([0]), "None: return a DraftTree"),
    ],
)
def test_a_tree_that_is_none_is_told_by_its_drafter_and_node(drafter, told):
    """Bugs held down: with another root than the last token, or with two, `exact` wrote another
    text than plain decoding, without a word."""
    target, prompt = tiny_target("llama"), prompt_tokens(9)
    right = run(target, Given([0, 0, 0, 2]), prompt).tokens
    assert_same(target, prompt, right, by_generate(target, prompt))
    with pytest.raises(BadInput, match=f"drafter {type(drafter).__name__} .*{told}"):
        run(target, drafter, prompt)

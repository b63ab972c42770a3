"""Draft trees over targets with recurrent layers: verification, commit and whole answers.

Axes: N tree nodes, V vocabulary.
"""

import sys
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from answers import TREES, assert_same, by_generate, run
from eagle_fsd.decoding.drafter import RootDrafter
from test_target import largest_error, path_to, random_tree
from tiny import NoisyTargetDrafter, prompt_tokens, tiny_head, tiny_target
from tiny_folder import write_target
from tiny_recurrent import HYBRIDS, hybrid_model, hybrid_target
from training_runs import data_options, made, make_data, train, write_talks
from transformers import AutoConfig, DynamicCache
from transformers.models.qwen3_5 import modeling_qwen3_5

import eagle_fsd
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.hybrid import HybridDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.drafters.ngram import NgramDrafter
from eagle_fsd.drafters.settings import NgramSettings
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.engine.trial import check_tree_attention
from eagle_fsd.families.supported import check_supported
from eagle_fsd.models.generate import Request, complete
from eagle_fsd.recurrent.kinds import FAMILIES, REFUSED

# One family of every kind of recurrence.
KINDS = ("qwen3_5_text", "kimi_linear", "falcon_h1", "lfm2")


def cases(*first: object, fast: Collection[str] = (), quick: Collection[str] = KINDS) -> list:
    """(first, family) of all families. Only those in `fast` belong to scripts/test.sh --fast, and
    besides them only those in `quick` to scripts/test.sh."""
    marks = {family: pytest.mark.slow for family in HYBRIDS}
    marks |= dict.fromkeys(quick, pytest.mark.processes) | dict.fromkeys(fast, ())
    return [pytest.param(*first, family, marks=marks[family]) for family in HYBRIDS]


# Of logits of a size about 1, float32: what transformers' own steps differ from its own whole
# forward by in these random models, whose layers enlarge roundings.
CLOSE = 3e-3


def states(cache) -> list[torch.Tensor]:
    """Of every recurrent layer, those of the convolution first."""
    found = []
    for layer in cache.layers:
        for kind in ("conv_states", "recurrent_states"):
            found += [state for state in getattr(layer, kind, {}).values() if state is not None]
    return found


def assert_states_are_of(target: Target, tokens: list[int]) -> None:
    """Keys, values and states of the target's cache == those of one forward in transformers' own
    cache over these tokens."""
    fresh, ours = DynamicCache(config=target.config), target.cache
    target.model(torch.tensor([tokens]), past_key_values=fresh, use_cache=True)
    assert len(states(ours)) == len(states(fresh)) > 1
    for mine, theirs in zip(states(ours), states(fresh), strict=True):
        assert mine.dtype == theirs.dtype == torch.float32
        torch.testing.assert_close(mine, theirs, atol=CLOSE, rtol=CLOSE)
    for mine, theirs in zip(ours.layers, fresh.layers, strict=True):
        if getattr(theirs, "keys", None) is not None:
            assert theirs.keys.shape[2] == len(tokens)
            keys = mine.keys[:, :, : len(tokens)]
            torch.testing.assert_close(keys, theirs.keys, atol=CLOSE, rtol=CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("engine", "family"), cases("stock", quick=HYBRIDS) + cases("packed", fast=KINDS, quick=HYBRIDS)
)
def test_tree_logits_are_those_of_each_path_alone(family, engine):
    """Of deep trees and wide ones, behind prompts shorter than the convolution and longer."""
    target = hybrid_target(family, engine=engine)
    for seed, length, size in [(0, 1, 13), (1, 40, 13), (2, 5, 60)]:
        assert largest_error(target, prompt_tokens(length), random_tree(seed, size=size)) < CLOSE


@torch.inference_mode()
@pytest.mark.parametrize("family", HYBRIDS)
def test_cache_after_commit_is_a_fresh_prefill(family):
    """Whole paths, the root alone, a path that skips siblings, and plain steps in between."""
    target, tokens = hybrid_target(family, seed=1), prompt_tokens(23, seed=1)
    target.start(23 + 80)
    target.prefill(torch.tensor(tokens))
    plain = DraftTree.from_parents([31], [0])
    for tree, node in [
        (random_tree(2), 12),
        (random_tree(3), 0),
        (plain, 0),
        (random_tree(5), 11),
        (plain, 0),
        (random_tree(4), 10),
    ]:
        target.verify(tree)
        target.commit(tree.ancestor_NN[node].nonzero()[:, 0])
        tokens += path_to(tree, node)
        assert_states_are_of(target, tokens)
    want_V = target.model(torch.tensor([[*tokens, 31]])).logits[0, -1]
    torch.testing.assert_close(target.verify(plain)[0][0], want_V, atol=CLOSE, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_rejected_branch_changes_no_later_logit(family):
    """Two trees with one path in common and other tokens elsewhere leave the same behind."""
    after = []
    for rejected in (17, 71):
        target = hybrid_target(family)
        target.start(90)
        target.prefill(torch.tensor(prompt_tokens(11)))
        tokens = [5, rejected, 8, rejected, 9, rejected]  # kept: nodes 0, 2 and 4
        tree = DraftTree.from_parents(tokens, [0, 0, 0, 1, 2, 4])
        target.verify(tree)
        target.commit(torch.tensor([0, 2, 4]))
        logits = target.verify(random_tree(1))[0]
        target.commit(torch.tensor([0]))
        for token in (3, 4):
            plain = target.verify(DraftTree.from_parents([token], [0]))[0]
            target.commit(torch.tensor([0]))
            logits = torch.cat([logits, plain])
        after.append(logits)
        assert_states_are_of(target, [*prompt_tokens(11), 5, 8, 9, random_tree(1).token_N[0], 3, 4])
    torch.testing.assert_close(*after, atol=1e-4, rtol=0)


def drafters_of(target: Target, tree) -> dict:
    eagle = EagleDrafter(tiny_head(target), target, tree)
    return {
        "ngram": NgramDrafter(NgramSettings()),
        "noisy": NoisyTargetDrafter(target, tree, noise=0.3),
        "eagle": eagle,
        "hybrid": HybridDrafter(eagle),
    }


@pytest.mark.parametrize(
    ("engine", "family"), cases("stock") + cases("packed", fast=("qwen3_5_text", "lfm2"))
)
def test_exact_is_plain_decoding_and_generate(family, engine):
    """With every drafter; at temperature 1 draw by draw."""
    target, taken = hybrid_target(family, seed=3, engine=engine), 0
    for length, tree, temperature in ((5, TREES[1], 0.0), (40, TREES[3], 0.0), (40, TREES[0], 1.0)):
        prompt = prompt_tokens(length, seed=length)
        settings = {"temperature": temperature, "seed": 7, "budget": 24}
        plain = run(target, RootDrafter(), prompt, **settings)
        assert len(set(plain.tokens)) > 2
        if not temperature:
            assert_same(target, prompt, plain.tokens, by_generate(target, prompt))
        for drafter in drafters_of(target, tree).values():
            got = run(target, drafter, prompt, **settings)
            if temperature:
                assert got.tokens == plain.tokens
            else:
                assert_same(target, prompt, got.tokens, plain.tokens)
            taken += sum(r.accepted_drafts for r in got.rounds)
    assert taken > 20


@pytest.mark.slow  # a compilation for each width
@pytest.mark.parametrize("family", ["qwen3_5_text", "falcon_h1"])
def test_compiled_exact_is_plain_decoding_and_generate(family):
    """Of single tokens, which change states within the compiled code, and of trees."""
    stock, target = (hybrid_target(family, seed=3, engine=name) for name in ("stock", "compiled"))
    drafter, taken = NoisyTargetDrafter(target, TREES[1], noise=0.3), 0
    for length in (40, 5, 300):
        prompt = prompt_tokens(length, seed=length)
        want = by_generate(stock, prompt, budget=70)
        for each in (RootDrafter(), drafter):
            got = run(target, each, prompt, budget=60)
            assert_same(stock, prompt, got.tokens, want[:60])
            taken += sum(r.accepted_drafts for r in got.rounds)
            assert_states_are_of(target, [*prompt, *want][: target.cache_length])
    assert taken > 20


@pytest.mark.parametrize(
    ("engine", "family"), cases("stock") + cases("packed", fast=("lfm2",), quick=HYBRIDS)
)
def test_rows_of_a_batch_are_what_generate_gives_alone(family, engine):
    """Rows begin, end and are moved beside each other, three at a time."""
    target = hybrid_target(family, seed=3, engine=engine)
    budgets = {5: 20, 40: 9, 17: 30, 3: 12, 28: 25}
    asked = [Request(prompt_tokens(n, seed=n), budget) for n, budget in budgets.items()]
    assert len(list(complete(target, asked, batch_size=3))) == len(asked)
    for request in asked:
        want = by_generate(target, request.prompt, budget=request.max_new_tokens)
        assert_same(target, request.prompt, request.tokens, want)


@pytest.mark.parametrize(("temperature", "family"), cases(0.0) + cases(1.0, quick=KINDS[:1]))
def test_long_answers_do_not_drift(family, temperature):
    """A prompt of 300 tokens and an answer of 230."""
    target, prompt = hybrid_target(family, seed=5), prompt_tokens(300, seed=5)
    settings = {"temperature": temperature, "seed": 2, "budget": 230}
    plain = run(target, RootDrafter(), prompt, **settings)
    if not temperature:
        assert_same(target, prompt, plain.tokens, by_generate(target, prompt, budget=230))
    drafters = drafters_of(target, TREES[2])
    for name in ("ngram", "eagle", "hybrid"):
        got = run(target, drafters[name], prompt, **settings)
        if temperature:
            assert got.tokens == plain.tokens
        else:
            assert_same(target, prompt, got.tokens, plain.tokens)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["qwen3_5_text", "falcon_h1", "lfm2"])
def test_a_round_that_is_cut_leaves_the_states_of_the_text(family):
    """By a stop token in the middle of an accepted path, and by the budget: states are those of the
    tokens that the cache counts, all of which belong to the target's own text."""
    target, prompt = hybrid_target(family, seed=4), prompt_tokens(9, seed=4)
    plain, cut = run(target, RootDrafter(), prompt, budget=40).tokens, 0
    for stop, budget in [((), n) for n in range(5, 12)] + [((t,), 40) for t in plain[3:10]]:
        drafter = NoisyTargetDrafter(target, TREES[3], noise=0.1)
        got = run(target, drafter, prompt, budget=budget, stop=stop)
        assert got.tokens == plain[: len(got.tokens)]
        committed = target.cache_length
        assert_states_are_of(target, [*prompt, *plain][:committed])
        cut += sum(len(r.tokens) for r in got.rounds) + 1 > len(got.tokens)
    assert cut > 1


def test_threads_with_models_of_one_family_do_not_see_each_other():
    """Two decode at once while a third runs transformers' own generate over a stock model."""
    models = [hybrid_model("qwen3_5_text", seed=seed) for seed in (0, 1, 2)]
    targets = [Target(model) for model in models[:2]]
    prompt, start = prompt_tokens(11), threading.Barrier(3)

    def ours(number: int) -> list[int]:
        start.wait()
        drafter = EagleDrafter(tiny_head(targets[number]), targets[number], TREES[1])
        return run(targets[number], drafter, prompt, budget=40).tokens

    def stock() -> list[int]:
        start.wait()
        settings = {"do_sample": False, "max_new_tokens": 40, "eos_token_id": None}
        prompts = torch.tensor([prompt])
        return models[2].generate(prompts, pad_token_id=0, **settings)[0, len(prompt) :].tolist()

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(ours, 0), pool.submit(ours, 1), pool.submit(stock)]
        got = [job.result() for job in jobs]
    for model, tokens in zip(models, got, strict=True):
        assert_same(Target(model), prompt, tokens, by_generate(Target(model), prompt, budget=40))


def test_transformers_functions_are_back_after_an_error():
    """And the target goes on as if nothing had been."""
    names = ("causal_conv1d_fn", "torch_chunk_gated_delta_rule")
    stock = [getattr(modeling_qwen3_5, name) for name in names]
    target, tree = hybrid_target("qwen3_5_text"), random_tree(1)
    target.start(60)
    target.prefill(torch.tensor(prompt_tokens(9)))
    within = []

    def fail(*_):
        within.append([getattr(modeling_qwen3_5, name) for name in names])
        raise RuntimeError("no memory")

    hook = target.model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        target.verify(tree)
    hook.remove()
    assert within[0][0] is not stock[0] and within[0][1] is not stock[1]
    assert [getattr(modeling_qwen3_5, name) for name in names] == stock
    largest = largest_error(target, prompt_tokens(9), tree)
    assert largest < CLOSE


@pytest.mark.processes  # whole commands
@pytest.mark.parametrize("family", ["qwen3_5_text", "falcon_h1", "lfm2"])
def test_a_head_is_made_for_a_target_with_recurrent_layers(family, tmp_path):
    """Its answers in batches, a head that is trained on them, and exact decoding with it."""
    folder = write_target(tmp_path / "target")
    changes = {"vocab_size": 258, "bos_token_id": 0, "eos_token_id": 1}
    hybrid_model(family, **changes).save_pretrained(folder)
    talks = write_talks(tmp_path)
    features = ("--features", str(tmp_path / "features"), "--dialogues", "8")
    make_data(data_options(folder, tmp_path / "data", *features, sources=(str(talks),)))
    assert len(made(tmp_path / "data")) == 8
    kept = {"features": tmp_path / "features", "target_dtype": "float32", "steps": 5}
    head = train(folder, tmp_path / "data", tmp_path / "head", **kept, loss_vocab=97)
    model = eagle_fsd.load(str(folder), head=str(head), dtype="float32", tree="7x3x4")
    answers = [
        eagle_fsd.generate(model, "Say it.", arm=arm, max_new_tokens=30).tokens
        for arm in ("plain", "exact", "exact@hybrid")
    ]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 30


@torch.inference_mode()
@pytest.mark.parametrize("family", HYBRIDS)
def test_states_stay_in_float32_beside_half_precision_weights(family):
    target = Target(hybrid_model(family).bfloat16())
    target.start(60)
    target.prefill(torch.tensor(prompt_tokens(9)))
    tree = random_tree(2)
    logits_NV, _ = target.verify(tree)
    assert logits_NV.dtype == torch.bfloat16 and logits_NV.isfinite().all()
    target.commit(torch.tensor([0, 1]))
    target.verify(DraftTree.from_parents([3], [0]))
    recurrent = [
        state
        for layer in target.cache.layers
        for state in getattr(layer, "recurrent_states", {}).values()
    ]
    assert {state.dtype for state in recurrent if state is not None} <= {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", HYBRIDS)
def test_supported_families_pass_the_check_of_trees(family, dtype):
    assert set(HYBRIDS) == set(FAMILIES)
    check_tree_attention(Target(hybrid_model(family).to(dtype)))


@pytest.mark.parametrize("kind", REFUSED)
def test_recurrent_layers_that_cannot_be_verified_are_refused_by_name(kind):
    with pytest.raises(BadInput, match=f"{kind!r} has layers of type .*: .*Supported"):
        check_supported(AutoConfig.for_model(kind))


def test_what_stands_in_the_way_of_states_is_named():
    """Kernels of the hub, recorded forwards, a draft model with states, half-precision states."""
    model = hybrid_model("qwen3_5_text")
    model.model._use_kernels = True
    with pytest.raises(BadInput, match="'qwen3_5_text' with kernels of the hub .* use_kernels"):
        Target(model)
    with pytest.raises(BadInput, match="engine 'graphs' cannot run .* 'lfm2'.*use auto"):
        Target(hybrid_model("lfm2"), engine=ENGINES["graphs"]())
    hybrid, plain = hybrid_target("lfm2"), tiny_target("llama")
    with pytest.raises(BadInput, match="draft model of type 'lfm2' has recurrent layers"):
        LanguageModelDrafter(hybrid, plain, TREES[0])
    LanguageModelDrafter(plain, hybrid, TREES[0])
    config = hybrid_model("nemotron_h").config
    config.mamba_ssm_cache_dtype = "bfloat16"
    with pytest.raises(BadInput, match="mamba_ssm_cache_dtype is bfloat16.*set it to float32"):
        check_supported(config)
    config = hybrid_model("bamba").config
    config.time_step_limit = (0.01, 1.0)
    with pytest.raises(BadInput, match="time_step_limit 0.01 to 1.0"):
        check_supported(config)


@torch.inference_mode()
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_tree_beyond_the_memory_is_refused_before_it_is_run(family):
    """By a reckoning from the states, which comes close to what a tree then keeps."""
    target = hybrid_target(family)
    target.start(200_000)
    target.prefill(torch.tensor(prompt_tokens(9)))
    target.verify(random_tree(1, size=60))
    cache, channels = target.cache, family == "kimi_linear"
    kept = sum(layer.tree_bytes(60, channels=channels) for layer in cache._with_states)
    assert kept == cache.stash_bytes
    target.commit(torch.tensor([0]))
    if family in ("qwen3_5_text", "falcon_h1", "kimi_linear"):
        size = 150_000
        nothing = torch.zeros(size, dtype=torch.int64)
        huge = SimpleNamespace(size=size, parent_N=nothing, ancestor_NN=None)
        with pytest.raises(BadInput, match=f"150000 nodes needs .* GiB .*{family!r}.*smaller tree"):
            target.verify(huge)


@torch.inference_mode()
def test_layers_that_do_not_call_the_functions_are_found_out(monkeypatch):
    """A mixer with kernels of its own would make a chain of the nodes, in silence."""
    target, tree = hybrid_target("qwen3_5_text"), random_tree(1)
    target.start(60)
    target.prefill(torch.tensor(prompt_tokens(9)))
    mixer = target.model.model.layers[0].linear_attn
    mixer.forward = lambda hidden_states, **_: hidden_states
    with pytest.raises(BadInput, match="layer 0 of a target of type 'qwen3_5_text' .*functions"):
        target.verify(tree)
    assert "modeling_qwen3_5" in sys.modules[type(mixer).__module__].__name__

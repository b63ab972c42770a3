"""Draft trees over targets with recurrent layers: what length, errors, threads and memory do to
their states. Trees and answers of every family: test_matrix.py.

Axes: N tree nodes, V vocabulary.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from answers import TREES, assert_same, by_generate, drafter_of, run
from reference_tree import largest_error, random_tree
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_folder import write_target
from tiny_recurrent import HYBRIDS, KINDS, hybrid_model, hybrid_target
from training_runs import data_options, made, make_data, train, write_talks
from transformers import AutoConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

import eagle_fsd
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.engine.trial import check_tree_attention
from eagle_fsd.families.supported import check_supported
from eagle_fsd.recurrent.kinds import REFUSED
from eagle_fsd.recurrent.states import RecurrentLayer


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.processes if family in KINDS else pytest.mark.slow)
        for family in HYBRIDS
    ],
)
def test_long_answers_do_not_drift(family):
    """A prompt of 300 tokens and an answer of 230."""
    target, prompt = hybrid_target(family, seed=5), prompt_tokens(300, seed=5)
    for temperature in (0.0, 1.0):
        settings = {"temperature": temperature, "seed": 2, "budget": 230}
        plain = run(target, RootDrafter(), prompt, **settings).tokens
        if not temperature:
            assert_same(target, prompt, plain, by_generate(target, prompt, budget=230))
        for name in ("ngram", "eagle:15x5x4", "hybrid:15x5x4"):
            got = run(target, drafter_of(name, target), prompt, **settings).tokens
            if temperature:
                assert got == plain
            else:
                assert_same(target, prompt, got, plain)


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
    assert largest < 3e-3


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
    kept = {"features": tmp_path / "features", "dtype": "float32", "steps": 5}
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
    check_tree_attention(Target(hybrid_model(family).to(dtype)))


@pytest.mark.parametrize("kind", REFUSED)
def test_recurrent_layers_that_cannot_be_verified_are_refused_by_name(kind):
    with pytest.raises(BadInput, match=f"{kind!r} has layers of type .*: .*Supported"):
        check_supported(AutoConfig.for_model(kind))


def test_what_stands_in_the_way_of_states_is_named():
    """Kernels of the hub, a draft model with states, half-precision states."""
    model = hybrid_model("qwen3_5_text")
    model.model._use_kernels = True
    with pytest.raises(BadInput, match="'qwen3_5_text' with kernels of the hub .* use_kernels"):
        Target(model)
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
def test_a_tree_beyond_the_memory_is_refused_before_it_is_run(family, monkeypatch):
    """By a reckoning from the states, which comes close to what a tree then keeps."""
    target = hybrid_target(family)
    target.start(200)
    target.prefill(torch.tensor(prompt_tokens(9)))
    target.verify(random_tree(1, size=60))
    channels, kept = family == "kimi_linear", 0
    for layer in [layer for layer in target.cache.layers if isinstance(layer, RecurrentLayer)]:
        tensors = [layer.inputs, *([] if layer.stash is None else layer.stash.tensors)]
        in_memory = sum(tensor.nbytes for tensor in tensors)
        assert layer.tree_bytes(60, channels=channels) == in_memory
        kept += in_memory
    target.commit(torch.tensor([0]))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=kept))
    with pytest.raises(BadInput, match=f"61 nodes needs .* GiB .*{family!r}.*smaller tree"):
        target.verify(random_tree(1, size=61))


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

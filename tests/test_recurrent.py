"""Draft trees over targets with recurrent layers: what length, errors and threads do to their
states. Trees and answers of every family: test_matrix.py.

Axes: N tree nodes, V vocabulary.
"""

import pytest
import torch
from answers import TREES, assert_same, by_generate, drafter_of, run
from reference_tree import largest_error, random_tree
from tiny import prompt_tokens, tiny_target
from tiny_recurrent import HYBRIDS, KINDS, hybrid_model, hybrid_target
from transformers import AutoConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree, RootDrafter
from eagle_fsd.drafters.language_model import LanguageModelDrafter
from eagle_fsd.engine.trial import check_target
from eagle_fsd.families import check_supported


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.processes if family in KINDS else pytest.mark.slow)
        for family in HYBRIDS
    ],
)
def test_long_answers_do_not_drift(family):
    """A prompt of 200 tokens and an answer of 130."""
    target, prompt = hybrid_target(family, seed=5), prompt_tokens(200, seed=5)
    plain = run(target, RootDrafter(), prompt, budget=130).tokens
    assert_same(target, prompt, plain, by_generate(target, prompt, budget=130))
    for name in ("ngram", "hybrid:15x5x4"):
        got = run(target, drafter_of(name, target), prompt, budget=130).tokens
        assert_same(target, prompt, got, plain)


def test_transformers_functions_are_back_after_an_error():
    """And the target goes on as if nothing had been."""
    names = ("causal_conv1d_fn", "torch_chunk_gated_delta_rule")
    stock = [getattr(modeling_qwen3_5, name) for name in names]
    target, tree = hybrid_target("qwen3_5_text"), random_tree(1)
    cache = target.begin(60)
    target.prefill(cache, torch.tensor(prompt_tokens(9)))
    within = []

    def fail(*_):
        within.extend(getattr(modeling_qwen3_5, name) for name in names)
        raise RuntimeError("no memory")

    hook = target.model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        target.verify(cache, tree)
    hook.remove()
    assert within[0] is not stock[0] and within[1] is not stock[1]
    assert [getattr(modeling_qwen3_5, name) for name in names] == stock
    assert largest_error(target, prompt_tokens(9), tree) < 3e-3


@torch.inference_mode()
@pytest.mark.parametrize("family", HYBRIDS)
def test_states_stay_in_float32_beside_half_precision_weights(family):
    check_target(Target(hybrid_model(family)))
    target = Target(hybrid_model(family).bfloat16())
    cache = target.begin(60)
    target.prefill(cache, torch.tensor(prompt_tokens(9)))
    logits_NV, _ = target.verify(cache, random_tree(2))
    assert logits_NV.dtype == torch.bfloat16 and logits_NV.isfinite().all()
    target.commit(cache, torch.tensor([0, 1]))
    target.verify(cache, DraftTree.from_parents([3], [0]))
    recurrent = [
        state for layer in cache.layers for state in getattr(layer, "recurrent_states", {}).values()
    ]
    assert {state.dtype for state in recurrent if state is not None} <= {torch.float32}


@pytest.mark.parametrize("kind", ["jamba", "mamba2", "minimax"])
def test_recurrent_layers_that_cannot_be_verified_are_refused_by_name(kind):
    with pytest.raises(BadInput, match=f"{kind!r} has layers of type .*Supported"):
        check_supported(AutoConfig.for_model(kind))


@pytest.mark.parametrize(
    ("family", "setting", "value"),
    [
        ("nemotron_h", "mamba_ssm_cache_dtype", "bfloat16"),
        ("bamba", "time_step_limit", (0.01, 1.0)),
    ],
)
def test_configs_with_which_no_tree_equals_plain_decoding_are_refused(family, setting, value):
    config = hybrid_model(family).config
    check_supported(config)
    setattr(config, setting, value)
    with pytest.raises(BadInput, match=f"the target's config has {setting} .*: set it to"):
        check_supported(config)


def test_a_draft_model_with_states_is_refused():
    hybrid, plain = hybrid_target("lfm2"), tiny_target("llama")
    with pytest.raises(BadInput, match="draft model of type 'lfm2' has recurrent layers"):
        LanguageModelDrafter(hybrid, plain, TREES[0])
    LanguageModelDrafter(plain, hybrid, TREES[0])


@torch.inference_mode()
def test_layers_that_do_not_call_the_functions_are_found_out():
    """A mixer with kernels of its own would make a chain of the nodes, in silence."""
    target, tree = hybrid_target("qwen3_5_text"), random_tree(1)
    cache = target.begin(60)
    target.prefill(cache, torch.tensor(prompt_tokens(9)))
    target.model.model.layers[0].linear_attn.forward = lambda hidden_states, **_: hidden_states
    with pytest.raises(BadInput, match="layer 0 of a target of type 'qwen3_5_text' .*use_kernels"):
        target.verify(cache, tree)

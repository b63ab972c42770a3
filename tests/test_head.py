"""Both kinds of heads, against forwards from the key table alone, and exact decoding with them.

Axes: T positions, D hidden size, F = 3 D features, N nodes, V vocabulary.
"""

import copy

import pytest
import reference_head
import torch
from answers import by_generate, run
from head_files import eagle_tensors, save
from reference_tree import paths
from tiny import (
    FAMILIES,
    HEADS,
    LAYERS,
    fused_target,
    prompt_tokens,
    target_and_head,
    tiny_head,
    tiny_head3,
)

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.load import load_head

# config.json as published heads have it: what is absent takes upstream's default
BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 40,
    "intermediate_size": 59,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 101,
}
EAGLE = {
    "vicuna": BASE,  # no kv heads, bias, rope_theta or eps
    "llama3": BASE
    | {"num_key_value_heads": 2, "rope_theta": 500000.0, "bias": False, "rms_norm_eps": 0.5},
    "qwen2": BASE | {"num_key_value_heads": 1, "qkv_bias": True, "rope_theta": 1000000.0},
    "two layers": BASE | {"num_hidden_layers": 2, "num_key_value_heads": 2},
}


@torch.inference_mode()
@pytest.mark.parametrize("name", EAGLE)
def test_head_agrees_with_the_reference(tmp_path, name):
    """A head saved in upstream's layout and loaded by load_head == the key table's arithmetic."""
    config, T = EAGLE[name], 31
    tensors = eagle_tensors(config)
    head = load_head(save(tmp_path, config, tensors), FAMILIES["llama"]())
    embedding_TD, feature_TD = torch.randn(2, T, 40, generator=torch.Generator().manual_seed(1))
    want_TD = reference_head.forward(tensors, config, embedding_TD, feature_TD)
    got_TD = head(feature_TD[None], embedding_TD[None], torch.arange(T))[0]
    assert want_TD.std() > 0.5
    torch.testing.assert_close(got_TD, want_TD, atol=1e-4, rtol=1e-4)


EAGLE3 = {
    "plain": {},
    "wide heads": {"head_dim": 14, "rope_theta": 500000.0, "rms_norm_eps": 0.3},
    "one kv head": {"num_key_value_heads": 1, "draft_vocab_size": 37},
    "biases": {"qkv_bias": True, "head_dim": 6, "draft_vocab_size": 101 - 1},
    "linear rope": {"rope_scaling": {"type": "linear", "factor": 4.0}, "num_key_value_heads": 4},
    "norm before residual": {"norm_before_residual": True, "draft_vocab_size": 11},
}


@torch.inference_mode()
@pytest.mark.parametrize("name", EAGLE3)
def test_two_steps_agree_with_the_reference(name):
    """fuse, a step, a second step fed with the un-normed output, and the logits of both."""
    head, T = tiny_head3(seed=3, scale=1.5, **EAGLE3[name]), 31
    tensors, config = head.state_dict(), vars(head.config)
    generator = torch.Generator().manual_seed(1)
    feature_TF = torch.randn(T, 120, generator=generator)
    embedding_TD, second_TD = torch.randn(2, T, 40, generator=generator)
    ours_TD, theirs_TD = head.fuse(feature_TF), reference_head.fuse(tensors, feature_TF)
    for step_TD in (embedding_TD, second_TD):
        ours_TD = head(ours_TD[None], step_TD[None], torch.arange(T))[0]
        theirs_TD = reference_head.forward(tensors, config, step_TD, theirs_TD)
        assert theirs_TD.std() > 0.5
        torch.testing.assert_close(ours_TD, theirs_TD, atol=1e-4, rtol=1e-4)
        want_TV = reference_head.logits(tensors, config, theirs_TD)
        if head.draft_token_R is not None:
            want_TV = want_TV[:, head.draft_token_R]
        torch.testing.assert_close(head.lm_head(head.normed(ours_TD)), want_TV, atol=1e-4, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding"])
def test_features_are_the_targets_hidden_states(family):
    """prefill and verify give hidden_states[2], [n // 2], [n - 3] of a plain forward on each path;
    hidden states of the embedding come first."""
    target = fused_target(family)
    assert tiny_head3().config.fused_layers(LAYERS) == (2, LAYERS // 2, LAYERS - 3) == (2, 3, 4)
    prompt = torch.tensor(prompt_tokens(11))
    target.start(40)
    _, features_LF = target.prefill(prompt)

    def plain(tokens: list[int]) -> torch.Tensor:
        states = target.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([states[i][0] for i in (2, 3, 4)], dim=-1)

    torch.testing.assert_close(features_LF, plain(prompt.tolist()), atol=1e-4, rtol=1e-4)
    tokens, parents = [5, 17, 3, 44, 17, 9], [0, 0, 0, 2, 3, 1]
    tree = DraftTree.from_parents(tokens, parents)
    logits_NV, features_NF = target.verify(tree)
    assert features_NF.shape == (6, 120) and logits_NV.shape == (6, 101)
    for node, path in enumerate(paths(tokens, parents)):
        want_F = plain([*prompt.tolist(), tokens[0], *path])[-1]
        torch.testing.assert_close(features_NF[node], want_F, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_half_precision_head_keeps_float32_angles():
    """A bfloat16 head over distances of 2,000 positions is as near to float32 as over 6. (Upstream
    casts its cosines with the head, which blurs far positions.)"""
    half = tiny_head(rope_theta=500000.0).bfloat16()
    rounded = copy.deepcopy(half).float()  # the same weights, float32 arithmetic
    generator = torch.Generator().manual_seed(0)
    feature, embedding = torch.randn(2, 1, 7, 40, generator=generator).bfloat16()
    errors = []
    for stride in (1, 331):
        position_T = torch.arange(7) * stride
        want = rounded(feature.float(), embedding.float(), position_T)
        got = half(feature, embedding, position_T).float()
        errors.append(((got - want).norm() / want.norm()).item())
    assert errors[1] < 2 * errors[0] < 0.05, errors


@pytest.mark.parametrize(
    "name, family", [*((name, "llama") for name in HEADS), ("eagle", "gemma3"), ("eagle3", "qwen3")]
)
def test_greedy_tree_is_one_at_a_time_is_generate(name, family):
    """Exact decoding with each head == the plain loop == transformers' generate, float32."""
    target, head = target_and_head(name, family=family, seed=6)
    prompt = prompt_tokens(9, seed=2)
    plain = run(Target(target.model), RootDrafter(), prompt, budget=16)
    assert plain.tokens == by_generate(target, prompt, budget=16)
    for tree in (TreeConfig(15, 5, 4), TreeConfig(5, 5, 1)):
        got = run(target, EagleDrafter(head, target, tree), prompt, budget=16)
        assert got.tokens == plain.tokens and got.fuzzy_share == 0

"""The EAGLE head: against a forward from the key table alone, and the drafter's trees against it.

Axes: T positions, D hidden size, N nodes, V vocabulary.
"""

import pytest
import reference_head as reference
import torch
from head_files import eagle_tensors, save
from reference_tree import paths
from tiny import FAMILIES, prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
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
    "pad_token_id": 0,
    "transformers_version": "4.28.1",
    "vocab_size": 101,
}
CONFIGS = {
    "vicuna": BASE,  # no kv heads, bias, rope_theta or eps
    "llama2": BASE | {"num_key_value_heads": 4, "rope_scaling": None, "rms_norm_eps": 1e-5},
    "llama3": BASE
    | {"num_key_value_heads": 2, "rope_theta": 500000.0, "bias": False, "rms_norm_eps": 0.5},
    "qwen2": BASE | {"num_key_value_heads": 1, "qkv_bias": True, "rope_theta": 1000000.0},
    "linear rope": BASE | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "two layers": BASE | {"num_hidden_layers": 2, "num_key_value_heads": 2},
}


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["safetensors", "bin", "safetensors sharded", "bin sharded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_head_agrees_with_the_reference(tmp_path, name, kind):
    """A head saved in upstream's layout and loaded by load_head == the key table's arithmetic."""
    config, T = CONFIGS[name], 31
    tensors = eagle_tensors(config)
    head = load_head(save(tmp_path, config, tensors, kind), tiny_target("llama").model.config)
    embedding_TD, feature_TD = torch.randn(2, T, 40, generator=torch.Generator().manual_seed(1))
    want_TD = reference.forward(tensors, config, embedding_TD, feature_TD)
    got_TD = head(feature_TD[None], embedding_TD[None], torch.arange(T))[0]
    assert want_TD.std() > 0.5
    torch.testing.assert_close(got_TD, want_TD, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name, change",
    [
        ("vicuna", {"rope_theta": 500000.0}),
        ("llama3", {"rms_norm_eps": 1e-6}),
        ("linear rope", {"rope_scaling": None}),
        ("llama3", {"rope_theta": 10000.0}),
    ],
)
def test_the_comparison_would_see_a_wrong_setting(name, change):
    """Each setting moves the reference's output by far more than the tolerance above."""
    config = CONFIGS[name]
    tensors = eagle_tensors(config)
    embedding_TD, feature_TD = torch.randn(2, 31, 40, generator=torch.Generator().manual_seed(1))
    one_TD = reference.forward(tensors, config, embedding_TD, feature_TD)
    other_TD = reference.forward(tensors, config | change, embedding_TD, feature_TD)
    assert (one_TD - other_TD).abs().max() > 0.01


def assert_rows_are_the_heads(
    drafter: EagleDrafter, target: Target, tokens: torch.Tensor, features_TD: torch.Tensor
) -> int:
    """Every draft row of a proposed tree == lm_head of the reference on that node's path alone."""
    tensors = dict(drafter.head.state_dict())
    config = {k: v for k, v in vars(drafter.head.config).items()}
    embed_VD = target.embed_tokens(torch.arange(target.vocab_size))
    tree = drafter.propose()
    assert tree.token_N[0] == tokens[-1]
    checked = 0
    node_paths = paths(tree.token_N.tolist(), tree.parent_N.tolist())
    for path, row in zip(node_paths, tree.draft_row_N.tolist(), strict=True):
        if row < 0:
            continue
        output_D = reference.after_path(tensors, config, embed_VD, tokens, features_TD, list(path))
        want_V = target.logits(output_D[None])[0]
        torch.testing.assert_close(tree.draft_logits_ER[row], want_V, atol=1e-4, rtol=1e-4)
        checked += 1
    return checked


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_cached_tree_steps_equal_the_head_on_each_path_alone(family, qkv_bias):
    """Over rounds of observe and propose: cached tree steps == no cache, one path at a time.

    Rounds commit 1 to 4 tokens; one commits by two observes, one proposes twice. Gemma scales its
    embedding, which the head must see scaled.
    """
    target = tiny_target(family)
    scale = 0.5 if family == "gemma3" else 1.0  # its embedding is six times as large
    head = tiny_head(target, seed=3, scale=scale, qkv_bias=qkv_bias, bias=not qkv_bias)
    drafter = EagleDrafter(head, target, TreeConfig(23, 4, 3))
    generator = torch.Generator().manual_seed(5)
    for length in (1, 11):  # the second sequence starts anew in the same drafter
        drafter.reset(60)
        tokens = torch.tensor(prompt_tokens(length + 1, seed=1)[1:])
        features_TD = torch.randn(length, 40, generator=generator)
        drafter.observe(features_TD, tokens)
        for commits in ([1], [4], [2, 3], [1], [2]):
            checked = assert_rows_are_the_heads(drafter, target, tokens, features_TD)
            assert checked >= 4
            for count in commits:
                new_T = torch.randint(0, target.vocab_size, (count,), generator=generator)
                new_TD = torch.randn(count, 40, generator=generator)
                drafter.observe(new_TD, new_T)
                tokens, features_TD = torch.cat([tokens, new_T]), torch.cat([features_TD, new_TD])
        # the last commit has not been run
        assert drafter._sequence.cache.length == tokens.shape[0] - 2


@torch.inference_mode()
def test_tree_of_a_head_with_two_layers():
    """The cache of a deeper head holds rows for each layer."""
    target = tiny_target("llama")
    head = tiny_head(target, num_hidden_layers=2)
    drafter = EagleDrafter(head, target, TreeConfig(7, 3, 2))
    drafter.reset(30)
    tokens, features_TD = torch.tensor(prompt_tokens(7)), torch.randn(7, 40)
    drafter.observe(features_TD, tokens)
    assert assert_rows_are_the_heads(drafter, target, tokens, features_TD) > 1


@torch.inference_mode()
def test_half_precision_head_keeps_float32_angles():
    """A bfloat16 head over distances of 2,000 positions is as near to float32 as over 6.

    Upstream casts its frequencies and cosines with the head, which blurs far positions.
    """
    target = tiny_target("llama")
    half = tiny_head(target, rope_theta=500000.0).bfloat16()
    rounded = tiny_head(target, rope_theta=500000.0)  # the same weights, float32 arithmetic
    for parameter in rounded.parameters():
        parameter.copy_(parameter.bfloat16())
    generator = torch.Generator().manual_seed(0)
    feature, embedding = torch.randn(2, 1, 7, 40, generator=generator).bfloat16()
    errors = []
    for stride in (1, 331):
        position_T = torch.arange(7) * stride
        want = rounded(feature.float(), embedding.float(), position_T)
        got = half(feature, embedding, position_T).float()
        errors.append(((got - want).norm() / want.norm()).item())
    assert errors[1] < 2 * errors[0] < 0.05, errors


def test_top_k_beyond_the_vocabulary_is_refused():
    """A tree wider than the vocabulary is named before anything runs."""
    target = tiny_target("llama")
    with pytest.raises(ValueError, match="branch_top_k 102 is more than the draft vocabulary 101"):
        EagleDrafter(tiny_head(target), target, TreeConfig(102, 1, 102))


@pytest.mark.parametrize("family", FAMILIES)
def test_drafted_tree_has_the_configured_shape(family):
    """Exactly num_draft_tokens drafts, no deeper than tree_depth, at most max_nodes nodes."""
    target = tiny_target(family)
    for config in (TreeConfig(59, 6, 10), TreeConfig(7, 3, 4), TreeConfig(5, 5, 1)):
        drafter = EagleDrafter(tiny_head(target), target, config)
        drafter.reset(40)
        with torch.inference_mode():
            drafter.observe(torch.randn(5, 40), torch.tensor(prompt_tokens(5)))
            tree = drafter.propose()
        assert tree.size == drafter.max_nodes == config.num_draft_tokens + 1
        assert tree.depth_N.max() <= config.tree_depth == tree.max_depth
        assert tree.draft_logits_ER.shape == (config.num_expanded, target.vocab_size)

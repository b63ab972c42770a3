"""Where a head's weights begin: what is copied, what is left, and that it means the same there."""

import pytest
import torch
from tiny import SIZES, tiny_head, tiny_target
from tiny_eagle3 import draft_tokens, fused_target, tiny_head3

from eagle_fsd.training.warm_start import (
    in_feature_space,
    start_from_head,
    start_from_target,
)

M = SIZES["intermediate_size"]


def state(head) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in head.state_dict().items()}


def changed(head, before: dict[str, torch.Tensor]) -> set[str]:
    return {key for key, tensor in head.state_dict().items() if not tensor.equal(before[key])}


@torch.no_grad()
def test_eagle_starts_as_the_targets_last_layer():
    """On features it does what the layer does on hidden states.

    (Copied as it was, SmolLM2's last layer gave outputs ten thousand times too large.) A constant
    final norm makes the rewriting exact.
    """
    target = tiny_target("qwen2")  # heads of D / 4, as the head's
    base, last = target.model.model, target.model.model.layers[-1]
    base.norm.weight.fill_(1.7)
    hidden_BTD = 5 * torch.randn(1, 1, target.hidden_size)
    feature_BTD = base.norm(hidden_BTD)
    head = tiny_head(target, intermediate_size=M, qkv_bias=True)
    assert start_from_target(head, target) == []
    size, feature_size = (t.pow(2).mean().sqrt().item() for t in (hidden_BTD, feature_BTD))
    layer = in_feature_space(
        {key: tensor.clone() for key, tensor in last.state_dict().items()},
        before_attention_D=last.input_layernorm.weight,
        final_D=base.norm.weight,
        size=size,
        feature_size=feature_size,
    )
    head.load_state_dict({f"layers.0.{key}": t for key, t in layer.items()}, strict=False)
    zero_BTD = torch.zeros_like(feature_BTD)
    positions = base.rotary_emb(hidden_BTD, torch.zeros(1, 1, dtype=torch.int64))
    wanted_BTD = last(hidden_BTD, position_embeddings=positions) / size * 1.7
    got_BTD = head(feature_BTD, zero_BTD, torch.zeros(1, dtype=torch.int64))
    torch.testing.assert_close(got_BTD, wanted_BTD, atol=1e-4, rtol=1e-4)


def test_eagle_hands_its_feature_on():
    """fc begins as the identity on the feature, with a little of the embedding."""
    target = tiny_target("qwen2")
    head = tiny_head(target, intermediate_size=M)
    before = state(head)
    start_from_target(head, target)
    assert changed(head, before) == set(before)
    D = target.hidden_size
    assert torch.equal(head.fc.weight[:, D:], torch.eye(D)) and head.fc.bias.eq(0).all()
    torch.testing.assert_close(head.fc.weight[:, :D], 0.1 * before["fc.weight"][:, :D])


def test_what_does_not_fit_is_left_and_named():
    """Heads of 14 columns (the target's) against 10: attention is left, the MLP is copied."""
    target = tiny_target("llama")
    head = tiny_head(target, intermediate_size=M)
    before = state(head)
    left = start_from_target(head, target)
    assert {key.split(".")[3] for key in left} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert changed(head, before) == set(before) - set(left)


@pytest.mark.parametrize("size", [None, 37])
def test_eagle3_starts_with_the_targets_rows(size):
    """Its lm_head is the target's rows of the draft vocabulary; norm, o_proj and MLP are copied."""
    target = fused_target("llama")
    head = tiny_head3(draft_vocab_size=size, intermediate_size=M, head_dim=14)
    before = state(head)
    left = start_from_target(head, target)
    token_R = torch.arange(101) if size is None else draft_tokens(size)
    assert torch.equal(head.lm_head.weight, target.lm_head.weight[token_R])
    assert torch.equal(head.norm.weight, target.model.model.norm.weight)
    theirs = target.model.model.layers[-1]
    ratio = head.midlayer.mlp.down_proj.weight / theirs.mlp.down_proj.weight
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))
    assert torch.equal(head.midlayer.mlp.up_proj.weight, theirs.mlp.up_proj.weight)
    assert changed(head, before) == set(before) - set(left) - {"d2t", "t2d"}
    wide = [f"midlayer.self_attn.{name}_proj.weight" for name in "qkv"]
    norms = ["midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight"]
    assert set(left) == {"fc.weight", *wide, *norms}


def test_a_start_at_gemma_means_the_same():
    """Gemma scales by 1 + weight, and its post_attention_layernorm is another norm than Llama's.

    (The weights were copied as they are: norms around 0 instead of 1.)
    """
    target = fused_target("gemma3")
    head = tiny_head3(intermediate_size=M, head_dim=14)
    start_from_target(head, target)
    hidden_BTD = torch.randn(2, 3, target.hidden_size)
    layer, base = target.model.model.layers[-1], target.model.model
    for ours, theirs in (
        (head.norm, base.norm),
        (head.midlayer.post_attention_layernorm, layer.pre_feedforward_layernorm),
    ):
        torch.testing.assert_close(ours(hidden_BTD), theirs(hidden_BTD), rtol=1e-4, atol=1e-5)


def test_a_target_without_layers_is_told():
    """Other architectures: its type is named, and what to do."""
    target = tiny_target("llama")
    del target.model.model.layers
    with pytest.raises(ValueError, match="'llama'.*at random"):
        start_from_target(tiny_head(target), target)


def test_a_head_starts_at_another():
    """All of it, but for the draft vocabulary, which the data chose."""
    target = tiny_target("llama")
    head, other = (tiny_head(target, seed=seed, draft_vocab_size=37) for seed in (0, 1))
    head.set_draft_tokens(draft_tokens(37, seed=0))
    other.set_draft_tokens(draft_tokens(37, seed=1))
    assert start_from_head(head, other) == []
    assert torch.equal(head.draft_token_R, draft_tokens(37, seed=0))
    theirs = other.state_dict()
    assert all(torch.equal(t, theirs[k]) for k, t in head.state_dict().items() if k != "d2t")


def test_a_head_of_another_shape_gives_what_fits():
    """Another intermediate size: the MLP is left; of EAGLE-3 nothing fits EAGLE-1/2."""
    target = tiny_target("llama")
    head, other = tiny_head(target), tiny_head(target, seed=1, intermediate_size=61)
    left = start_from_head(head, other)
    assert {key.split(".")[2] for key in left} == {"mlp"} and len(left) == 3
    assert torch.equal(head.fc.weight, other.fc.weight)
    with pytest.raises(ValueError, match="no weight of this head"):
        start_from_head(tiny_head3(), tiny_head(target))


@pytest.mark.parametrize(("ours", "theirs"), [(None, 37), (37, 37), (37, None), (23, 37)])
def test_an_eagle3_lm_head_goes_by_token(ours, theirs):
    """The same row number is another token in another draft vocabulary.

    (Where both had as many tokens, rows were copied by number.)
    """
    head, other = tiny_head3(draft_vocab_size=ours), tiny_head3(draft_vocab_size=theirs, seed=1)
    before = state(head)
    left = start_from_head(head, other)
    own, given = (
        list(range(101)) if h.d2t is None else h.draft_token_R.tolist() for h in (head, other)
    )
    for r, token in enumerate(own):
        wanted = other.lm_head.weight[given.index(token)] if token in given else None
        wanted = before["lm_head.weight"][r] if wanted is None else wanted
        assert torch.equal(head.lm_head.weight[r], wanted), token
    assert ("lm_head.weight" in left) == (theirs is not None)
    assert torch.equal(head.fc.weight, other.fc.weight)
    assert head.d2t is None or torch.equal(head.d2t, before["d2t"])

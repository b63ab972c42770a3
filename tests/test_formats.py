"""Draft heads in every layout: hand-written files load, round trips keep every bit."""

import json

import pytest
import torch
from head_files import (
    EMBEDDING,
    SIZES,
    SPECFORGE,
    SPECULATORS,
    SPECULATORS3,
    D,
    R,
    TargetShape,
    V,
    draw,
    eagle3_tensors,
    eagle_tensors,
    renamed,
    save,
    vocabulary,
    with_layer,
)
from safetensors.torch import load_file

from eagle_fsd.heads.files import read_stored_config, read_stored_head, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import LAYOUTS
from eagle_fsd.heads.models import build_head, stored_shapes
from eagle_fsd.models.load import load_head

AUX = "eagle_aux_hidden_state_layer_ids"


# layout -> config.json, tensors, what they are in ours, and the fields of HeadConfig that differ
def foreign() -> dict[str, tuple[dict, dict, dict, dict]]:
    eagle, eagle3, full = eagle_tensors(), eagle3_tensors(), eagle3_tensors(rows=V)
    biased = eagle3_tensors(qkv_bias=True)
    three = {"head_type": "eagle3", "draft_vocab_size": R}
    theta = {"rope_theta": 500000.0}
    identity = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    spec1 = SPECULATORS | {"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}
    return {
        "upstream": (SIZES, eagle | EMBEDDING, eagle, {}),
        "upstream 3": (SIZES | {"draft_vocab_size": R}, eagle3 | EMBEDDING, eagle3, three),
        "upstream 3 full": (
            SIZES | {"draft_vocab_size": V},
            full | identity | {"t2d": torch.zeros(V, dtype=torch.bool)},
            full,
            {"head_type": "eagle3"},
        ),
        "specforge": (SPECFORGE, eagle3, eagle3, three),
        "specforge, own layers": (
            SPECFORGE | {"eagle_config": {AUX: [1, 15, 28]}},
            eagle3 | EMBEDDING,
            eagle3,
            three | {"feature_layers": (2, 16, 29)},
        ),
        "specforge full": (
            SPECFORGE | {"draft_vocab_size": V},
            full | identity,
            full,
            {"head_type": "eagle3"},
        ),
        "speculators": (
            spec1 | {"fusion_bias": True, "layernorms": False},
            renamed(eagle, {"fc.": "fusion_fc.", "layers.0.": "transformer."}),
            eagle,
            theta,
        ),
        "speculators 3": (
            SPECULATORS3 | {AUX: [2, 16, 29], "norm_before_residual": True},
            renamed(eagle3, {"midlayer.": "layers.0."})
            | EMBEDDING
            | {"verifier_norm.weight": torch.ones(D)},
            eagle3,
            three | theta | {"feature_layers": (2, 16, 29), "norm_before_residual": True},
        ),
        "speculators 3, biases": (
            with_layer(SPECULATORS3, attention_bias=True),
            renamed(biased, {"midlayer.": "layers.0."})
            | {"layers.0.self_attn.o_proj.bias": torch.zeros(D), "fc.bias": torch.zeros(D)},
            biased,
            three | theta | {"qkv_bias": True},
        ),
    }


@torch.inference_mode()
@pytest.mark.parametrize("name", foreign())
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_foreign_files_are_our_heads(tmp_path, name, kind):
    """A hand-written file of each layout: the config, every tensor and the forward are ours."""
    values, tensors, ours, fields = foreign()[name]
    stored = read_stored_head(save(tmp_path, values, tensors, kind))
    assert stored.layout == name.split(",")[0].split()[0]
    assert stored.config == HeadConfig(**SIZES | fields)
    assert_same_tensors(stored.tensors, ours)
    head = load_head(tmp_path, TargetShape())
    twin = build_head(HeadConfig(**SIZES | fields)).eval()
    twin.load_state_dict(ours)
    width = 3 * D if head.config.eagle3 else D
    feature = torch.randn(1, 7, width, generator=torch.Generator().manual_seed(1))
    embedding = torch.randn(1, 7, D, generator=torch.Generator().manual_seed(2))
    got, want = (h(h.fuse(feature), embedding, torch.arange(7)) for h in (head, twin))
    assert torch.equal(got, want) and got.std() > 0.1
    if head.config.eagle3:
        assert torch.equal(head.lm_head(head.normed(got)), twin.lm_head(twin.normed(want)))


def assert_same_tensors(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for key, tensor in want.items():
        assert got[key].dtype == tensor.dtype and torch.equal(got[key], tensor), key


ROUND_TRIPS = {
    "eagle": {},
    "eagle, no bias": {"bias": False, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    "eagle, qkv bias": {"qkv_bias": True, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "eagle3": {"head_type": "eagle3"},
    "eagle3, 11 tokens": {"head_type": "eagle3", "draft_vocab_size": R, "head_dim": 10},
    "eagle3, own layers": {"head_type": "eagle3", "feature_layers": (1, 20, 3)},
    "eagle3, qkv bias": {"head_type": "eagle3", "qkv_bias": True},
    "eagle3, normed residual": {"head_type": "eagle3", "norm_before_residual": True},
}
IMPOSSIBLE = {
    ("eagle", "specforge"): "specforge has no heads with head_type_eagle",
    ("eagle, no bias", "specforge"): "head_type_eagle",
    ("eagle, qkv bias", "specforge"): "head_type_eagle, qkv_bias",
    ("eagle3, qkv bias", "specforge"): "qkv_bias",
    ("eagle3, qkv bias", "upstream"): "upstream has no heads with qkv_bias",
    ("eagle3, normed residual", "specforge"): "norm_before_residual",
    ("eagle3, normed residual", "upstream"): "norm_before_residual",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ROUND_TRIPS)
@pytest.mark.parametrize("embedding", [None, torch.ones(V, D)])
def test_round_trips_keep_every_bit(tmp_path, name, layout, embedding):
    """Ours -> a layout -> ours: the same config and bits; or the layout has no such head."""
    config = HeadConfig(**SIZES | ROUND_TRIPS[name])
    weights = {k: s for k, s in stored_shapes(config).items() if k not in ("d2t", "t2d")}
    tensors = {key: tensor.bfloat16() for key, tensor in draw(weights).items()}
    tensors |= vocabulary() if config.draft_vocab_size else {}
    if (name, layout) in IMPOSSIBLE:
        with pytest.raises(ValueError, match=IMPOSSIBLE[name, layout]):
            write_head(tmp_path / "x", config, tensors, layout)
        assert not (tmp_path / "x").exists()
        return
    write_head(tmp_path / "a" / "b", config, tensors, layout, embedding_VD=embedding)
    names = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert names == ["config.json", "model.safetensors"]
    stored = read_stored_head(tmp_path / "a" / "b")
    assert stored.layout == layout and stored.config == config
    assert_same_tensors(stored.tensors, tensors)


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_our_eagle_heads_have_upstreams_keys(tmp_path, dtype):
    """write_head of an EAGLE-1/2 head: exactly upstream's keys, other tensors left out, the same
    file in both layouts; config.json says bias and rope_theta where upstream looks for them."""
    config = HeadConfig(**SIZES, bias=True, rope_theta=500000.0)
    tensors = eagle_tensors()
    want = {key: tensor.to(dtype or torch.float32) for key, tensor in tensors.items()}
    for layout in ("eagle_fsd", "upstream"):
        write_head(tmp_path, config, tensors | EMBEDDING, layout, dtype=dtype)
        assert_same_tensors(load_file(tmp_path / "model.safetensors"), want)
        written = json.loads((tmp_path / "config.json").read_text())
        assert written["bias"] is True and written["rope_theta"] == 500000.0
        assert written["rope_scaling"] is None and written["num_key_value_heads"] == 2
        assert written["model_type"] == "llama" and "draft_vocab_size" not in written


def test_a_reduced_vocabulary_of_an_eagle_head_is_ours_alone(tmp_path):
    """Ours keeps d2t; elsewhere the head drafts from all tokens, and the note says so."""
    config = HeadConfig(**SIZES, draft_vocab_size=R)
    tensors = eagle_tensors() | {"d2t": vocabulary()["d2t"]}
    write_head(tmp_path / "ours", config, tensors)
    stored = read_stored_head(tmp_path / "ours")
    assert stored.config == config and torch.equal(stored.tensors["d2t"], tensors["d2t"])
    for layout in ("upstream", "speculators"):
        notes = write_head(tmp_path / layout, config, tensors, layout)
        assert any("dropped d2t" in note for note in notes)
        assert read_stored_head(tmp_path / layout).config == HeadConfig(**SIZES)


@pytest.mark.parametrize(
    "ids, nested, layers, note",
    [
        ([1, 15, 28], True, (2, 16, 29), "i is what leaves layer i"),
        ([2, 16, 29], True, (2, 16, 29), "assumed that i is what enters"),
        ([0, 4, 9], True, (1, 5, 10), "assumed, as SpecForge trains"),
        ([3, 16, 29], False, (3, 16, 29), "taken as vLLM counts"),
    ],
)
def test_what_was_assumed_of_fused_layers_is_said(tmp_path, ids, nested, layers, note):
    """SpecForge counts what leaves a layer, vLLM what enters it; the note says which was taken."""
    save(tmp_path, SPECFORGE | ({"eagle_config": {AUX: ids}} if nested else {AUX: ids}), {})
    stored = read_stored_config(tmp_path)
    assert stored.config.feature_layers == layers
    assert len(stored.notes) == 1 and note in stored.notes[0]

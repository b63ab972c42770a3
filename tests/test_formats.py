"""Draft heads in every layout: hand-written files load, round trips keep every bit.

The foreign layouts are written out by hand here, never by the writer under test. Where they were
looked up is said in eagle_fsd/layouts.py.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_fsd.heads.files import write_head
from eagle_fsd.heads.foreign import read_stored_config, read_stored_head, write_stored_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import LAYOUTS
from eagle_fsd.heads.models import build_head
from eagle_fsd.models.load import load_head

D, M, V, R = 24, 37, 41, 11  # 6 heads of 4 channels, 2 key/value heads
SIZES = {
    "hidden_size": D,
    "intermediate_size": M,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": V,
}
TOKENS = torch.tensor([1, 2, 5, 7, 8, 13, 20, 21, 30, 39, 40])  # the draft vocabulary


def layer(name: str, *, width: int, heads: int = 24, kv: int = 8) -> dict[str, tuple[int, ...]]:
    """A Llama layer whose q, k and v read rows of `width`."""
    return {
        f"{name}.self_attn.q_proj.weight": (heads, width),
        f"{name}.self_attn.k_proj.weight": (kv, width),
        f"{name}.self_attn.v_proj.weight": (kv, width),
        f"{name}.self_attn.o_proj.weight": (D, heads),
        f"{name}.mlp.gate_proj.weight": (M, D),
        f"{name}.mlp.up_proj.weight": (M, D),
        f"{name}.mlp.down_proj.weight": (D, M),
        f"{name}.post_attention_layernorm.weight": (D,),
    }


def draw(shapes: dict[str, tuple[int, ...]], *, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def vocabulary() -> dict[str, torch.Tensor]:
    marked = torch.zeros(V, dtype=torch.bool)
    marked[TOKENS] = True
    return {"d2t": TOKENS - torch.arange(R), "t2d": marked}


def eagle_tensors() -> dict[str, torch.Tensor]:
    """An EAGLE-1/2 head under upstream's keys."""
    return draw({"fc.weight": (D, 2 * D), "fc.bias": (D,)} | layer("layers.0", width=D))


def eagle3_tensors(*, rows: int = R) -> dict[str, torch.Tensor]:
    """An EAGLE-3 head under upstream's keys."""
    shapes = {"fc.weight": (D, 3 * D), "norm.weight": (D,), "lm_head.weight": (rows, D)}
    norms = ("hidden_norm", "input_layernorm")
    shapes |= {f"midlayer.{name}.weight": (D,) for name in norms}
    return draw(shapes | layer("midlayer", width=2 * D)) | (vocabulary() if rows == R else {})


SPECULATORS = {
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "some/target"},
    },
    "speculators_version": "0.3.0",
    "transformer_layer_config": SIZES
    | {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 4, "rope_theta": 500000.0}
    | {"attention_bias": False, "mlp_bias": False, "rope_scaling": None},
}
EMBEDDING = {"embed_tokens.weight": torch.ones(V, D)}


def renamed(tensors: dict, prefixes: dict[str, str]) -> dict[str, torch.Tensor]:
    """Tensors whose keys begin otherwise."""
    out = {}
    for key, tensor in tensors.items():
        old = next((old for old in prefixes if key.startswith(old)), "")
        out[prefixes.get(old, "") + key.removeprefix(old)] = tensor
    return out


# layout -> config.json, tensors, what they are in ours, and the fields of HeadConfig that differ
def foreign() -> dict[str, tuple[dict, dict, dict, dict]]:
    eagle, eagle3, full = eagle_tensors(), eagle3_tensors(), eagle3_tensors(rows=V)
    three = {"head_type": "eagle3", "draft_vocab_size": R}
    theta = {"rope_theta": 500000.0}
    specforge = SIZES | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    specforge |= {"rope_scaling": None, "draft_vocab_size": R, "head_dim": 4}
    identity = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    aux, ids = "eagle_aux_hidden_state_layer_ids", [1, 15, 28]
    spec1 = SPECULATORS | {"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}
    spec1 |= {"fusion_bias": True, "layernorms": False}
    spec3 = SPECULATORS | {"speculators_model_type": "eagle3", "draft_vocab_size": R}
    spec3 |= {"architectures": ["Eagle3Speculator"], "norm_before_residual": False}
    biases = {f"midlayer.self_attn.{name}_proj.bias": (8,) for name in "kv"}
    biases = draw(biases | {"midlayer.self_attn.q_proj.bias": (24,)}, seed=1)
    biased = SPECULATORS["transformer_layer_config"] | {"attention_bias": True}
    zero = {"layers.0.self_attn.o_proj.bias": torch.zeros(D)}
    return {
        "upstream": (SIZES, eagle | EMBEDDING, eagle, {}),
        "upstream 3": (SIZES | {"draft_vocab_size": R}, eagle3 | EMBEDDING, eagle3, three),
        "upstream 3 full": (
            SIZES | {"draft_vocab_size": V},
            full | identity | {"t2d": torch.zeros(V, dtype=torch.bool)},
            full,
            {"head_type": "eagle3"},
        ),
        "specforge": (specforge, eagle3, eagle3, three),
        "specforge, own layers": (
            specforge | {"eagle_config": {aux: ids}},
            eagle3 | EMBEDDING,
            eagle3,
            three | {"feature_layers": (2, 16, 29)},
        ),
        "specforge full": (
            specforge | {"draft_vocab_size": V},
            full | identity,
            full,
            {"head_type": "eagle3"},
        ),
        "speculators": (
            spec1,
            renamed(eagle, {"fc.": "fusion_fc.", "layers.0.": "transformer."}),
            eagle,
            theta,
        ),
        "speculators 3": (
            spec3 | {aux: [2, 16, 29], "norm_before_residual": True},
            renamed(eagle3, {"midlayer.": "layers.0."})
            | EMBEDDING
            | {"verifier_norm.weight": torch.ones(D)},
            eagle3,
            three | theta | {"feature_layers": (2, 16, 29), "norm_before_residual": True},
        ),
        "speculators 3, biases": (
            spec3 | {"transformer_layer_config": biased},
            renamed(eagle3 | biases, {"midlayer.": "layers.0."}) | zero,
            eagle3 | biases,
            three | theta | {"qkv_bias": True},
        ),
    }


@torch.inference_mode()
@pytest.mark.parametrize("kind", foreign())
@pytest.mark.parametrize("pickled", [False, True])
def test_foreign_files_are_our_heads(tmp_path, kind, pickled):
    """A hand-written file of each layout: the config, every tensor and the forward are ours."""
    values, tensors, ours, fields = foreign()[kind]
    (tmp_path / "config.json").write_text(json.dumps(values))
    if pickled:
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        save_file(tensors, tmp_path / "model.safetensors")
    stored = read_stored_head(tmp_path)
    assert stored.layout == kind.split(",")[0].split()[0]
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


class TargetShape:
    """What load_head asks of a target's config."""

    hidden_size, vocab_size, num_hidden_layers = D, V, 32


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


def our_head(name: str, *, dtype: torch.dtype) -> tuple[HeadConfig, dict[str, torch.Tensor]]:
    config = HeadConfig(**SIZES | ROUND_TRIPS[name])
    shapes = {k: s for k, s in config.shapes().items() if k not in ("d2t", "t2d")}
    tensors = {key: tensor.to(dtype) for key, tensor in draw(shapes).items()}
    return config, tensors | (vocabulary() if config.draft_vocab_size else {})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ROUND_TRIPS)
@pytest.mark.parametrize("embedding", [None, torch.ones(V, D)])
def test_round_trips_keep_every_bit(tmp_path, name, layout, embedding):
    """Ours -> a layout -> ours: the same config and bits; or the layout has no such head."""
    config, tensors = our_head(name, dtype=torch.bfloat16)
    if (name, layout) in IMPOSSIBLE:
        with pytest.raises(ValueError, match=IMPOSSIBLE[name, layout]):
            write_stored_head(tmp_path / "x", config, tensors, layout)
        assert not (tmp_path / "x").exists()
        return
    write_stored_head(tmp_path, config, tensors, layout, embedding_VD=embedding)
    stored = read_stored_head(tmp_path)
    assert stored.layout == layout and stored.config == config
    assert_same_tensors(stored.tensors, tensors)


def test_our_eagle_heads_have_upstreams_keys(tmp_path):
    """write_head of an EAGLE-1/2 head: exactly upstream's keys and the same file both ways."""
    config = HeadConfig(**SIZES)
    write_head(tmp_path, config, eagle_tensors())
    assert load_file(tmp_path / "model.safetensors").keys() == eagle_tensors().keys()
    write_stored_head(tmp_path / "up", config, eagle_tensors(), "upstream", dtype=torch.bfloat16)
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path, tmp_path / "up"))
    assert_same_tensors(ours, theirs)


def test_a_reduced_vocabulary_of_an_eagle_head_is_ours_alone(tmp_path):
    """Ours keeps d2t; elsewhere the head drafts from all tokens, and the note says so."""
    config = HeadConfig(**SIZES, draft_vocab_size=R)
    tensors = eagle_tensors() | {"d2t": vocabulary()["d2t"]}
    write_stored_head(tmp_path / "ours", config, tensors, "eagle_fsd")
    stored = read_stored_head(tmp_path / "ours")
    assert stored.config == config and torch.equal(stored.tensors["d2t"], tensors["d2t"])
    for layout in ("upstream", "speculators"):
        notes = write_stored_head(tmp_path / layout, config, tensors, layout)
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
    aux = {"eagle_aux_hidden_state_layer_ids": ids}
    values = foreign()["specforge"][0] | ({"eagle_config": aux} if nested else aux)
    save(tmp_path, values, {})
    stored = read_stored_config(tmp_path)
    assert stored.config.feature_layers == layers
    assert len(stored.notes) == 1 and note in stored.notes[0]


def save(folder: Path, values: dict, tensors: dict) -> None:
    (folder / "config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "model.safetensors")

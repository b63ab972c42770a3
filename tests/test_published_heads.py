"""EAGLE-3 heads as published (published_heads.py): every layout loads, runs as the slow reference
says, is written and read back; and what of them is refused.

Axes: T positions, D hidden size, F features.
"""

import json

import pytest
import reference_head
import torch
from head_files import SIZES, SPECFORGE, D, R, TargetShape, V, save
from published_heads import AUX, MODELOPT, WIDE, published, tensors_of, without

from eagle_fsd.config import BadInput
from eagle_fsd.heads.files import read_head, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import read_config
from eagle_fsd.models.load import load_head


class Wide(TargetShape):
    hidden_size = WIDE


def target_of(name: str) -> TargetShape:
    return Wide() if "width" in name else TargetShape()


@torch.inference_mode()
@pytest.mark.parametrize("name", published())
def test_published_heads_load_and_run_as_the_reference_does(tmp_path, name):
    """Config and tensors are ours; fuse, two steps and what the lm_head reads are the reference's,
    which knows the tensors' names and the settings that its table names. (Scaled positions, which
    the reference lacks, are transformers': test_formats.py.)"""
    values, theirs, ours, read, fields = published()[name]
    head, notes = read_head(save(tmp_path, values, theirs), target_of(name))
    assert notes[0] == f"layout: {name.partition(',')[0]}"
    assert head.config == HeadConfig(**SIZES | fields)
    tensors = head.state_dict()
    assert tensors.keys() == ours.keys()
    assert all(torch.equal(tensors[key], ours[key]) for key in ours)
    if "rope_scaling" in read:
        return
    config, T = SIZES | read, 23
    generator = torch.Generator().manual_seed(1)
    width = head.config.num_fused * head.config.feature_size
    feature_TF = torch.randn(T, width, generator=generator)
    embedding_TD, second_TD = torch.randn(2, T, D, generator=generator)
    got_TD, want_TD = head.fuse(feature_TF), reference_head.fuse(ours, config, feature_TF)
    for step_TD in (embedding_TD, second_TD):
        torch.testing.assert_close(got_TD, want_TD, atol=1e-4, rtol=1e-4)
        got_TD = head(got_TD[None], step_TD[None], head.angles(torch.arange(T)))[0]
        want_TD = reference_head.forward(ours, config, step_TD, want_TD)
    torch.testing.assert_close(got_TD, want_TD, atol=1e-4, rtol=1e-4)
    want_TD = reference_head.normed(ours, config, want_TD)
    torch.testing.assert_close(head.normed(got_TD), want_TD, atol=1e-4, rtol=1e-4)
    assert want_TD.std() > 0.1


@pytest.mark.parametrize("name", published())
def test_what_was_published_is_written_and_read_back(tmp_path, name):
    """In our layout: the same config, every tensor, and nothing assumed."""
    values, theirs, *_ = published()[name]
    head, _ = read_head(save(tmp_path / "theirs", values, theirs), target_of(name))
    write_head(tmp_path / "ours", head)
    read, notes = read_head(tmp_path / "ours", target_of(name))
    assert read.config == head.config and notes == ["layout: upstream"]
    assert read.state_dict().keys() == head.state_dict().keys()
    assert all(torch.equal(t, read.state_dict()[k]) for k, t in head.state_dict().items())
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    said = {"norm_output", "fc_norm", "norm_before_fc", "target_hidden_size", "qk_norm"}
    assert all(written[key] for key in said & written.keys())  # nothing that is not so


REFUSED = {
    # bug held down: it loaded without a word, and drafted with one layer
    "one layer of two": (
        SPECFORGE | {"num_hidden_layers": 2},
        tensors_of(),
        "config.json says num_hidden_layers 2, the weights are of 1: set it to what the head was",
    ),
    "two layers of one": (
        MODELOPT,
        tensors_of(layers=2),
        "config.json says num_hidden_layers 1, the weights are of 2",
    ),
    "q normed, k not": (
        SPECFORGE,
        without(tensors_of(qk_norm=True), "midlayer.self_attn.k_norm.weight"),
        'missing "midlayer.self_attn.k_norm.weight"',
    ),
    "the norm before fc, not said": (
        SPECFORGE,
        tensors_of(norm_before_fc=True),
        'unexpected "input_norm.weight"',
    ),
    "the norm before fc, not there": (
        SPECFORGE | {"norm_before_fc": True},
        tensors_of(),
        'missing "input_norm.weight"',
    ),
    "another width without an embedding": (
        SPECFORGE | {"target_hidden_size": D + 1},
        tensors_of(target=D + 1),
        'missing "embed_tokens.weight"',
    ),
    "no lm_head": (SPECFORGE, without(tensors_of(), "lm_head.weight"), 'missing "lm_head.weight"'),
    "two states of three": (
        SPECFORGE | {AUX: [2, 16]},
        tensors_of(),
        f"the shape for fc.weight: is ({D}, {3 * D}), must be ({D}, {2 * D})",
    ),
    "transposed": (
        SPECFORGE,
        tensors_of() | {"lm_head.weight": torch.ones(D, R)},
        f"the shape for lm_head.weight: is ({D}, {R}), transposed, must be ({R}, {D})",
    ),
    # SpecForge's configs/qwen3-30B-A3B-eagle3-moe-draft.json
    "experts": (
        SPECFORGE | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2},
        without(tensors_of(), *(f"midlayer.mlp.{k}_proj.weight" for k in ("gate", "up", "down")))
        | {f"midlayer.mlp.experts.{i}.up_proj.weight": torch.ones(7, D) for i in range(4)},
        "its layer has experts (midlayer.mlp.experts.0.up_proj.weight), and only dense ones are",
    ),
    "latent attention": (
        MODELOPT | {"kv_lora_rank": 8},
        tensors_of(),
        "kv_lora_rank 8 is not supported",
    ),
    # bugs held down: these loaded and changed nothing, or were Llama-7B's sizes, or a KeyError
    "windows": (
        SPECFORGE | {"sliding_window": 4, "use_sliding_window": True},
        tensors_of(),
        "use_sliding_window True is not supported",
    ),
    "other layers": (
        SPECFORGE | {"layer_types": ["chunked_attention"]},
        tensors_of(),
        "chunked_attention in layer_types is not supported",
    ),
    "half of the channels turned": (
        SPECFORGE | {"partial_rotary_factor": 0.5},
        tensors_of(),
        "partial_rotary_factor 0.5 is not supported",
    ),
    "half of the channels turned, in rope_scaling": (
        SPECFORGE | {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        tensors_of(),
        "partial_rotary_factor 0.5 is not supported",
    ),
    "another kind of positions": (
        SPECFORGE | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1]}},
        tensors_of(),
        "the head has rope_type 'mrope'; it can be one of default, linear",
    ),
    "a first layer without its norm": (
        SPECFORGE | {"eagle_config": {"use_input_layernorm_in_first_layer": False}},
        tensors_of(),
        "use_input_layernorm_in_first_layer False is not supported",
    ),
    "no sizes": (
        {k: v for k, v in SPECFORGE.items() if k not in ("hidden_size", "vocab_size")},
        tensors_of(),
        "no hidden_size, vocab_size: write into it what the head was trained with",
    ),
    "one weight by two names": (
        SPECFORGE,
        tensors_of() | {"layers.0.hidden_norm.weight": torch.ones(D)},
        "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight are both the head's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused(tmp_path, name):
    values, tensors, told = REFUSED[name]
    with pytest.raises(BadInput) as error:
        read_head(save(tmp_path, values, tensors))
    assert told in str(error.value)


def test_settings_that_are_not_known_are_named(tmp_path, capsys):
    """Wherever a head is loaded, and none that is off."""
    values = SPECFORGE | {"novel_gate": 0.5, "novel_norm": False, "sliding_window": 8}
    load_head(save(tmp_path, values, tensors_of()), TargetShape())
    told = "novel_gate 0.5 in config.json is not read; sliding_window 8 in config.json is not read"
    assert capsys.readouterr().err == f"eagle_fsd: head {tmp_path}: {told}\n"


def test_of_upstream_s_own_head_the_layers_in_its_config_are_no_layers():
    """Its code builds one; that is said."""
    values = SIZES | {"draft_vocab_size": R, "num_hidden_layers": 40}
    _, config, notes = read_config(values)
    assert config.num_hidden_layers == 1
    assert notes == ["num_hidden_layers 40: upstream's cnets.py has one layer all the same"]
    _, ours, _ = read_config(values | {"head_type": "eagle3"})
    assert ours.num_hidden_layers == 40


@pytest.mark.parametrize(
    "ids, target_layers, layers, told",
    [
        ([1, 15, 28], 32, (2, 16, 29), "by what leaves a layer, as SpecForge and ModelOpt do"),
        ([2, 16, 29], 32, (2, 16, 29), "by what enters a layer"),
        ([24, 30, 36], 36, (24, 30, 36), "of 36 layers none has number 36"),
        ([24, 30, 36], 0, (25, 31, 37), "assumed"),
        ([4, 30], 36, (5, 31), "assumed"),
    ],
)
def test_layers_of_nvidia_are_told_apart_by_the_target(ids, target_layers, layers, told):
    """A number that no layer has counts hidden states (sglang pull request 32334)."""
    values = SPECFORGE | {"eagle_config": {AUX: ids}}
    _, config, notes = read_config(values, target_layers)
    assert config.feature_layers == layers
    assert told in notes[0]


def test_a_head_that_reads_the_target_s_lm_head_must_have_its_width():
    config = HeadConfig(**SIZES, head_type="eagle3", target_hidden_size=WIDE, own_lm_head=False)
    with pytest.raises(BadInput, match=f"reads {WIDE} channels, not the {D} of the head"):
        config.check_fits(Wide())
    assert config.vocab_size == V

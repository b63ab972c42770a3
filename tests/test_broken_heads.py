"""Broken draft heads: loading names every fault."""

import json
from pathlib import Path

import pytest
import torch
from head_files import (
    SIZES,
    SPECFORGE,
    SPECULATORS3,
    D,
    M,
    R,
    TargetShape,
    V,
    eagle3_tensors,
    eagle_tensors,
    renamed,
    save,
    with_layer,
)

from eagle_fsd.config import BadInput
from eagle_fsd.models.load import load_head

THREE = SIZES | {"draft_vocab_size": R}
Q, DOWN = "layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight"


SPOILT = eagle_tensors()
SPOILT[DOWN].view(-1)[5] = torch.nan
# fault -> changes of an EAGLE-1/2 head's tensors, a part of the error
EAGLE_WEIGHTS = {
    "extra keys": (
        {"lm_head.weight": torch.zeros(V, D), "d2t": torch.ones(5)},
        'Unexpected key(s) in state_dict: "d2t", "lm_head.weight"',
    ),
    "transposed": (
        {DOWN: torch.zeros(M, D)},
        f"for {DOWN}: copying a param with shape torch.Size([{M}, {D}]) from checkpoint, the shape "
        f"in current model is torch.Size([{D}, {M}])",
    ),
    "whole numbers": ({DOWN: torch.zeros(D, M).to(torch.int8)}, f"{DOWN} has dtype torch.int8"),
    "NaN": (SPOILT, f"{DOWN} is NaN or infinite at 1 of {D * M} places"),
}
# the same of an EAGLE-3 head
EAGLE3_WEIGHTS = {
    "EAGLE-3.1 keys": ({"fc_norm.0.weight": torch.ones(D)}, '"fc_norm.0.weight"'),
    "d2t beyond the vocabulary": (
        {"d2t": eagle3_tensors()["d2t"] + 1},
        "d2t leads to 2..41, not to ascending tokens of 0..40",
    ),
    "d2t out of order": ({"d2t": torch.arange(0, -2 * R, -2) + 20}, "d2t leads to 10..20"),
    "d2t of fractions": ({"d2t": torch.ones(R)}, "d2t has dtype torch.float32"),
}
FULL = eagle3_tensors(rows=V) | {"d2t": torch.ones(V, dtype=torch.int64)}
BIASED = renamed(eagle3_tensors(qkv_bias=True), {"midlayer.": "layers.0."})
BIASED |= {"layers.0.self_attn.o_proj.bias": torch.ones(D)}
FAULTS: dict[str, tuple[dict, dict, str]] = {
    **{name: (SIZES, eagle_tensors() | new, told) for name, (new, told) in EAGLE_WEIGHTS.items()},
    **{name: (THREE, eagle3_tensors() | new, told) for name, (new, told) in EAGLE3_WEIGHTS.items()},
    "missing keys": (
        SIZES,
        {key: tensor for key, tensor in eagle_tensors().items() if key not in (Q, "fc.bias")},
        f'Missing key(s) in state_dict: "fc.bias", "{Q}"',
    ),
    "d2t of a full vocabulary": (SIZES | {"draft_vocab_size": V}, FULL, '"d2t"'),
    "a bias of o_proj": (with_layer(SPECULATORS3, attention_bias=True), BIASED, "o_proj.bias"),
}


def refusal(folder: Path) -> str:
    """Loading's BadInput, in one line that names the folder."""
    with pytest.raises(BadInput) as error:
        load_head(folder, TargetShape())
    assert "\n" not in str(error.value) and str(folder) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_are_no_heads_are_refused_by_name(tmp_path, fault):
    """Extra, missing and misshapen keys, numbers of another kind, NaN, broken vocabularies."""
    values, tensors, told = FAULTS[fault]
    save(tmp_path, values, tensors)
    said = refusal(tmp_path)
    assert said.startswith(f"the draft head in {tmp_path} does not fit: ") and told in said


# config.json, a part of the error
CONFIGS = [
    (SIZES | {"head_type": "medusa"}, "unknown head_type 'medusa'; known: eagle, eagle3"),
    (THREE | {"feature_layers": [1, 2]}, "a head fuses three layers, got (1, 2)"),
    (SIZES | {"hidden_size": "24"}, "expected int, got str"),
    (SIZES | {"num_attention_heads": 5}, "not a multiple of the number of attention heads (5)"),
    (SIZES | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ({}, "another target: its hidden_size is 4096, not 24"),  # upstream's defaults
    (SIZES | {"vocab_size": 43}, "its vocab_size is 43, not 41"),
    (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 20, 31]}},
        "fuses hidden states (2, 21, 32); of a target with 32 layers it can be 0..31",
    ),
    (SPECFORGE | {"norm_output": False}, "norm_output False is not supported"),
    (with_layer(SPECULATORS3, mlp_bias=True), "mlp_bias True is not supported"),
    (with_layer(SPECULATORS3, layer_types=["sliding_attention"]), "layer_types with sliding"),
    (SPECULATORS3 | {"norm_before_residual": None}, "speculators takes false for it, vLLM true"),
    (SPECULATORS3 | {"speculators_model_type": "dflash"}, "unknown head_type 'dflash'"),
    ("{", "JSONDecodeError"),
    ("[1, 2]", "AttributeError"),
]


@pytest.mark.parametrize("config, message", CONFIGS)
def test_configs_that_cannot_be_a_head_are_refused(tmp_path, config, message):
    """By config.json alone: no layer's, not supported here, or of another target."""
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert message in refusal(tmp_path)


def test_absent_heads_are_named(tmp_path):
    """No folder, no config.json, no weights."""
    for name in (tmp_path / "nowhere", "nobody/no-head"):
        with pytest.raises(BadInput, match=f"no draft head at '{name}'"):
            load_head(name, TargetShape())
    assert "config.json is no draft head's config (FileNotFoundError" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    assert "model.safetensors: absent" in refusal(tmp_path)


@pytest.mark.parametrize(
    "name, content",
    [
        ("model.safetensors", b"\x09\x00\x00\x00\x00\x00\x00\x00not json"),
        ("pytorch_model.bin", b"not a pickle"),
        ("pytorch_model.bin", b"h\x07."),
        ("pytorch_model.bin", {7: torch.zeros(2)}),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content):
    """A cut-off download ends in one line that names the file, not in a library's own error."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        torch.save(content, tmp_path / name)
    said = refusal(tmp_path)
    assert said.startswith("cannot read") and name in said


class Touch:
    """Unpickling it makes a file: the code that a hostile checkpoint would run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickles_that_would_run_code_are_refused(tmp_path, legacy):
    """Reading a hostile pytorch_model.bin fails and does not run its code; the error does not
    advise to load it all the same."""
    mark, file = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    hostile = eagle_tensors() | {"fc.bias": Touch(mark)}
    torch.save(hostile, file, _use_new_zipfile_serialization=not legacy)
    said = refusal(tmp_path)
    assert "pickle of more than tensors" in said and "weights_only" not in said
    assert not mark.exists()
    torch.load(file, weights_only=False)  # the trap was real
    assert mark.exists()

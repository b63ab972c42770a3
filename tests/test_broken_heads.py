"""Broken draft heads: every fault and the error that loading gives.

FOLDER stands for the head's folder in the messages.
"""

import json
from collections.abc import Callable
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
    layer,
    renamed,
    save,
    with_layer,
)

from eagle_fsd.config import BadInput
from eagle_fsd.heads.files import read_stored_config, read_stored_head, resolve_folder
from eagle_fsd.models.load import load_head

THREE = SIZES | {"draft_vocab_size": R}
MISFIT = "the draft head in FOLDER does not fit: "
Q, DOWN = "layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight"


def without(tensors: dict, *keys: str) -> dict:
    return {key: tensor for key, tensor in tensors.items() if key not in keys}


def spoilt(key: str, value: float) -> dict[str, torch.Tensor]:
    """A good set of weights, one of them such."""
    tensors = eagle_tensors()
    tensors[key].view(-1)[5] = value
    return tensors


# fault -> tensors of an EAGLE-1/2 head, the error after MISFIT
EAGLE_WEIGHTS = {
    "extra key": (
        eagle_tensors() | {"lm_head.weight": torch.zeros(3, 2)},
        "unexpected lm_head.weight (3, 2)",
    ),
    "input norm": (
        eagle_tensors() | {"layers.0.input_layernorm.weight": torch.zeros(D)},
        f"unexpected layers.0.input_layernorm.weight ({D},)",
    ),
    "EAGLE-3 key": (eagle_tensors() | {"d2t": torch.zeros(5)}, "unexpected d2t (5,)"),
    "missing keys": (
        without(eagle_tensors(), Q, "fc.bias"),
        f"missing fc.bias ({D},); missing {Q} ({D}, {D})",
    ),
    "transposed": (
        eagle_tensors() | {DOWN: torch.zeros(M, D)},
        f"{DOWN} has shape ({M}, {D}), config.json says ({D}, {M}): it is transposed",
    ),
    "never broadcast": (
        eagle_tensors() | {Q.replace("q_proj", "k_proj"): torch.zeros(1, D)},
        f"{Q.replace('q_proj', 'k_proj')} has shape (1, {D}), config.json says (8, {D})",
    ),
    "another embedding": (
        eagle_tensors() | {"embed_tokens.weight": torch.zeros(43, D)},
        f"embed_tokens.weight has shape (43, {D}), config.json says ({V}, {D})",
    ),
    "another prefix": (
        {"model.fc.weight": torch.zeros(D, 2 * D)} | without(eagle_tensors(), "fc.weight"),
        f"missing fc.weight ({D}, {2 * D}); unexpected model.fc.weight ({D}, {2 * D})",
    ),
    "whole numbers": (
        eagle_tensors() | {DOWN: torch.zeros(D, M, dtype=torch.int8)},
        f"{DOWN} has dtype int8",
    ),
    "numbers of 8 bits": (
        eagle_tensors() | {DOWN: torch.zeros(D, M, dtype=torch.float8_e4m3fn)},
        f"{DOWN} has dtype float8_e4m3fn",
    ),
    "NaN": (spoilt(DOWN, torch.nan), f"{DOWN} is NaN or infinite at 1 of {D * M} places"),
    "infinity": (spoilt("fc.bias", torch.inf), f"fc.bias is NaN or infinite at 1 of {D} places"),
    "minus infinity": (
        {key: tensor.half() for key, tensor in spoilt(Q, -torch.inf).items()},
        f"{Q} is NaN or infinite at 1 of {D * D} places",
    ),
    "HASS with layernorms": (
        eagle_tensors() | {"hidden_layernorm.weight": torch.ones(D)},
        f"unexpected hidden_layernorm.weight ({D},) (a HASS variant with layernorms: not "
        "supported)",
    ),
}
# fault -> config.json, tensors (or a function that fills the folder), the error
FAULTS: dict[str, tuple[dict | str, dict | Callable[[Path], None], str]] = {
    **{name: (SIZES, fault, MISFIT + text) for name, (fault, text) in EAGLE_WEIGHTS.items()},
    "EAGLE-3.1 keys": (
        THREE,
        eagle3_tensors() | {"fc_norm.0.weight": torch.ones(D)},
        MISFIT + f"unexpected fc_norm.0.weight ({D},) (EAGLE-3.1: not supported)",
    ),
    "d2t beyond the vocabulary": (
        THREE,
        eagle3_tensors() | {"d2t": eagle3_tensors()["d2t"] + 1},
        MISFIT + "d2t must lead to ascending tokens of 0..40; it leads to 2..41, ascending: yes",
    ),
    "d2t out of order": (
        THREE,
        eagle3_tensors() | {"d2t": torch.arange(0, -2 * R, -2) + 20},
        MISFIT + "d2t must lead to ascending tokens of 0..40; it leads to 10..20, ascending: no",
    ),
    "t2d of other tokens": (
        THREE,
        eagle3_tensors() | {"t2d": torch.ones(V, dtype=torch.bool)},
        MISFIT + "t2d marks other tokens than d2t leads to",
    ),
    "d2t of a full vocabulary": (
        SIZES | {"draft_vocab_size": V},
        eagle3_tensors(rows=V) | {"d2t": torch.ones(V, dtype=torch.int64)},
        MISFIT + "d2t is not zero, and such a head has none",
    ),
    "a bias of o_proj": (
        with_layer(SPECULATORS3, attention_bias=True),
        renamed(eagle3_tensors(qkv_bias=True), {"midlayer.": "layers.0."})
        | {"layers.0.self_attn.o_proj.bias": torch.ones(D)},
        MISFIT + "layers.0.self_attn.o_proj.bias is not zero, and such a head has none",
    ),
    "upstream's keys in speculators' layout": (
        SPECULATORS3,
        without(eagle3_tensors(), *layer("midlayer", SIZES, width=1)),
        MISFIT
        + "; ".join(
            [
                f"missing {key} {shape}"
                for key, shape in layer("layers.0", SIZES, width=2 * D).items()
                if "post" not in key
            ]
            + [
                f"missing layers.0.{n}.weight ({D},)"
                for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
            ]
            + [f"unexpected midlayer.{n}.weight ({D},)" for n in ("hidden_norm", "input_layernorm")]
        ),
    ),
    # --- files
    "no weights": (
        SIZES,
        lambda folder: None,
        "FOLDER has no weights: expected model.safetensors or pytorch_model.bin",
    ),
    "absent shard": (
        SIZES,
        lambda folder: (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"fc.bias": "a.safetensors"}})
        ),
        "FOLDER/model.safetensors.index.json names shards that are absent: a.safetensors",
    ),
    "pickle with code": (
        SIZES,
        lambda folder: torch.save({"fc.bias": Touch(folder)}, folder / "pytorch_model.bin"),
        "cannot read FOLDER/pytorch_model.bin: the pickle holds more than tensors (getattr), which "
        "could run code and is never loaded; get the head as model.safetensors",
    ),
    "whole numbers as keys": (
        SIZES,
        lambda folder: torch.save({7: torch.zeros(2)}, folder / "pytorch_model.bin"),
        "FOLDER/pytorch_model.bin must map names to tensors, it has 7: Tensor",
    ),
    "numbers as values": (
        SIZES,
        lambda folder: torch.save({"fc.weight": 1.0}, folder / "pytorch_model.bin"),
        "FOLDER/pytorch_model.bin must map names to tensors, it has 'fc.weight': float",
    ),
    "a list": (
        SIZES,
        lambda folder: torch.save([torch.zeros(2)], folder / "pytorch_model.bin"),
        "FOLDER/pytorch_model.bin must map names to tensors, it is a list",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_heads_are_refused_by_name(tmp_path, fault):
    """load_head raises BadInput with exactly this text."""
    values, content, message = FAULTS[fault]
    if callable(content):
        save(tmp_path, values, {})
        (tmp_path / "model.safetensors").unlink()
        content(tmp_path)
    else:
        save(tmp_path, values, content)
    with pytest.raises(BadInput) as error:
        load_head(tmp_path, TargetShape())
    assert str(error.value).replace(str(tmp_path), "FOLDER") == message


FUSED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 20, 31]}}
WIDE = with_layer(SPECULATORS3 | {"speculators_model_type": "eagle"}, head_dim=8)
# config.json, a part of the error
CONFIGS = [
    (SIZES | {"draft_vocab_size": 42}, "draft_vocab_size 42 is more than vocab_size 41"),
    (SIZES | {"head_type": "medusa"}, "head_type 'medusa' is unknown; known: eagle, eagle3"),
    (THREE | {"num_hidden_layers": 2}, "an EAGLE-3 head has one layer, not 2"),
    (SIZES | {"feature_layers": [1, 2, 3]}, "settings of EAGLE-3 heads"),
    (THREE | {"feature_layers": [1, 2]}, "an EAGLE-3 head fuses three layers, got (1, 2)"),
    (THREE | {"feature_layers": "abc"}, "feature_layers must be whole numbers"),
    (SIZES | {"head_type": "eagle3", "draft_vocab_size": "17"}, "has a value of a wrong type"),
    (SIZES | {"rope_scaling": "linear"}, "has a value of a wrong type"),
    (SIZES | {"hidden_size": None}, "no hidden_size: not an EAGLE head's config"),
    (
        SIZES | {"num_attention_heads": 5},
        "hidden_size 24 is not divisible by num_attention_heads 5",
    ),
    (SIZES | {"num_key_value_heads": 4}, "heads 6 is not divisible by num_key_value_heads 4"),
    (SIZES | {"vocab_size": 0}, "vocab_size must be positive, got 0"),
    (SIZES | {"hidden_act": "sum"}, "unknown hidden_act 'sum'"),
    (
        SIZES | {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        "is unknown; linear, dynamic, llama3",
    ),
    (
        SIZES | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        "a number as low_freq_factor",
    ),
    (SIZES | {"rope_scaling": {"type": "linear", "factor": "4"}}, "a number as factor, got '4'"),
    (
        SIZES | {"hidden_size": 30},
        "made for another target: it has hidden_size 30 (the target's is 24)",
    ),
    (SIZES | {"vocab_size": 43}, "vocab_size 43 (the target's is 41)"),
    (SPECFORGE | {"fc_norm": True}, "fc_norm: EAGLE-3.1 is not supported"),
    (with_layer(SPECULATORS3, mlp_bias=True), "mlp_bias: biases in the MLP is not supported"),
    (
        SPECFORGE | {"norm_output": False},
        "norm_output false: SpecForge 0.2 means that no norm comes",
    ),
    (
        SPECFORGE | FUSED,
        "fuses hidden states (2, 21, 32); of a target with 32 layers it can be 0..31",
    ),
    (THREE | {"eagle_aux_hidden_state_layer_ids": [2, "8", 16]}, "must be whole numbers"),
    (
        SPECFORGE | {"target_hidden_size": 48},
        "target_hidden_size 48, hidden_size 24: a head narrower",
    ),
    (
        SPECFORGE | {"architectures": ["DeepseekV3ForCausalLMEagle3"]},
        "architectures ['DeepseekV3ForCausalLMEagle3']: EAGLE-3 heads have a Llama layer",
    ),
    (with_layer(SPECULATORS3, model_type="qwen3"), "'qwen3': a llama layer is supported"),
    (with_layer(SPECULATORS3, layer_types=["sliding_attention"]), "full_attention is needed"),
    (WIDE, "LlamaDecoderLayer with head_dim 8: a LlamaDecoderLayer with hidden_size / num_"),
    (
        without(SPECULATORS3, "norm_before_residual"),
        "no norm_before_residual: speculators takes false",
    ),
    (without(SPECULATORS3, "transformer_layer_config"), "no transformer_layer_config"),
    (
        SPECULATORS3 | {"speculators_model_type": "dflash"},
        "'dflash': eagle and eagle3 are supported",
    ),
    ("{", "config.json is broken JSON"),
    ("[1, 2]", "config.json must hold a JSON object, got [1, 2]"),
]


@pytest.mark.parametrize("config, message", CONFIGS)
def test_configs_that_cannot_be_a_head_are_refused(tmp_path, config, message):
    """By config.json alone, which the error names: settings of other kinds, sizes that do not
    divide, unknown rope scalings, layouts that do not run here, heads of another target."""
    save(tmp_path, config, {})
    with pytest.raises(BadInput) as error:
        load_head(tmp_path, TargetShape())
    assert message in str(error.value) and str(tmp_path) in str(error.value)


def test_absent_folders_are_named(tmp_path):
    """No config.json, no folder."""
    with pytest.raises(BadInput, match="no config.json"):
        read_stored_config(tmp_path)
    with pytest.raises(BadInput, match="no draft head at '.*nowhere'"):
        resolve_folder(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "name, content",
    [
        ("model.safetensors", b"\x09\x00\x00\x00\x00\x00\x00\x00not json"),
        ("model.safetensors", b"\x08\0\0"),
        ("model.safetensors", b""),
        ("pytorch_model.bin", b"not a pickle"),
        ("pytorch_model.bin", b"\x80\x02}q\x00X\x09"),
        ("pytorch_model.bin", b"h\x07."),
        ("pytorch_model.bin", b""),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b'{"metadata": {}}'),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content):
    """A cut-off download ends in one line that names the file, not in a library's own error."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=name) as error:
        read_stored_head(tmp_path)
    assert "\n" not in str(error.value)


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
    with pytest.raises(BadInput, match="cannot read .*pytorch_model.bin.*pickle") as error:
        read_stored_head(tmp_path)
    assert "weights_only" not in str(error.value)
    assert not mark.exists()
    torch.load(file, weights_only=False)  # the trap was real
    assert mark.exists()

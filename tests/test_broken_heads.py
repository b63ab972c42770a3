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
CONFIG = "FOLDER/config.json"
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
    # --- config.json
    "wrong hidden size": (
        SIZES | {"hidden_size": 30},
        {},
        "the draft head 'FOLDER' was made for another target: it has hidden_size 30 (the target's "
        "is 24), vocab_size 41 (the target's is 41)",
    ),
    "wrong vocabulary": (
        SIZES | {"vocab_size": 43},
        {},
        "the draft head 'FOLDER' was made for another target: it has hidden_size 24 (the target's "
        "is 24), vocab_size 43 (the target's is 41)",
    ),
    "EAGLE-3.1 setting": (
        SPECFORGE | {"fc_norm": True},
        {},
        f"{CONFIG}: fc_norm: EAGLE-3.1 is not supported",
    ),
    "biases in the MLP": (
        with_layer(SPECULATORS3, mlp_bias=True),
        {},
        f"{CONFIG}: mlp_bias: biases in the MLP is not supported",
    ),
    "norm_output false in SpecForge": (
        SPECFORGE | {"norm_output": False},
        {},
        f"{CONFIG}: norm_output false: SpecForge 0.2 means that no norm comes before lm_head, "
        "SGLang and vLLM mean the usual head; drop it if it is the usual one",
    ),
    "fused layers beyond the target": (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 20, 31]}},
        {},
        "the draft head 'FOLDER' fuses hidden states (2, 21, 32); of a target with 32 layers it "
        "can be 0..31 (number 32, after the last layer, is only there normed)",
    ),
    "four fused layers": (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}},
        {},
        f"{CONFIG}: head config: an EAGLE-3 head fuses three layers, got (2, 3, 4, 5)",
    ),
    "a fused layer as text": (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, "8", 16]}},
        {},
        f"{CONFIG}: head config: feature_layers must be whole numbers, got (2, '8', 16)",
    ),
    "narrower than its target": (
        SPECFORGE | {"target_hidden_size": 48},
        {},
        f"{CONFIG}: target_hidden_size 48, hidden_size 24: a head narrower than its target "
        "is not supported",
    ),
    "a DeepSeek layer": (
        SPECFORGE | {"architectures": ["DeepseekV3ForCausalLMEagle3"]},
        {},
        f"{CONFIG}: architectures ['DeepseekV3ForCausalLMEagle3']: EAGLE-3 heads have a Llama "
        "layer",
    ),
    "a Qwen3 layer": (
        with_layer(SPECULATORS3, model_type="qwen3"),
        {},
        f"{CONFIG}: transformer_layer_config of 'qwen3': a llama layer is supported",
    ),
    "wide attention of an EAGLE-1/2 head": (
        with_layer(SPECULATORS3 | {"speculators_model_type": "eagle"}, head_dim=8),
        {},
        f"{CONFIG}: LlamaDecoderLayer with head_dim 8: a LlamaDecoderLayer with hidden_size / "
        "num_attention_heads is needed",
    ),
    "no word on the residual": (
        without(SPECULATORS3, "norm_before_residual"),
        {},
        f"{CONFIG}: no norm_before_residual: speculators takes false for it, vLLM true; "
        "write into it what the head was trained with",
    ),
    "another speculator": (
        SPECULATORS3 | {"speculators_model_type": "dflash"},
        {},
        f"{CONFIG}: speculators_model_type 'dflash': eagle and eagle3 are supported",
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


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"draft_vocab_size": 42}, "draft_vocab_size 42 is more than vocab_size 41"),
        ({"head_type": "medusa"}, "head_type 'medusa' is not eagle or eagle3"),
        ({"draft_vocab_size": 17, "num_hidden_layers": 2}, "EAGLE-3 head has one layer, not 2"),
        ({"feature_layers": [1, 2, 3]}, "settings of EAGLE-3 heads"),
        ({"draft_vocab_size": 17, "feature_layers": [1, 2]}, r"fuses three layers, got \(1, 2\)"),
        ({"draft_vocab_size": 17, "feature_layers": "abc"}, "feature_layers must be whole numbers"),
        ({"head_type": "eagle3", "draft_vocab_size": "17"}, "value of a wrong type"),
        ({"rope_scaling": "linear"}, "value of a wrong type"),
        ({"hidden_size": None}, "no hidden_size: not an EAGLE head"),
        ({"num_attention_heads": 5}, "hidden_size 24 is not divisible by num_attention_heads 5"),
        ({"num_key_value_heads": 4}, "heads 6 is not divisible by num_key_value_heads 4"),
        ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
        ({"hidden_act": "sum"}, "unknown hidden_act 'sum'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn'.* is unknown; linear, dynamic"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "number as low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "number as factor, got '4'"),
    ],
)
def test_configs_that_cannot_be_a_head_are_refused(tmp_path, changes, message):
    """Settings of the other kind, sizes that do not divide, unknown rope scalings."""
    save(tmp_path, SIZES | changes, {})
    with pytest.raises(BadInput, match=message):
        read_stored_config(tmp_path)


@pytest.mark.parametrize("text, message", [("{", "is broken JSON"), ("[1, 2]", "a JSON object")])
def test_config_files_that_are_no_json_object_are_refused(tmp_path, text, message):
    """The error names the file."""
    save(tmp_path, text, {})
    with pytest.raises(BadInput, match=f"config.json.* {message}"):
        read_stored_config(tmp_path)


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

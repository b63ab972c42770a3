"""Broken draft heads: every fault and the exact error that loading gives.

FOLDER stands for the head's folder in the messages.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_checkpoint import Touch
from test_formats import (
    SIZES,
    SPECULATORS,
    D,
    M,
    R,
    TargetShape,
    V,
    eagle3_tensors,
    eagle_tensors,
    foreign,
    layer,
    renamed,
)

from eagle_fsd.models.load import load_head

THREE = SIZES | {"draft_vocab_size": R}
SPEC = foreign()["speculators 3"][0]
SPECFORGE = foreign()["specforge"][0]
MISFIT = "the draft head in FOLDER does not fit: "
CONFIG = "FOLDER/config.json"
Q, DOWN = "layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight"


def without(tensors: dict, *keys: str) -> dict:
    return {key: tensor for key, tensor in tensors.items() if key not in keys}


def moved(tensors: dict, shift: int) -> dict:
    return tensors | {"d2t": tensors["d2t"] + shift}


def nested(**changes) -> dict:
    """speculators' config with a changed layer."""
    return SPEC | {"transformer_layer_config": SPECULATORS["transformer_layer_config"] | changes}


# fault -> config.json, tensors (or a function that fills the folder), the error
FAULTS: dict[str, tuple[dict | str, dict | Callable[[Path], None], str]] = {
    "extra key": (
        SIZES,
        eagle_tensors() | {"lm_head.weight": torch.zeros(3, 2)},
        MISFIT + "unexpected lm_head.weight (3, 2)",
    ),
    "missing keys": (
        SIZES,
        without(eagle_tensors(), Q, "fc.bias"),
        MISFIT + f"missing fc.bias ({D},); missing {Q} (24, {D})",
    ),
    "transposed": (
        SIZES,
        eagle_tensors() | {DOWN: torch.zeros(M, D)},
        MISFIT + f"{DOWN} has shape ({M}, {D}), config.json says ({D}, {M}): it is transposed",
    ),
    "another prefix": (
        SIZES,
        {"model.fc.weight": torch.zeros(D, 2 * D)} | without(eagle_tensors(), "fc.weight"),
        MISFIT + f"missing fc.weight ({D}, {2 * D}); unexpected model.fc.weight ({D}, {2 * D})",
    ),
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
    "pickle with code": (
        SIZES,
        lambda folder: torch.save({"fc.bias": Touch(folder)}, folder / "pytorch_model.bin"),
        "cannot read FOLDER/pytorch_model.bin: the pickle holds more than tensors (getattr), which "
        "could run code and is never loaded",
    ),
    "whole numbers as keys": (
        SIZES,
        lambda folder: torch.save({7: torch.zeros(2)}, folder / "pytorch_model.bin"),
        "FOLDER/pytorch_model.bin must map names to tensors, it has 7: Tensor",
    ),
    "broken JSON": (
        '{"hidden_size": 24,}',
        {},
        f"{CONFIG} is broken JSON: Expecting property name enclosed in double quotes: line 1 "
        "column 20 (char 19)",
    ),
    "cut-off weights": (
        SIZES,
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x08\0\0"),
        "cannot read FOLDER/model.safetensors: it is broken or cut off (SafetensorError: Error "
        "while deserializing header: header too small)",
    ),
    "absent shard": (
        SIZES,
        lambda folder: (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"fc.bias": "a.safetensors"}})
        ),
        "FOLDER/model.safetensors.index.json names shards that are absent: a.safetensors",
    ),
    "quantised weights": (
        SIZES,
        eagle_tensors() | {DOWN: torch.zeros(D, M, dtype=torch.int8)},
        MISFIT + f"{DOWN} has dtype int8",
    ),
    "EAGLE-3.1 keys": (
        THREE,
        eagle3_tensors() | {"fc_norm.0.weight": torch.ones(D)},
        MISFIT + f"unexpected fc_norm.0.weight ({D},) (EAGLE-3.1: not supported)",
    ),
    "EAGLE-3.1 setting": (
        SPECFORGE | {"fc_norm": True},
        eagle3_tensors(),
        f"{CONFIG} says fc_norm: EAGLE-3.1 is not supported",
    ),
    "norm_before_fc": (
        SPEC | {"norm_before_fc": True},
        {},
        f"{CONFIG} says norm_before_fc: EAGLE-3.1 is not supported",
    ),
    "norm_output false in SpecForge": (
        SPECFORGE | {"norm_output": False},
        {},
        f"{CONFIG} says norm_output false: SpecForge 0.2 means that no norm comes before lm_head, "
        "SGLang and vLLM mean the usual head; drop it if it is the usual one",
    ),
    "HASS with layernorms": (
        SIZES,
        eagle_tensors() | {"hidden_layernorm.weight": torch.ones(D)},
        MISFIT + f"unexpected hidden_layernorm.weight ({D},) (a HASS variant with layernorms: not "
        "supported)",
    ),
    "d2t beyond the vocabulary": (
        THREE,
        moved(eagle3_tensors(), 1),
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
    "fused layers beyond the target": (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 20, 31]}},
        eagle3_tensors(),
        "the draft head 'FOLDER' fuses hidden states (2, 21, 32); of a target with 32 layers it "
        "can be 0..31 (number 32, after the last layer, is only there normed)",
    ),
    "four fused layers": (
        SPECFORGE | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}},
        {},
        f"{CONFIG} fuses layers [1, 2, 3, 4]: three whole numbers are needed",
    ),
    "narrower than its target": (
        SPECFORGE | {"target_hidden_size": 48},
        {},
        f"{CONFIG} says target_hidden_size 48 and hidden_size 24: a head narrower than its target "
        "is not supported",
    ),
    "a DeepSeek layer": (
        SPECFORGE | {"architectures": ["DeepseekV3ForCausalLMEagle3"]},
        {},
        f"{CONFIG} says architectures ['DeepseekV3ForCausalLMEagle3']: EAGLE-3 heads have a Llama "
        "layer",
    ),
    "a Qwen3 layer": (
        nested(model_type="qwen3"),
        {},
        f"{CONFIG} says transformer_layer_config model_type 'qwen3': a llama layer is supported",
    ),
    "no word on the residual": (
        without(SPEC, "norm_before_residual"),
        {},
        f"{CONFIG} does not say norm_before_residual: speculators takes false for it, vLLM true; "
        "write into it what the head was trained with",
    ),
    "another speculator": (
        SPEC | {"speculators_model_type": "dflash"},
        {},
        f"{CONFIG} says speculators_model_type 'dflash': eagle and eagle3 are supported",
    ),
    "a bias of o_proj": (
        nested(attention_bias=True),
        renamed(eagle3_tensors(), {"midlayer.": "layers.0."})
        | {f"layers.0.self_attn.{n}_proj.bias": torch.ones(w) for n, w in (("k", 8), ("v", 8))}
        | {f"layers.0.self_attn.{n}_proj.bias": torch.ones(24) for n in "qo"},
        "the draft head in FOLDER has a bias that is not zero: layers.0.self_attn.o_proj.bias",
    ),
    "upstream's keys in speculators' layout": (
        SPEC,
        without(eagle3_tensors(), *layer("midlayer", width=1)),
        MISFIT
        + "; ".join(
            [f"missing {key} {shape}" for key, shape in layer("layers.0", width=2 * D).items()]
            + [f"missing layers.0.{n}.weight ({D},)" for n in ("hidden_norm", "input_layernorm")]
            + [f"unexpected midlayer.{n}.weight ({D},)" for n in ("hidden_norm", "input_layernorm")]
        ),
    ),
    "yarn": (
        SIZES | {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {},
        "head config: rope_scaling {'type': 'yarn', 'factor': 2.0} is unknown; linear, dynamic, "
        "llama3 with a factor are supported",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_heads_are_refused_by_name(tmp_path, fault):
    """load_head raises a ValueError with exactly this text."""
    assert message_of(tmp_path, fault) == FAULTS[fault][2]


def message_of(folder: Path, fault: str) -> str:
    """The error of a broken head in `folder`; the folder's name is replaced."""
    values, content, _ = FAULTS[fault]
    (folder / "config.json").write_text(values if isinstance(values, str) else json.dumps(values))
    if callable(content):
        content(folder)
    elif content:
        save_file(content, folder / "model.safetensors")
    with pytest.raises(ValueError) as error:
        load_head(folder, TargetShape())
    return str(error.value).replace(str(folder), "FOLDER")

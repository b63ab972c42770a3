"""Tiny checkpoints with an MTP layer, in the layout of each family.

The decoder layer is written by transformers: as the last of a model with one layer more, whose keys
are then those that the family's releases have. What is around it is written by hand.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny import SIZES, random_model
from tiny_folder import write_target
from tiny_recurrent import EXPERTS, LONG_SIZES, QWEN
from transformers import AutoConfig, PreTrainedModel

MLA = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
MOE = {  # torch's grouped matmul wants rows of 16 bytes
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
    "num_nextn_predict_layers": 1,
}
BEHIND = {
    "enorm": "enorm.weight",
    "hnorm": "hnorm.weight",
    "eh_proj": "eh_proj.weight",
    "norm": "shared_head.norm.weight",
}
APART = {
    "enorm": "mtp.pre_fc_norm_embedding.weight",
    "hnorm": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj": "mtp.fc.weight",
    "norm": "mtp.norm.weight",
}
MIMO = {
    "enorm": "token_layernorm.weight",
    "hnorm": "hidden_layernorm.weight",
    "eh_proj": "input_proj.weight",
    "norm": "final_layernorm.weight",
}


@dataclass(frozen=True)
class Family:
    """How its checkpoints are: config, prefix of its own tensors and of the decoder layer's ({n}:
    the target's layers), the names of the former, the order of the projection, and what is added
    to the weights of norms."""

    config: dict
    names: dict
    own: str
    layer: str
    hidden_first: bool = False
    unit: float = 0.0


def behind(config: dict) -> Family:
    return Family(config, BEHIND, "model.layers.{n}.", "model.layers.{n}.")


def apart(config: dict) -> Family:
    return Family(config, APART, "", "mtp.layers.0.", unit=1.0)


FAMILIES = {
    "deepseek_v3": behind(SIZES | MLA | MOE),
    "glm4_moe": behind(SIZES | MOE | {"head_dim": 14, "use_qk_norm": True}),
    "glm4_moe_lite": behind(SIZES | MLA | MOE),
    "qwen3_next": apart(LONG_SIZES | QWEN | EXPERTS | {"mlp_only_layers": [0]}),
    "qwen3_5_text": apart(LONG_SIZES | QWEN),
    "qwen3_5_moe_text": apart(LONG_SIZES | QWEN | EXPERTS),
    "qwen2": Family(SIZES, MIMO, *["model.mtp_layers.{k}."] * 2, hidden_first=True),
}


@dataclass(frozen=True)
class Written:
    """A checkpoint's folder, and what it was made of.

    Attributes:
        longer: the model with further layers, those of the MTP layers.
        own: of each of these the tensors around it, under the names of `Family.names`' keys.
        keys: of all its tensors in the file, but for copies of the target's tables.
    """

    folder: Path
    family: Family
    longer: PreTrainedModel
    own: list[dict[str, torch.Tensor]]
    keys: set[str]


def longer_config(name: str, more: int, **changes):
    values = FAMILIES[name].config | changes
    values |= {"num_hidden_layers": values["num_hidden_layers"] + more}
    if "layer_types" in values:
        values["layer_types"] = [*values["layer_types"], *["full_attention"] * more]
    return AutoConfig.for_model(name, **values)


def write_mtp_target(
    folder: Path, name: str, *, seed: int = 0, layers: int = 1, **changes
) -> Written:
    """A random target with MTP layers, and a tokenizer of bytes."""
    family = FAMILIES[name]
    changes = {"vocab_size": 258} | changes
    torch.manual_seed(seed)
    longer = random_model(longer_config(name, layers, **changes), seed=seed)
    longer.save_pretrained(write_target(folder))
    n = longer.config.num_hidden_layers - layers
    values = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "mlp_layer_types"):
        if key in values:
            values[key] = values[key][:n]
    values |= {"num_hidden_layers": n}
    if "num_nextn_predict_layers" in values:
        values["num_nextn_predict_layers"] = layers
    (folder / "config.json").write_text(json.dumps(values))
    tensors, keys, around = load_file(folder / "model.safetensors"), set(), []
    for number in range(layers):
        own = random_parts(family, longer.config.hidden_size, seed=seed + 1 + number)
        place = {"n": n + number, "k": number}
        layer, last = family.layer.format(**place), f"model.layers.{n + number}."
        tensors = {
            layer + key.removeprefix(last) if key.startswith(last) else key: tensor
            for key, tensor in tensors.items()
        }
        tensors |= {family.own.format(**place) + family.names[key]: own[key] for key in own}
        keys |= {key for key in tensors if key.startswith((layer, "mtp."))}
        if family.names is BEHIND:  # as released, the tables a second time
            tables = ("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")
            for table, key in tables:
                tensors[f"{layer}{table}.weight"] = tensors[f"{key}.weight"].clone()
        around.append(own)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Written(folder, family, longer, around, keys)


def random_parts(family: Family, D: int, *, seed: int) -> dict[str, torch.Tensor]:
    """What is around an MTP layer's decoder layer, under the names of `Family.names`' keys."""
    generator = torch.Generator().manual_seed(seed)
    own = {key: torch.randn(D, generator=generator) * 0.1 for key in ("enorm", "hnorm", "norm")}
    own = {key: (tensor + 1 - family.unit).bfloat16().float() for key, tensor in own.items()}
    proj = torch.randn(D, 2 * D, generator=generator) * (1.5 / (2 * D) ** 0.5)
    return own | {"eh_proj": proj.bfloat16().float()}

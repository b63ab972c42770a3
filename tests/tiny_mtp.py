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


def names(start: str, *ends: str) -> dict[str, str]:
    """Of what is around the decoder layer; {n}: the number of the target's layers."""
    parts = ("enorm", "hnorm", "eh_proj", "norm")
    return {part: f"{start}{end}.weight" for part, end in zip(parts, ends, strict=True)}


BEHIND = names("model.layers.{n}.", "enorm", "hnorm", "eh_proj", "shared_head.norm")
APART = names("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
MIMO = names("model.mtp_layers.0.", *MIMO)


@dataclass(frozen=True)
class Family:
    """How its checkpoints are: config, the names above, what those of the decoder layer begin with,
    the order of the projection, and what is added to the weights of norms."""

    config: dict
    names: dict
    layer: str = "model.layers.{n}."
    hidden_first: bool = False
    unit: float = 0.0


def apart(config: dict) -> Family:
    return Family(config, APART, "mtp.layers.0.", unit=1.0)


FAMILIES = {
    "deepseek_v3": Family(SIZES | MLA | MOE, BEHIND),
    "glm4_moe": Family(SIZES | MOE | {"head_dim": 14, "use_qk_norm": True}, BEHIND),
    "glm4_moe_lite": Family(SIZES | MLA | MOE, BEHIND),
    "qwen3_next": apart(LONG_SIZES | QWEN | EXPERTS | {"mlp_only_layers": [0]}),
    "qwen3_5_text": apart(LONG_SIZES | QWEN),
    "qwen3_5_moe_text": apart(LONG_SIZES | QWEN | EXPERTS),
    "qwen2": Family(SIZES, MIMO, "model.mtp_layers.0.", hidden_first=True),
}


@dataclass(frozen=True)
class Written:
    """A checkpoint's folder, and what it was made of.

    Attributes:
        longer: the model with one layer more, that of the MTP layer.
        around: the tensors around this one, under the names of `Family.names`' keys.
        keys: of all its tensors in the file, but for copies of the target's tables.
    """

    folder: Path
    family: Family
    longer: PreTrainedModel
    around: dict[str, torch.Tensor]
    keys: set[str]


def write_mtp_target(folder: Path, name: str, *, seed: int = 0, **changes) -> Written:
    """A random target with an MTP layer, and a tokenizer of bytes."""
    family = FAMILIES[name]
    sizes = family.config | {"vocab_size": 258} | changes
    sizes["num_hidden_layers"] += 1
    if "layer_types" in sizes:
        sizes["layer_types"] = [*sizes["layer_types"], "full_attention"]
    torch.manual_seed(seed)
    longer = random_model(AutoConfig.for_model(name, **sizes), seed=seed)
    longer.save_pretrained(write_target(folder))
    n = longer.config.num_hidden_layers - 1
    values = json.loads((folder / "config.json").read_text())
    for key in ("layer_types", "mlp_layer_types"):
        if key in values:
            values[key] = values[key][:n]
    (folder / "config.json").write_text(json.dumps(values | {"num_hidden_layers": n}))
    around = random_parts(family, longer.config.hidden_size, seed=seed + 1)
    layer, last = family.layer.format(n=n), f"model.layers.{n}."
    tensors = {
        layer + key.removeprefix(last) if key.startswith(last) else key: tensor
        for key, tensor in load_file(folder / "model.safetensors").items()
    }
    tensors |= {family.names[key].format(n=n): around[key] for key in around}
    keys = {key for key in tensors if key.startswith((layer, "mtp."))}
    if family.names is BEHIND:  # as released, the tables a second time
        tables = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}
        for copied, table in tables.items():
            tensors[f"{layer}{copied}.weight"] = tensors[f"{table}.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Written(folder, family, longer, around, keys)


def random_parts(family: Family, D: int, *, seed: int) -> dict[str, torch.Tensor]:
    """What is around an MTP layer's decoder layer, under the names of `Family.names`' keys."""
    generator = torch.Generator().manual_seed(seed)
    norms = {key: torch.randn(D, generator=generator) * 0.1 for key in ("enorm", "hnorm", "norm")}
    norms = {key: (tensor + 1 - family.unit).bfloat16().float() for key, tensor in norms.items()}
    proj = torch.randn(D, 2 * D, generator=generator) * (1.5 / (2 * D) ** 0.5)
    return norms | {"eh_proj": proj.bfloat16().float()}

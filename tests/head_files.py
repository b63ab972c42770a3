"""Draft heads as published, written out by hand at tiny size: config.json and weights under each
publisher's own names, and their files. None is written by the writer under test. Where they were
looked up is said in eagle_fsd/heads/layouts.py and results/published_heads.

Sizes: D hidden, V vocabulary, R draft vocabulary; 6 heads of 4 channels, 2 for
keys and values.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle_fsd.heads.draft_head import build_head
from eagle_fsd.heads.head_config import HeadConfig

AUX = "eagle_aux_hidden_state_layer_ids"
D, V, R = 24, 41, 11
WIDE = 36  # hidden size of a target whose head has D
SIZES = {
    "hidden_size": D,
    "intermediate_size": 37,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": V,
}
TOKENS = torch.tensor([1, 2, 5, 7, 8, 13, 20, 21, 30, 39, 40])  # the draft vocabulary
D2T = TOKENS - torch.arange(R)
Tensors = dict[str, torch.Tensor]


class TargetShape:
    """What load_head asks of a target's config."""

    vocab_size, num_hidden_layers = V, 32

    def __init__(self, hidden_size: int = D):
        self.hidden_size = hidden_size


# --- weights by upstream's names ------------------------------------------------------------------


def weights(**fields) -> Tensors:
    """Random ones of a head of SIZES and these fields of HeadConfig, over TOKENS. That they have
    upstream's names is what the reference relies on."""
    head, generator = build_head(HeadConfig(**SIZES | fields)), torch.Generator().manual_seed(0)
    drafted = {"d2t": D2T, "t2d": torch.zeros(V, dtype=torch.bool).index_fill(0, TOKENS, True)}
    return {
        key: torch.randn(tensor.shape, generator=generator) * (1.5 / tensor.shape[-1] ** 0.5)
        for key, tensor in head.named_parameters()
    } | {key: drafted[key] for key, _ in head.named_buffers()}


def renamed(tensors: Tensors, prefixes: dict[str, str]) -> Tensors:
    """Tensors whose names begin otherwise."""
    for old, new in prefixes.items():
        tensors = {
            new + key.removeprefix(old) if key.startswith(old) else key: tensor
            for key, tensor in tensors.items()
        }
    return tensors


def without(tensors: Tensors, *keys: str) -> Tensors:
    return {key: tensor for key, tensor in tensors.items() if key not in keys}


# --- configs --------------------------------------------------------------------------------------

THREE = {"head_type": "eagle3", "draft_vocab_size": R}
AUX_IDS = (2, 16, 29)
THETA = {"rope_theta": 500000.0, "rms_norm_eps": 0.3}  # neither is the default
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 = {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16}}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
YARN = {"rope_scaling": YARN | {"original_max_position_embeddings": 16, "truncate": False}}
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
SPECFORGE = SIZES | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
SPECFORGE |= {"rope_scaling": None, "draft_vocab_size": R, "head_dim": 4}
MODELOPT = SPECFORGE | {"pretraining_tp": 1, "mlp_bias": False, "attention_bias": False}
MODELOPT["eagle_config"] = {
    AUX: [1, 15, 28],
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
SPECULATORS = {
    "speculators_config": {"verifier": {"architectures": ["LlamaForCausalLM"]}},
    "speculators_version": "0.3.0",
    "transformer_layer_config": SIZES
    | THETA
    | {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 4}
    | {"attention_bias": False, "mlp_bias": False, "rope_scaling": None},
}
SPECULATORS3 = SPECULATORS | {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": R,
    "norm_before_residual": False,
}
# what speculators of 2026 writes into every config, true or false
FLAGS = {"norm_before_fc": False, "fc_norm": False, "norm_output": False}
FLAGS |= {"embed_requires_grad": False, "target_hidden_size": None}


def with_layer(config: dict, **changes) -> dict:
    """speculators' config with a changed layer."""
    return config | {"transformer_layer_config": config["transformer_layer_config"] | changes}


def numbered(ours: Tensors) -> Tensors:
    return renamed(ours, {"midlayer.": "layers.0."})


def published() -> dict[str, tuple[dict, dict, Callable[[Tensors], Tensors]]]:
    """(config.json, fields of HeadConfig that differ from SIZES, and what makes the publisher's of
    the weights by upstream's names), by a name that begins with the layout's."""
    own, said, ids = {"own_embedding": True}, {"draft_vocab_size": R}, {"feature_layers": AUX_IDS}
    two, qwen2 = {"num_hidden_layers": 2}, {"qkv_bias": True, "bias": False}
    wide, no_aux = {"target_hidden_size": WIDE}, {"use_aux_hidden_state": False}
    # of 4 channels, rounded; a head with frequencies, as older files have them, was refused once
    older = {"layers.0.self_attn.rotary_emb.inv_freq": torch.tensor([1.0, 0.01]).half()}
    idle = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.zeros(V, dtype=torch.bool)}
    outside = ("lm_head.weight", "d2t", "t2d")  # of NeMo's what has no "model." before it
    nemo = {"architectures": ["LlamaEagle3DraftModel"], "num_aux_hidden_states": 3}
    pre_fc = {"eagle_config": MODELOPT["eagle_config"] | {"norm_before_fc": True}}
    eagle31, four = {"fc_norm": True, "norm_output": True}, (1, 8, 16, 29)
    spec1 = {"speculators_model_type": "eagle", "fusion_bias": True, "layernorms": False}
    spec31 = {"norm_before_fc": True, "norm_output": True, "norm_before_residual": True}
    biases = {"layers.0.self_attn.o_proj.bias": torch.zeros(D), "fc.bias": torch.zeros(D)}
    return {
        "upstream, EAGLE-2": (SIZES, own, lambda ours: ours | older),
        "upstream, ours": (SIZES | said | qwen2 | {"head_type": "eagle"}, said | qwen2, dict),
        "upstream, all tokens": (
            SIZES | {"draft_vocab_size": V},
            {"head_type": "eagle3"},
            lambda ours: ours | idle,
        ),
        # nebius/EAGLE3-gpt-oss-20b; and yuhuili/EAGLE3-Vicuna1.3-13B's number of layers, the
        # target's, where it has one
        "upstream, YaRN": (
            SIZES | THETA | YARN | said | {"truncated_vocab_size": R, "num_hidden_layers": 40},
            THREE | THETA | YARN,
            dict,
        ),
        # yuhuili/EAGLE3-LLaMA3.3-Instruct-70B
        "upstream, another width": (SIZES | said | wide, THREE | wide | own, dict),
        # NVIDIA-NeMo/Automodel
        "specforge, NeMo": (
            SPECFORGE | THETA | nemo,
            THREE | THETA | own,
            lambda ours: {
                key if key in outside else f"model.{key}": tensor
                for key, tensor in numbered(ours).items()
            },
        ),
        "specforge, ModelOpt": (
            MODELOPT | THETA | LLAMA3 | two,
            THREE | THETA | LLAMA3 | ids | two,
            lambda ours: without(numbered(ours), "t2d"),
        ),
        # nvidia/Llama-4-Maverick-17B-128E-Eagle3, whose intermediate_size is an expert's; and the
        # norm of nvidia/gpt-oss-120b-Eagle3-v3
        "specforge, Llama 4": (
            MODELOPT | pre_fc | {"model_type": "llama4_text", "intermediate_size_mlp": 29},
            THREE | ids | {"norm_before_fc": True, "intermediate_size": 29},
            lambda ours: {key.replace(".mlp.", ".feed_forward."): t for key, t in ours.items()},
        ),
        # nvidia/gpt-oss-120b-Eagle3-short-context
        "specforge, last state": (
            MODELOPT | {"draft_vocab_size": None, "eagle_config": no_aux},
            {"head_type": "eagle3", "own_lm_head": False} | no_aux,
            dict,
        ),
        # Dogacel/specdrift-gpt-oss-120b-eagle3
        "specforge, EAGLE-3.1": (
            SPECFORGE | eagle31 | {AUX: four},
            THREE | eagle31 | {"feature_layers": four},
            dict,
        ),
        "speculators, EAGLE-1": (
            SPECULATORS | spec1 | {"architectures": ["EagleSpeculator"]},
            THETA | {"own_lm_head": True},
            lambda ours: renamed(ours, {"fc.": "fusion_fc.", "layers.0.": "transformer."}),
        ),
        "speculators, q and k normed": (
            with_layer(SPECULATORS3, model_type="qwen3")
            | FLAGS
            | {AUX: AUX_IDS, "embed_requires_grad": True},
            THREE | THETA | ids | own | {"qk_norm": True},
            lambda ours: numbered(ours) | {"verifier_norm.weight": torch.ones(D)},
        ),
        "speculators, EAGLE-3.1": (
            with_layer(SPECULATORS3, attention_bias=True, **two) | FLAGS | spec31,
            THREE | THETA | spec31 | two | {"qkv_bias": True},
            lambda ours: numbered(ours) | biases,
        ),
    }


def save(folder: Path, config: dict, tensors: Tensors, kind: str = "safetensors") -> Path:
    """A head with its weights as "safetensors" or "bin"."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder

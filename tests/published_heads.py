"""EAGLE-3 heads as their publishers write them, at tiny size: config.json and weights by each
publisher's own names. Where these were looked up is said in results/published_heads.

Each is (config.json, weights, the same weights by upstream's names, what of the config the
reference reads, fields of HeadConfig that differ from SIZES). Sizes are those of head_files.py.
"""

import torch
from head_files import (
    SIZES,
    SPECFORGE,
    SPECULATORS3,
    TOKENS,
    D,
    R,
    V,
    draw,
    layer,
    renamed,
    vocabulary,
    with_layer,
)

AUX = "eagle_aux_hidden_state_layer_ids"
TOP = ("lm_head.weight", "d2t", "t2d")  # of NeMo's what has no "model." before it
WIDE = 36  # hidden size of a target whose head has D
Published = tuple[dict, dict, dict, dict, dict]


def tensors_of(
    *,
    layers: int = 1,
    qk_norm: bool = False,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    fused: int = 3,
    target: int = D,
    embedding: bool = False,
    rows: int = R,
    inner: int = SIZES["intermediate_size"],
) -> dict[str, torch.Tensor]:
    """A head by upstream's names; layers behind the first as vLLM names them. `fused` 0: no fc;
    `rows` 0: no lm_head."""
    sizes = SIZES | {"intermediate_size": inner}
    shapes = layer("midlayer", sizes, width=2 * D)
    shapes |= {f"midlayer.{name}.weight": (D,) for name in ("hidden_norm", "input_layernorm")}
    for i in range(1, layers):
        shapes |= layer(f"layers.{i}", sizes, width=D)
        shapes[f"layers.{i}.input_layernorm.weight"] = (D,)
    for name in ["midlayer", *(f"layers.{i}" for i in range(1, layers))] if qk_norm else []:
        size = D // sizes["num_attention_heads"]
        shapes |= {f"{name}.self_attn.{k}_norm.weight": (size,) for k in "qk"}
    shapes["norm.weight"] = (D,)
    optional = {
        "fc.weight": (D, fused * target) if fused else None,
        "input_norm.weight": (fused * target,) if norm_before_fc else None,
        "lm_head.weight": (rows, D) if rows else None,
        "embed_tokens.weight": (V, D) if embedding else None,
    }
    optional |= {f"fc_norm.{i}.weight": (target,) for i in range(fused if fc_norm else 0)}
    shapes |= {key: shape for key, shape in optional.items() if shape}
    return draw(shapes) | (vocabulary() if rows == R else {})


def inside(tensors: dict, old: str, new: str) -> dict[str, torch.Tensor]:
    """Tensors in whose names one part reads otherwise."""
    return {key.replace(old, new): tensor for key, tensor in tensors.items()}


def without(tensors: dict, *keys: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key not in keys}


THREE = {"head_type": "eagle3", "draft_vocab_size": R}
THETA = {"rope_theta": 500000.0}
LLAMA3 = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
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
# what speculators of 2026 writes into every config, true or false
FLAGS = {"norm_before_fc": False, "fc_norm": False, "norm_output": False}
FLAGS |= {"embed_requires_grad": False, "target_hidden_size": None}


def published() -> dict[str, Published]:
    """By a name that begins with the layout's."""
    plain, normed = tensors_of(), tensors_of(qk_norm=True)
    two, fused = tensors_of(layers=2), tensors_of(fc_norm=True, fused=4)
    pre_fc, llama4 = tensors_of(norm_before_fc=True), tensors_of(inner=29)
    wide = tensors_of(target=WIDE, embedding=True)
    trained = tensors_of(embedding=True)
    last = without(tensors_of(fused=0, rows=0))
    numbered = {"midlayer.": "layers.0."}
    ids = {"feature_layers": (2, 16, 29)}
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn = {"rope_scaling": yarn | {"original_max_position_embeddings": 16, "truncate": False}}
    named = {"architectures": ["Eagle3LlamaForCausalLM"], "target_model_type": "qwen3"}
    return {
        # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
        "upstream": (SIZES | {"draft_vocab_size": R}, plain, plain, {}, THREE),
        # nebius/EAGLE3-gpt-oss-20b
        "upstream, YaRN": (
            SIZES | THETA | yarn | {"draft_vocab_size": R, "truncated_vocab_size": R},
            plain,
            plain,
            yarn,
            THREE | THETA | yarn,
        ),
        # AngelSlim/Qwen3-8B_eagle3
        "specforge, AngelSlim": (
            SPECFORGE | named | THETA,
            trained,
            trained,
            THETA,
            THREE | THETA | {"own_embedding": True},
        ),
        # NVIDIA-NeMo/Automodel, LlamaEagle3DraftModel
        "specforge, NeMo": (
            SPECFORGE | {"architectures": ["LlamaEagle3DraftModel"], "num_aux_hidden_states": 3},
            {
                key if key in TOP else f"model.{key}": tensor
                for key, tensor in renamed(trained, numbered).items()
            },
            trained,
            {},
            THREE | {"own_embedding": True},
        ),
        # SpecForge's configs/gpt-oss-20B-eagle3-dense.json: a dense layer, whatever its type says
        "specforge, gpt-oss": (
            SPECFORGE
            | {"model_type": "gpt_oss", "num_local_experts": 16, "experts_per_token": 4}
            | {"eagle_config": {AUX: [1, 11, 21]}},
            plain,
            plain,
            {},
            THREE | {"feature_layers": (2, 12, 22)},
        ),
        # yuhuili/EAGLE3-LLaMA3.3-Instruct-70B: another width than the target's
        "upstream, another width": (
            SIZES | {"draft_vocab_size": R, "target_hidden_size": WIDE},
            wide,
            wide,
            {},
            THREE | {"target_hidden_size": WIDE, "own_embedding": True},
        ),
        # yuhuili/EAGLE3-Vicuna1.3-13B: the target's number of layers, and one layer
        "upstream, 40 layers named": (
            SIZES | {"draft_vocab_size": R, "num_hidden_layers": 40},
            plain,
            plain,
            {},
            THREE,
        ),
        "specforge, ModelOpt": (
            MODELOPT | THETA | LLAMA3,
            without(plain, "t2d"),
            plain,
            THETA | LLAMA3,
            THREE | THETA | LLAMA3 | ids,
        ),
        "specforge, ModelOpt of 2026": (
            MODELOPT | {"num_hidden_layers": 2},
            without(renamed(two, numbered), "t2d"),
            two,
            {"num_hidden_layers": 2},
            THREE | ids | {"num_hidden_layers": 2},
        ),
        # nvidia/Llama-4-Maverick-17B-128E-Eagle3: intermediate_size is an expert's there
        "specforge, Llama 4": (
            MODELOPT | {"model_type": "llama4_text", "intermediate_size_mlp": 29},
            inside(llama4, ".mlp.", ".feed_forward."),
            llama4,
            {},
            THREE | ids | {"intermediate_size": 29},
        ),
        # nvidia/gpt-oss-120b-Eagle3-v3 but for its layers
        "specforge, norm before fc": (
            MODELOPT | {"eagle_config": MODELOPT["eagle_config"] | {"norm_before_fc": True}},
            pre_fc,
            pre_fc,
            {},
            THREE | ids | {"norm_before_fc": True},
        ),
        # nvidia/gpt-oss-120b-Eagle3-short-context
        "specforge, last state": (
            MODELOPT | {"draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": False}},
            last,
            last,
            {},
            {"head_type": "eagle3", "use_aux_hidden_state": False, "own_lm_head": False},
        ),
        # Dogacel/specdrift-gpt-oss-120b-eagle3, EAGLE-3.1
        "specforge, EAGLE-3.1": (
            SPECFORGE | {"fc_norm": True, "norm_output": True, AUX: [1, 8, 16, 29]},
            fused,
            fused,
            {"norm_output": True},
            THREE | {"fc_norm": True, "norm_output": True, "feature_layers": (1, 8, 16, 29)},
        ),
        "specforge, q and k normed": (
            SPECFORGE | {"model_type": "qwen3"},
            normed,
            normed,
            {},
            THREE | {"qk_norm": True},
        ),
        "speculators, q and k normed": (
            with_layer(SPECULATORS3, model_type="qwen3") | FLAGS | {AUX: [2, 16, 29]},
            renamed(normed, numbered),
            normed,
            THETA,
            THREE | THETA | ids | {"qk_norm": True},
        ),
        "speculators, EAGLE-3.1": (
            with_layer(SPECULATORS3, model_type="llama", num_hidden_layers=2)
            | FLAGS
            | {"norm_before_fc": True, "norm_output": True, "norm_before_residual": True},
            renamed(tensors_of(layers=2, norm_before_fc=True), numbered),
            tensors_of(layers=2, norm_before_fc=True),
            THETA | {"norm_output": True, "norm_before_residual": True, "num_hidden_layers": 2},
            THREE
            | THETA
            | {"norm_output": True, "norm_before_residual": True, "norm_before_fc": True}
            | {"num_hidden_layers": 2},
        ),
        "speculators, its own embedding": (
            SPECULATORS3 | FLAGS | {"embed_requires_grad": True},
            renamed(trained, numbered),
            trained,
            THETA,
            THREE | THETA | {"own_embedding": True},
        ),
    }


assert len(TOKENS) == R

"""Draft heads as published, written out by hand at tiny size: config.json and weights under each
publisher's own names, and their files. None is written by the writer under test. Where they were
looked up is said in eagle_fsd/heads/layouts.py and results/published_heads.

Sizes: D hidden, M intermediate, V vocabulary, R draft vocabulary; 6 heads of 4 channels, 2 for
keys and values.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

AUX = "eagle_aux_hidden_state_layer_ids"
FREQUENCIES = "layers.0.self_attn.rotary_emb.inv_freq"
D, M, V, R = 24, 37, 41, 11
WIDE = 36  # hidden size of a target whose head has D
SIZES = {
    "hidden_size": D,
    "intermediate_size": M,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": V,
}
TOKENS = torch.tensor([1, 2, 5, 7, 8, 13, 20, 21, 30, 39, 40])  # the draft vocabulary
Tensors = dict[str, torch.Tensor]


class TargetShape:
    """What load_head asks of a target's config."""

    vocab_size, num_hidden_layers = V, 32

    def __init__(self, hidden_size: int = D):
        self.hidden_size = hidden_size


# --- weights by upstream's names ------------------------------------------------------------------


def layer(name: str, config: dict, *, width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a Llama layer whose q, k and v read rows of `width`."""
    D, M, heads = (config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads"))
    kv = D // heads * config.get("num_key_value_heads", heads)
    rows = {"q": D, "k": kv, "v": kv}
    shapes = {f"{name}.self_attn.{k}_proj.weight": (rows[k], width) for k in rows}
    if config.get("qkv_bias"):
        shapes |= {f"{name}.self_attn.{k}_proj.bias": (rows[k],) for k in rows}
    if config.get("qk_norm"):
        shapes |= {f"{name}.self_attn.{k}_norm.weight": (D // heads,) for k in "qk"}
    return shapes | {
        f"{name}.self_attn.o_proj.weight": (D, D),
        f"{name}.mlp.gate_proj.weight": (M, D),
        f"{name}.mlp.up_proj.weight": (M, D),
        f"{name}.mlp.down_proj.weight": (D, M),
        f"{name}.post_attention_layernorm.weight": (D,),
    }


def draw(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        key: torch.randn(shape, generator=generator) * (1.5 / shape[-1] ** 0.5)
        for key, shape in shapes.items()
    }


def eagle_tensors(config: dict = SIZES) -> Tensors:
    """An EAGLE-1/2 head."""
    D = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, 2 * D)}
    if config.get("bias", True):
        shapes["fc.bias"] = (D,)
    for i in range(config.get("num_hidden_layers", 1)):
        shapes |= layer(f"layers.{i}", config, width=D)
        if i:  # only the first goes without
            shapes[f"layers.{i}.input_layernorm.weight"] = (D,)
    return draw(shapes)


def eagle3_tensors(
    *,
    layers: int = 1,
    norm_before_fc: bool = False,
    fc_norm: bool = False,
    fused: int = 3,
    target: int = D,
    embedding: bool = False,
    rows: int = R,
    **changes,
) -> Tensors:
    """An EAGLE-3 head of SIZES and these changes; layers behind the first as vLLM names them.
    `fused` 0: no fc; `rows` 0: no lm_head."""
    sizes = SIZES | changes
    shapes = layer("midlayer", sizes, width=2 * D)
    shapes |= {f"midlayer.{name}.weight": (D,) for name in ("hidden_norm", "input_layernorm")}
    for i in range(1, layers):
        shapes |= layer(f"layers.{i}", sizes, width=D)
        shapes[f"layers.{i}.input_layernorm.weight"] = (D,)
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


def vocabulary() -> Tensors:
    """d2t and t2d of TOKENS."""
    marked = torch.zeros(V, dtype=torch.bool)
    marked[TOKENS] = True
    return {"d2t": TOKENS - torch.arange(R), "t2d": marked}


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

NUMBERED = {"midlayer.": "layers.0."}
THETA = {"rope_theta": 500000.0}
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
    | {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 4, "rope_theta": 500000.0}
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


Published = tuple[dict, Tensors, Tensors, dict]


def published() -> dict[str, Published]:
    """(config.json, weights, the same weights by upstream's names, fields of HeadConfig that differ
    from SIZES), by a name that begins with the layout's."""
    return {f"upstream, {name}": head for name, head in _upstream().items()} | {
        f"{layout}, {name}": (values, theirs, ours, {"head_type": "eagle3"} | fields)
        for layout, heads in (("specforge", _specforge()), ("speculators", _speculators()))
        for name, (values, theirs, ours, fields) in heads.items()
    }


def _upstream() -> dict[str, Published]:
    eagle, plain, full = eagle_tensors(), eagle3_tensors(), eagle3_tensors(rows=V)
    own = {"embed_tokens.weight": torch.ones(V, D)}
    wide = eagle3_tensors(target=WIDE, embedding=True)
    qwen2, d2t = {"qkv_bias": True, "bias": False}, {"d2t": plain["d2t"]}
    said, three = {"draft_vocab_size": R}, {"head_type": "eagle3", "draft_vocab_size": R}
    # of 4 channels, rounded; frequencies of an older file were refused once
    older = {FREQUENCIES: torch.tensor([1.0, 0.01]).half()}
    idle = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.zeros(V, dtype=torch.bool)}
    return {
        "EAGLE-2": (SIZES, eagle | own | older, eagle | own, {"own_embedding": True}),
        "Qwen2": (SIZES | qwen2, eagle_tensors(SIZES | qwen2), eagle_tensors(SIZES | qwen2), qwen2),
        "ours": (SIZES | said | {"head_type": "eagle"}, eagle | d2t, eagle | d2t, said),
        # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
        "EAGLE-3": (SIZES | said, plain, plain, three),
        "all tokens": (
            SIZES | {"draft_vocab_size": V},
            full | idle,
            full,
            {"head_type": "eagle3"},
        ),
        # nebius/EAGLE3-gpt-oss-20b
        "YaRN": (
            SIZES | THETA | YARN | said | {"truncated_vocab_size": R},
            plain,
            plain,
            three | THETA | YARN,
        ),
        # yuhuili/EAGLE3-LLaMA3.3-Instruct-70B: another width than the target's
        "another width": (
            SIZES | said | {"target_hidden_size": WIDE},
            wide,
            wide,
            three | {"target_hidden_size": WIDE, "own_embedding": True},
        ),
        # yuhuili/EAGLE3-Vicuna1.3-13B: the target's number of layers, and one layer
        "40 layers named": (SIZES | said | {"num_hidden_layers": 40}, plain, plain, three),
    }


def _specforge() -> dict[str, Published]:
    plain, normed = eagle3_tensors(), eagle3_tensors(qk_norm=True)
    two, fused = eagle3_tensors(layers=2), eagle3_tensors(fc_norm=True, fused=4)
    pre_fc, llama4 = eagle3_tensors(norm_before_fc=True), eagle3_tensors(intermediate_size=29)
    trained = eagle3_tensors(embedding=True)
    last = eagle3_tensors(fused=0, rows=0)
    three, own = {"draft_vocab_size": R}, {"own_embedding": True}
    ids = three | {"feature_layers": (2, 16, 29)}
    outside = ("lm_head.weight", "d2t", "t2d")  # of NeMo's what has no "model." before it
    nemo = renamed(trained, NUMBERED).items()
    nemo = {key if key in outside else f"model.{key}": tensor for key, tensor in nemo}
    # a dense layer, whatever its type says
    gpt_oss = {"model_type": "gpt_oss", "num_local_experts": 16, "experts_per_token": 4}
    eagle31 = {"fc_norm": True, "norm_output": True}
    no_aux = {"draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": False}}
    return {
        # AngelSlim/Qwen3-8B_eagle3
        "AngelSlim": (
            SPECFORGE | {"architectures": ["Eagle3LlamaForCausalLM"]} | THETA,
            trained,
            trained,
            three | THETA | own,
        ),
        # NVIDIA-NeMo/Automodel, LlamaEagle3DraftModel
        "NeMo": (
            SPECFORGE | {"architectures": ["LlamaEagle3DraftModel"], "num_aux_hidden_states": 3},
            nemo,
            trained,
            three | own,
        ),
        # SpecForge's configs/gpt-oss-20B-eagle3-dense.json
        "gpt-oss": (
            SPECFORGE | gpt_oss | {"eagle_config": {AUX: [1, 11, 21]}},
            plain,
            plain,
            three | {"feature_layers": (2, 12, 22)},
        ),
        "ModelOpt": (
            MODELOPT | THETA | LLAMA3,
            without(plain, "t2d"),
            plain,
            ids | THETA | LLAMA3,
        ),
        "ModelOpt of 2026": (
            MODELOPT | {"num_hidden_layers": 2},
            without(renamed(two, NUMBERED), "t2d"),
            two,
            ids | {"num_hidden_layers": 2},
        ),
        # nvidia/Llama-4-Maverick-17B-128E-Eagle3: intermediate_size is an expert's there
        "Llama 4": (
            MODELOPT | {"model_type": "llama4_text", "intermediate_size_mlp": 29},
            {key.replace(".mlp.", ".feed_forward."): tensor for key, tensor in llama4.items()},
            llama4,
            ids | {"intermediate_size": 29},
        ),
        # nvidia/gpt-oss-120b-Eagle3-v3 but for its layers
        "norm before fc": (
            MODELOPT | {"eagle_config": MODELOPT["eagle_config"] | {"norm_before_fc": True}},
            pre_fc,
            pre_fc,
            ids | {"norm_before_fc": True},
        ),
        # nvidia/gpt-oss-120b-Eagle3-short-context
        "last state": (
            MODELOPT | no_aux,
            last,
            last,
            {"use_aux_hidden_state": False, "own_lm_head": False},
        ),
        # Dogacel/specdrift-gpt-oss-120b-eagle3
        "EAGLE-3.1": (
            SPECFORGE | eagle31 | {AUX: [1, 8, 16, 29]},
            fused,
            fused,
            three | eagle31 | {"feature_layers": (1, 8, 16, 29)},
        ),
        "q and k normed": (
            SPECFORGE | {"model_type": "qwen3"},
            normed,
            normed,
            three | {"qk_norm": True},
        ),
    }


def _speculators() -> dict[str, Published]:
    eagle, normed = eagle_tensors(), eagle3_tensors(qk_norm=True)
    readout = {"lm_head.weight": torch.ones(V, D)}
    biased, trained = eagle3_tensors(qkv_bias=True), eagle3_tensors(embedding=True)
    two = eagle3_tensors(layers=2, norm_before_fc=True)
    said = {"norm_before_fc": True, "norm_output": True, "norm_before_residual": True}
    three, layers = THETA | {"draft_vocab_size": R}, {"num_hidden_layers": 2}
    return {
        "EAGLE-1": (
            SPECULATORS
            | {"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}
            | {"fusion_bias": True, "layernorms": False},
            renamed(eagle, {"fc.": "fusion_fc.", "layers.0.": "transformer."}) | readout,
            eagle | readout,
            THETA | {"head_type": "eagle", "own_lm_head": True},
        ),
        "biases": (
            with_layer(SPECULATORS3, attention_bias=True),
            renamed(biased, NUMBERED)
            | {"layers.0.self_attn.o_proj.bias": torch.zeros(D), "fc.bias": torch.zeros(D)},
            biased,
            three | {"qkv_bias": True},
        ),
        "q and k normed": (
            with_layer(SPECULATORS3, model_type="qwen3") | FLAGS | {AUX: [2, 16, 29]},
            renamed(normed, NUMBERED) | {"verifier_norm.weight": torch.ones(D)},
            normed,
            three | {"feature_layers": (2, 16, 29), "qk_norm": True},
        ),
        "EAGLE-3.1": (
            with_layer(SPECULATORS3, **layers) | FLAGS | said,
            renamed(two, NUMBERED),
            two,
            three | said | layers,
        ),
        "its own embedding": (
            SPECULATORS3 | FLAGS | {"embed_requires_grad": True},
            renamed(trained, NUMBERED),
            trained,
            three | {"own_embedding": True},
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

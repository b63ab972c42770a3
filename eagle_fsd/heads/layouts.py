"""config.json and names of the weights in every layout of draft heads, from and to ours.

    eagle_fsd    upstream's names; config.json says head_type and feature_layers (head_config.py);
                 an EAGLE-1/2 head may have d2t, which upstream has for EAGLE-3 alone
    upstream     SafeAILab/EAGLE: heads of EAGLE-1/2 and EAGLE-3 (cnets1.py, cnets.py)
    specforge    sgl-project/SpecForge, and ModelOpt alike: EAGLE-3 under upstream's names,
                 architecture LlamaForCausalLMEagle3 (specforge/modeling/draft/llama3_eagle.py)
    speculators  vllm-project/speculators (src/speculators/models/eagle.py, models/eagle3/): nested
                 config; "fusion_fc", "transformer." for EAGLE-1/2, "layers.0." for EAGLE-3

Fused layers are counted in two ways. Ours is an index into transformers' hidden_states: i is what
enters layer i; speculators and vLLM count alike. SpecForge's i is what leaves layer i, our i + 1.
Without ids all mean 2, n // 2 and n - 3. The files themselves are read and written in files.py.
"""

from collections.abc import Callable

import torch

from eagle_fsd.config import BadInput
from eagle_fsd.heads.head_config import HeadConfig

Shapes = dict[str, tuple[int, ...]]
Verifier = tuple[str, list[str]]  # the target's name and architectures
# what our names begin with -> what theirs do
RENAMES = {
    ("speculators", "eagle"): {"fc.": "fusion_fc.", "layers.0.": "transformer."},
    ("speculators", "eagle3"): {"midlayer.": "layers.0."},
}
# settings (refused where they are true) and modules of heads that do not run here
STRANGERS = {
    "EAGLE-3.1": ("fc_norm", "norm_output", "norm_before_fc", "input_norm"),
    "attention with norms, as Qwen3": ("q_norm", "k_norm"),
    "a HASS variant with layernorms": (
        "layernorms",
        *("embed_layernorm", "hidden_layernorm", "lm_head_layernorm"),
        *("embedding_layernorm", "pre_lm_head_layernorm"),
    ),
    "biases in the MLP": ("mlp_bias",),
    "P-EAGLE": ("parallel_drafting",),
}
FUSED_IDS = "eagle_aux_hidden_state_layer_ids"


def stranger(name: str) -> str:
    """What has a setting or module of this name, if it does not run here; else empty."""
    return next((meaning for meaning, names in STRANGERS.items() if name in names), "")


def name_in_file(key: str, layout: str, config: HeadConfig) -> str:
    """The layout's name for a weight of ours."""
    for ours, theirs in RENAMES.get((layout, config.head_type), {}).items():
        if key.startswith(ours):
            return theirs + key.removeprefix(ours)
    return key


def optional_shapes(layout: str, config: HeadConfig) -> Shapes:
    """What a file may hold that changes nothing: the target's own, zero biases, ids as they are."""
    D, V = config.hidden_size, config.vocab_size
    optional: Shapes = {"embed_tokens.weight": (V, D)}
    if config.eagle3 and not config.draft_vocab_size:
        optional |= {"d2t": (V,), "t2d": (V,)}
    if layout == "speculators" and config.eagle3:
        optional["fc.bias"] = (D,)  # its first version had one
    elif layout == "speculators":
        optional["lm_head.weight"] = (V, D)
    return optional | {key: tuple(t.shape) for key, t in additions(layout, config).items()}


def additions(layout: str, config: HeadConfig) -> dict[str, torch.Tensor]:
    """Tensors that a layout has and ours has not; they change nothing."""
    if layout == "speculators" and config.qkv_bias:  # its attention has all four biases or none
        layer = "layers.0" if config.eagle3 else "transformer"
        return {f"{layer}.self_attn.o_proj.bias": torch.zeros(config.hidden_size)}
    if layout == "specforge" and not config.draft_vocab_size:  # its buffers are always there
        V = config.vocab_size
        return {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    return {}


def layout_of(values: dict) -> str:
    """The layout that a config.json is of."""
    if "speculators_model_type" in values or "speculators_config" in values:
        return "speculators"
    if "head_type" in values:
        return "eagle_fsd"
    return "specforge" if "Eagle3" in str(values.get("architectures")) else "upstream"


def _read_upstream(values: dict) -> tuple[dict, list[str]]:
    """Ours and upstream's config.json, to which others may have added fused layers."""
    ids = values.get(FUSED_IDS)
    if not ids or values.get("feature_layers"):
        return values, []
    note = f"fused layers {ids} taken as vLLM counts them: i is what enters layer i"
    return values | {"feature_layers": ids}, [note]


def _read_specforge(values: dict) -> tuple[dict, list[str]]:
    names, extra = values["architectures"], values.get("eagle_config") or {}
    if "Llama" not in str(names):
        raise BadInput(f"architectures {names}: EAGLE-3 heads have a Llama layer")
    if not extra.get("use_aux_hidden_state", True):
        raise BadInput(f"eagle_config {extra!r}: three fused layers are needed")
    if values.get("norm_output") is False:
        raise BadInput(
            "norm_output false: SpecForge 0.2 means that no norm comes before lm_head, SGLang and "
            "vLLM mean the usual head; drop it if it is the usual one"
        )
    values = values | {"head_type": "eagle3"}
    ids = extra.get(FUSED_IDS)
    if not ids or values.get("feature_layers"):
        return _read_upstream(values)
    if ids[0] == 2:  # sgl-project/sglang pull request 25454 tells the two ways apart so
        note = f"fused layers {ids} begin with 2: assumed that i is what enters layer i"
        return values | {"feature_layers": ids}, [note]
    ours = [i + 1 for i in ids]
    sure = "" if ids[0] == 1 else "assumed, as SpecForge trains: "
    note = f"fused layers {ids}: {sure}i is what leaves layer i, hidden states {ours}"
    return values | {"feature_layers": ours}, [note]


def _read_speculators(values: dict) -> tuple[dict, list[str]]:
    kind, layer = values.get("speculators_model_type"), values.get("transformer_layer_config")
    if kind not in ("eagle", "eagle3"):
        raise BadInput(f"speculators_model_type {kind!r}: eagle and eagle3 are supported")
    if not isinstance(layer, dict):
        raise BadInput("no transformer_layer_config")
    model_type, layer_types = layer.get("model_type", "llama"), layer.get("layer_types") or []
    if model_type != "llama":
        raise BadInput(f"transformer_layer_config of {model_type!r}: a llama layer is supported")
    if any(name != "full_attention" for name in layer_types):
        raise BadInput(f"layer_types {layer_types}: full_attention is needed")
    flat = dict(layer, head_type=kind, qkv_bias=bool(layer.get("attention_bias")))
    if kind == "eagle":
        name = values.get("transformer_layer_architecture", "LlamaDecoderLayer")
        channels, heads = layer.get("head_dim"), layer.get("num_attention_heads", 0)
        wide = channels and channels * heads != layer.get("hidden_size")
        if wide or name != "LlamaDecoderLayer":
            raise BadInput(
                f"{name} with head_dim {channels}: a LlamaDecoderLayer with hidden_size / "
                "num_attention_heads is needed"
            )
        return flat | {"bias": bool(values.get("fusion_bias")), "num_hidden_layers": 1}, []
    if not isinstance(values.get("norm_before_residual"), bool):
        raise BadInput(
            "no norm_before_residual: speculators takes false for it, vLLM true; write into it "
            "what the head was trained with"
        )
    flat |= {key: values.get(key) for key in ("norm_before_residual", "draft_vocab_size")}
    ids = values.get(FUSED_IDS)
    if not ids:
        return flat, []
    notes = [f"fused layers {ids}: i is what enters layer i, as vLLM counts"]
    if ids[0] == 1:
        notes.append("they begin with 1, as SpecForge's do; if copied from there, add 1 to all")
    return flat | {"feature_layers": ids}, notes


def _write_ours(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    return config.to_json(), []


def _write_upstream(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    _refuse(
        "upstream",
        norm_before_residual=config.norm_before_residual,
        rope_scaling_llama3=(config.rope_scaling or {}).get("type") == "llama3",
        qkv_bias=config.eagle3 and config.qkv_bias,
    )
    left_out = {"head_type"} if config.eagle3 else {"head_type", "draft_vocab_size"}
    values = {key: value for key, value in config.to_json().items() if key not in left_out}
    notes = [
        "upstream reads hidden states 2, n // 2 and n - 3 of n layers whatever config.json says; "
        f"this head was trained on {list(config.feature_layers)}"
    ]
    values["architectures"] = ["LlamaForCausalLM"]
    return values, notes if config.feature_layers else []


def _write_specforge(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    _refuse(
        "specforge",
        head_type_eagle=not config.eagle3,
        norm_before_residual=config.norm_before_residual,
        qkv_bias=config.qkv_bias,
        feature_layer_0=0 in config.feature_layers,
    )
    values = config.to_json() | {
        "head_dim": config.channels,
        "rope_scaling": config.llama_rope_scaling(),
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    del values["head_type"]
    if not config.feature_layers:
        return values, []
    ids = [layer - 1 for layer in config.feature_layers]  # what leaves layer i
    values["eagle_config"] = {FUSED_IDS: ids, "use_aux_hidden_state": True}
    return values, [f"fused layers written as {ids}: what leaves layer i"]


def _write_speculators(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    _refuse("speculators", several_layers=config.num_hidden_layers > 1)
    name, architectures = verifier
    values = {
        "speculators_model_type": config.head_type,
        "speculators_config": {
            "algorithm": config.head_type,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": name or None, "architectures": architectures},
        },
        "transformer_layer_config": config.llama_layer()
        | {
            "model_type": "llama",
            "rope_theta": config.rope_theta,
            "rope_scaling": config.llama_rope_scaling(),
            "mlp_bias": False,
            "tie_word_embeddings": False,
        },
    }
    if config.eagle3:
        values |= {
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
            "norm_before_residual": config.norm_before_residual,
            FUSED_IDS: list(config.feature_layers) or None,
        }
    else:
        values |= {
            "architectures": ["EagleSpeculator"],
            "fusion_bias": config.bias,
            "layernorms": False,
            "transformer_layer_architecture": "LlamaDecoderLayer",
        }
    notes = [] if name else ["no verifier named: speculators and vLLM want the target's name"]
    return values, notes


def _refuse(layout: str, **settings: bool) -> None:
    found = [name for name, present in settings.items() if present]
    if found:
        raise BadInput(f"{layout} has no heads with {', '.join(found)}")


Reader = Callable[[dict], tuple[dict, list[str]]]  # config.json -> ours, notes
Writer = Callable[[HeadConfig, Verifier], tuple[dict, list[str]]]
LAYOUTS: dict[str, tuple[Reader, Writer]] = {
    "eagle_fsd": (_read_upstream, _write_ours),
    "upstream": (_read_upstream, _write_upstream),
    "speculators": (_read_speculators, _write_speculators),
    "specforge": (_read_specforge, _write_specforge),
}

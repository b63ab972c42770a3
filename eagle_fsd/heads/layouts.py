"""config.json and keys of draft heads in other projects' layouts, from and to ours.

    eagle_fsd    upstream's keys (head_config.py); config.json says head_type and feature_layers
    upstream     SafeAILab/EAGLE: heads of EAGLE-1/2 and EAGLE-3 (cnets1.py, cnets.py)
    specforge    sgl-project/SpecForge, and ModelOpt alike: EAGLE-3 under upstream's keys,
                 architecture LlamaForCausalLMEagle3 (specforge/modeling/draft/llama3_eagle.py)
    speculators  vllm-project/speculators (src/speculators/models/eagle.py, models/eagle3/): nested
                 config; "fusion_fc", "transformer." for EAGLE-1/2, "layers.0." for EAGLE-3

Fused layers are counted in two ways. Ours is an index into transformers' hidden_states: i is what
enters layer i; speculators and vLLM count alike. SpecForge's i is what leaves layer i, our i + 1.
Without ids all mean 2, n // 2 and n - 3. Files are read and written in formats.py.
"""

from collections.abc import Callable

import torch

from eagle_fsd.heads.files import Shapes
from eagle_fsd.heads.head_config import HeadConfig

Verifier = tuple[str, list[str]]  # the target's name and architectures
# what our keys begin with -> what theirs do
RENAMES = {
    ("speculators", "eagle"): {"fc.": "fusion_fc.", "layers.0.": "transformer."},
    ("speculators", "eagle3"): {"midlayer.": "layers.0."},
}
# settings of later architectures, refused where they are true
REFUSED = {
    "fc_norm": "EAGLE-3.1",
    "norm_output": "EAGLE-3.1",
    "norm_before_fc": "EAGLE-3.1",
    "layernorms": "a HASS variant with layernorms",
    "mlp_bias": "biases in the MLP",
    "parallel_drafting": "P-EAGLE",
}


def file_keys(layout: str, config: HeadConfig) -> dict[str, str]:
    """From each of our keys to the layout's."""
    renames = RENAMES.get((layout, config.head_type), {})
    names = {}
    for key in config.shapes():
        ours = next((ours for ours in renames if key.startswith(ours)), "")
        names[key] = renames.get(ours, "") + key.removeprefix(ours)
    return names


def optional_shapes(layout: str, config: HeadConfig) -> Shapes:
    """Keys that a file may hold and that say nothing: the target's own, and biases of zeros."""
    D, optional = config.hidden_size, config.optional_shapes()
    if layout == "speculators":
        if config.eagle3:
            optional["fc.bias"] = (D,)  # its first version had one
        else:
            optional["lm_head.weight"] = (config.vocab_size, D)
        if config.qkv_bias:
            optional[_output_bias(config)] = (D,)
    return optional


def additions(layout: str, config: HeadConfig, *, like: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors that a layout has and ours has not; they change nothing."""
    if layout == "speculators" and config.qkv_bias:  # its attention has all four biases or none
        return {_output_bias(config): like.new_zeros(config.hidden_size)}
    if layout == "specforge" and not config.draft_vocab_size:  # its buffers are always there
        V = config.vocab_size
        return {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    return {}


def _output_bias(config: HeadConfig) -> str:
    return ("layers.0." if config.eagle3 else "transformer.") + "self_attn.o_proj.bias"


def layout_of(values: dict, source: str) -> str:
    kind = values.get("speculators_model_type")
    if kind is not None or "speculators_config" in values:
        if kind not in ("eagle", "eagle3"):
            raise ValueError(
                f"{source} says speculators_model_type {kind!r}: eagle and eagle3 are supported"
            )
        return "speculators"
    if "head_type" in values:
        return "eagle_fsd"
    names = str(values.get("architectures") or "")
    if "Eagle3" not in names:
        return "upstream"
    if "Llama" not in names:
        raise ValueError(f"{source} says architectures {names}: EAGLE-3 heads have a Llama layer")
    return "specforge"


def _read_upstream(values: dict, source: str) -> tuple[dict, list[str]]:
    """Ours and upstream's config.json, to which others may have added fused layers."""
    ids = values.get("eagle_aux_hidden_state_layer_ids")
    if not ids or values.get("feature_layers"):
        return values, []
    note = f"fused layers {ids} taken as vLLM counts them: i is what enters layer i"
    return values | {"feature_layers": _three(ids, source)}, [note]


def _read_specforge(values: dict, source: str) -> tuple[dict, list[str]]:
    values = values | {"head_type": "eagle3"}
    extra = values.get("eagle_config") or {}
    if not isinstance(extra, dict) or not extra.get("use_aux_hidden_state", True):
        raise ValueError(f"{source} says eagle_config {extra!r}: three fused layers are needed")
    if values.get("norm_output") is False:
        raise ValueError(
            f"{source} says norm_output false: SpecForge 0.2 means that no norm comes before "
            "lm_head, SGLang and vLLM mean the usual head; drop it if it is the usual one"
        )
    ids = extra.get("eagle_aux_hidden_state_layer_ids")
    if not ids or values.get("feature_layers"):
        return _read_upstream(values, source)
    ids = _three(ids, source)
    if ids[0] == 2:  # sgl-project/sglang pull request 25454 tells the two ways apart so
        note = f"fused layers {ids} begin with 2: assumed that i is what enters layer i"
        return values | {"feature_layers": ids}, [note]
    ours = [i + 1 for i in ids]
    sure = "" if ids[0] == 1 else "assumed, as SpecForge trains: "
    note = f"fused layers {ids}: {sure}i is what leaves layer i, hidden states {ours}"
    return values | {"feature_layers": ours}, [note]


def _read_speculators(values: dict, source: str) -> tuple[dict, list[str]]:
    kind, layer = values["speculators_model_type"], values.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise ValueError(f"{source} has no transformer_layer_config")
    if layer.get("model_type", "llama") != "llama":
        raise ValueError(
            f"{source} says transformer_layer_config model_type {layer['model_type']!r}: a llama "
            "layer is supported"
        )
    if any(name != "full_attention" for name in layer.get("layer_types") or []):
        raise ValueError(f"{source} says layer_types {layer['layer_types']}: full_attention needed")
    flat = dict(layer, head_type=kind, qkv_bias=bool(layer.get("attention_bias")))
    if kind == "eagle":
        architecture = values.get("transformer_layer_architecture", "LlamaDecoderLayer")
        D, heads = layer.get("hidden_size"), layer.get("num_attention_heads")
        if architecture != "LlamaDecoderLayer" or layer.get("head_dim") not in (None, D // heads):
            raise ValueError(
                f"{source} says {architecture} with head_dim {layer.get('head_dim')}: a "
                "LlamaDecoderLayer with hidden_size / num_attention_heads is needed"
            )
        return flat | {"bias": bool(values.get("fusion_bias")), "num_hidden_layers": 1}, []
    if not isinstance(values.get("norm_before_residual"), bool):
        raise ValueError(
            f"{source} does not say norm_before_residual: speculators takes false for it, vLLM "
            "true; write into it what the head was trained with"
        )
    flat["norm_before_residual"] = values["norm_before_residual"]
    flat["draft_vocab_size"] = values.get("draft_vocab_size")
    ids, notes = values.get("eagle_aux_hidden_state_layer_ids"), []
    if ids:
        flat["feature_layers"] = _three(ids, source)
        notes.append(f"fused layers {ids}: i is what enters layer i, as vLLM counts")
        if ids[0] == 1:
            notes.append("they begin with 1, as SpecForge's do; if copied from there, add 1 to all")
    return flat, notes


def _three(ids: list, source: str) -> list[int]:
    if not isinstance(ids, list) or len(ids) != 3 or not all(type(i) is int for i in ids):
        raise ValueError(f"{source} fuses layers {ids!r}: three whole numbers are needed")
    return ids


def _refuse(layout: str, **settings: bool) -> None:
    found = [name for name, present in settings.items() if present]
    if found:
        raise ValueError(f"{layout} has no heads with {', '.join(found)}")


def _write_ours(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    return config.to_json(), []


def _write_upstream(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    scaling = (config.rope_scaling or {}).get("type")
    _refuse(
        "upstream",
        norm_before_residual=config.norm_before_residual,
        rope_scaling_llama3=scaling == "llama3",
        qkv_bias=config.eagle3 and config.qkv_bias,
    )
    values = config.to_json() | {"architectures": ["LlamaForCausalLM"]}
    del values["head_type"]
    if not config.eagle3:
        values.pop("draft_vocab_size", None)
    elif config.feature_layers:
        return values, [
            f"upstream reads hidden states 2, n // 2 and n - 3 of n layers whatever config.json "
            f"says; this head was trained on {list(config.feature_layers)}"
        ]
    return values, []


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
        "rope_scaling": _as_transformers(config.rope_scaling),
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    del values["head_type"]
    if not config.feature_layers:
        return values, []
    ids = [layer - 1 for layer in config.feature_layers]  # what leaves layer i
    values["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    return values, [f"fused layers written as {ids}: what leaves layer i"]


def _write_speculators(config: HeadConfig, verifier: Verifier) -> tuple[dict, list[str]]:
    _refuse("speculators", several_layers=config.num_hidden_layers > 1)
    layer = {
        name: getattr(config, name)
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "num_hidden_layers",
            "vocab_size",
            "hidden_act",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
        )
    }
    layer |= {
        "model_type": "llama",
        "head_dim": config.channels,
        "rope_scaling": _as_transformers(config.rope_scaling),
        "attention_bias": config.qkv_bias,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    name, architectures = verifier
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5}
    values = {
        "speculators_model_type": config.head_type,
        "speculators_config": {
            "algorithm": config.head_type,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": name or None, "architectures": architectures},
        },
        "transformer_layer_config": layer,
    }
    notes = [] if name else ["no verifier named: speculators and vLLM want the target's name"]
    if not config.eagle3:
        own = {
            "architectures": ["EagleSpeculator"],
            "fusion_bias": config.bias,
            "layernorms": False,
        }
        return values | own | {"transformer_layer_architecture": "LlamaDecoderLayer"}, notes
    return values | {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "norm_before_residual": config.norm_before_residual,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers) or None,
    }, notes


def _as_transformers(scaling: dict | None) -> dict | None:
    """transformers says rope_type where upstream says type."""
    if scaling is None:
        return None
    return {"rope_type": scaling["type"], **{k: v for k, v in scaling.items() if k != "type"}}


Reader = Callable[[dict, str], tuple[dict, list[str]]]  # config.json, its name -> ours, notes
Writer = Callable[[HeadConfig, Verifier], tuple[dict, list[str]]]
LAYOUTS: dict[str, tuple[Reader, Writer]] = {
    "eagle_fsd": (_read_upstream, _write_ours),
    "upstream": (_read_upstream, _write_upstream),
    "speculators": (_read_speculators, _write_speculators),
    "specforge": (_read_specforge, _write_specforge),
}

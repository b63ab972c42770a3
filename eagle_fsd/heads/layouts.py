"""The layouts that heads are published in: config.json and names of weights, as ours and back.

    upstream     SafeAILab/EAGLE: heads of EAGLE-1/2 and EAGLE-3 (cnets1.py, cnets.py). Ours too,
                 with head_type, and d2t for EAGLE-1/2; SGLang and vLLM: docs/serve.md
    specforge    sgl-project/SpecForge, NVIDIA's ModelOpt and NeMo, AngelSlim: EAGLE-3 under
                 upstream's names or with "layers.0." for "midlayer.", of NeMo with "model." before
                 most; and an architecture with Eagle3 in its name
    speculators  vllm-project/speculators (src/speculators/models/eagle.py, models/eagle3/): nested
                 config; "fusion_fc", "transformer." for EAGLE-1/2, "layers.0." for EAGLE-3

All are read, upstream's is written; see results/published_heads.

Fused layers are counted in two ways. Ours is an index into transformers' hidden_states: i is what
enters layer i; speculators and vLLM count alike. SpecForge's and ModelOpt's i is what leaves layer
i, our i + 1. Without ids all mean 2, n // 2 and n - 3.
"""

from collections.abc import Iterable

from transformers import PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.families import ROPES, check_rope
from eagle_fsd.heads.head_config import HeadConfig

# what of a config.json is the head's: transformers' keys of any model are not
FIELDS = HeadConfig.__dataclass_fields__.keys() - PretrainedConfig.__dataclass_fields__.keys()
FIELDS |= {"rope_theta", "rope_scaling"}
FUSED_IDS = "eagle_aux_hidden_state_layer_ids"
# settings that NVIDIA's heads have in eagle_config; our name of each
NESTED = {
    "norm_before_fc": "norm_before_fc",
    "use_aux_hidden_state": "use_aux_hidden_state",
    "return_hidden_post_norm": "norm_output",
}
# What changes a head's forward and has no counterpart here, with the value that changes nothing,
# beside null: of HASS, P-EAGLE and latent attention, of TensorRT-LLM's head, of other families
UNSUPPORTED: dict[str, float | bool] = dict.fromkeys(
    "input_norm layernorms mlp_bias parallel_drafting kv_lora_rank eh_proj_before_attn"
    " use_mtp_layernorm use_sliding_window attention_sinks attn_logit_softcapping"
    " attn_temperature_tuning".split(),
    False,
)
UNSUPPORTED |= {"parallel_draft_step": 1, "partial_rotary_factor": 1}
UNSUPPORTED |= {"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True}
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
# what of a config.json says nothing of a head's forward, or is read by name below
IDLE = set(
    "architectures attn_implementation auto_map dtype eagle_config embed_requires_grad"
    " fusion_bias has_no_defaults_at_init intermediate_size_mlp layer_types max_window_layers"
    " model_type next_layer_regular num_aux_hidden_states return_hidden_post_norm"
    " speculators_config speculators_model_type speculators_version target_model_type torch_dtype"
    " transformer_layer_config transformers_version truncated_vocab_size _name_or_path".split()
)
# what a name begins with in a file -> what upstream's does: of speculators' EAGLE-1/2, and of every
# layout of EAGLE-3
RENAMES = {"fusion_fc.": "fc.", "transformer.": "layers.0."}
RENAMES3 = {"model.": "", "layers.0.": "midlayer."}
KNOWN = {*FIELDS, *NESTED, *UNSUPPORTED, *IDLE, *PretrainedConfig.__dataclass_fields__}
VLLM_CLASS = "EagleFsdLlamaForCausalLM"  # plugins/vllm registers it
# written where they are not what every reader takes for granted
OPTIONAL = ("qk_norm", "use_aux_hidden_state", "target_hidden_size", "norm_before_fc", "fc_norm")
OPTIONAL += ("norm_output", "own_embedding")


def renamed(keys: Iterable[str], layout: str, head_type: str) -> dict[str, str]:
    """Upstream's names of a file's weights, by the file's; of a weight that is there twice the
    second gets a name that no head has."""
    eagle3 = head_type == "eagle3"
    table = RENAMES3 if eagle3 else RENAMES if layout == "speculators" else {}
    names: dict[str, str] = {}
    for key in sorted(keys):
        name = key.replace(".feed_forward.", ".mlp.")  # as Llama 4 calls it
        for theirs, ours in table.items():
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
        names[key] = f"{name}, a second time" if name in names.values() else name
    return names


def read_config(values: dict, target_layers: int = 0) -> tuple[str, HeadConfig, list[str]]:
    """The layout of a config.json, its shape, and what was assumed, a sentence each. BadInput names
    a setting that cannot run here or is not there; what is no head's config raises anything of
    UNREADABLE (checkpoint.py). `target_layers` tells some ways to count layers apart."""
    ours, needed = "head_type" in values, SIZES
    # 1. The layout and the kind of head; speculators' nested config as one of upstream's.
    if "transformer_layer_config" in values:
        layout, layer = "speculators", values["transformer_layer_config"]
        values = layer | values | {"head_type": values["speculators_model_type"]}
        if values["head_type"] == "eagle":
            values |= {"bias": bool(values.get("fusion_bias")), "num_hidden_layers": 1}
        else:  # where it is absent, speculators takes false for it and vLLM true
            needed += ("norm_before_residual",)
    else:
        eagle3 = "eagle3" in str(values.get("architectures")).lower()
        layout = "specforge" if eagle3 and not ours else "upstream"
        # upstream's EAGLE-1/2 heads have no draft_vocab_size; ours do, beside head_type
        eagle3 |= "draft_vocab_size" in values
        values = {"head_type": "eagle3" if eagle3 else "eagle"} | values
    nested = values.get("eagle_config") or {}
    values = values | {NESTED[key]: nested[key] for key in NESTED if nested.get(key) is not None}
    # 2. What cannot run here, and what is not read.
    unread = _checked(values | nested, needed)
    # 3. Which hidden states are fused; and what else EAGLE-3's publishers say in other words.
    values["feature_layers"], notes = _fused_layers(values, nested, layout, target_layers)
    notes += unread
    if values["head_type"] == "eagle3":
        # without a draft vocabulary it may read the target's lm_head (sglang pull request 9739)
        values.setdefault("own_lm_head", values.get("draft_vocab_size") is not None)
        if values.get("embed_requires_grad"):
            values["own_embedding"] = True
        if values.get("model_type") == "llama4_text":  # whose intermediate_size is an expert's
            values["intermediate_size"] = values["intermediate_size_mlp"]
        layers = values.get("num_hidden_layers") or 1
        if layout == "upstream" and not ours and layers != 1:
            notes.append(
                f"num_hidden_layers {layers}: upstream's cnets.py has one layer all the same"
            )
            values["num_hidden_layers"] = 1
        if layout == "specforge" and values.get("norm_output") is not None:
            notes.append(
                f"norm_output {values['norm_output']}: read as SGLang and vLLM do; SpecForge before"
                " its pull request 879 (September 2026) meant the norm before the lm_head by it"
            )
    fields = {key: values[key] for key in FIELDS & values.keys() if values[key] is not None}
    return layout, HeadConfig(**fields), notes


def _checked(said: dict, needed: tuple[str, ...]) -> list[str]:
    """Refuse, by a BadInput, what cannot run here or is lacking; a sentence for each setting that
    is not known at all."""
    rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
    check_rope(rope, "the head", known=(*ROPES, "dynamic"))
    settings = rope | said
    faults = [
        f"{key} {settings[key]} is not supported"
        for key, idle in UNSUPPORTED.items()
        if settings.get(key) not in (None, idle)
    ]
    if types := sorted({*(said.get("layer_types") or ())} - {"full_attention"}):
        faults.append(f"{', '.join(types)} in layer_types is not supported")
    if missing := [key for key in needed if said.get(key) is None]:
        faults.append(f"no {', '.join(missing)}: write into it what the head was trained with")
    if faults:
        raise BadInput("; ".join(faults))
    unread = [key for key in sorted(said.keys() - KNOWN - {FUSED_IDS}) if said[key]]
    return [f"{key} {said[key]!r:.40} in config.json is not read" for key in unread]


def _fused_layers(
    values: dict, nested: dict, layout: str, target_layers: int
) -> tuple[list[int] | None, list[str]]:
    """Which hidden states a config.json names, as we count; and how its ids were read."""
    if values.get("feature_layers"):
        return values["feature_layers"], []
    if ids := values.get(FUSED_IDS):
        layers, counted = ids, "enters"  # as vLLM and speculators do
    elif ids := nested.get(FUSED_IDS):
        # by what leaves a layer, as SpecForge and ModelOpt do, but where 2 is the first (sglang
        # pull request 25454) or no layer has one of the numbers (nvidia/gpt-oss-120b-Eagle3-v3)
        entering = ids[0] == 2 or max(ids) == target_layers
        layers, counted = (ids, "enters") if entering else ([i + 1 for i in ids], "leaves")
    else:
        return None, []
    note = (
        f"fused layers {ids}: counted by what {counted} a layer, so hidden states {layers}; if "
        "others are meant, write those that enter a layer into config.json as feature_layers"
    )
    return layers, [] if layout == "upstream" else [note]


def unread_by(engine: str, config: HeadConfig) -> list[str]:
    """What keeps `engine`, "llama.cpp" or "vllm", from running such a head rightly, a phrase each
    (llama.cpp: conversion/llama.py and src/models/eagle3.cpp; vLLM: docs/serve.md)."""
    if engine == "llama.cpp" and not config.eagle3:
        return ["it is of EAGLE-1/2: train one with --head_type eagle3"]
    faults = {
        "biases of q, k and v": config.eagle3 and config.qkv_bias,
        "norms of q and k": config.qk_norm,
    }
    if engine == "llama.cpp":
        faults |= {
            f"{config.num_hidden_layers} layers, not one": config.num_hidden_layers != 1,
            f"{config.num_fused} fused hidden states, not three": config.num_fused != 3,
            "a norm for each fused hidden state": config.fc_norm,
            "a norm before its next step": config.norm_output,
        }
    return [f"it has {what}" for what, has in faults.items() if has]


def to_json(config: HeadConfig, reader: str = "") -> dict:
    """config.json that upstream, SGLang, vLLM, llama.cpp's converter and we read; of EAGLE-1/2
    there is another for `reader` "vllm", which SGLang cannot read."""
    name = "LlamaForCausalLMEagle3" if config.eagle3 else "LlamaForCausalLM"
    if config.bias:  # SGLang's EAGLE-1/2 head: vLLM's has no bias, and is found by a target's name
        name = "LlamaForCausalLMEagle"
    values = {key: value for key, value in config.to_dict().items() if key in FIELDS}
    values |= {"architectures": [name], "model_type": "llama"}
    rope = values.pop("rope_parameters")
    values["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":  # upstream and older readers want it as `type`
        values["rope_scaling"] = {"type": rope["rope_type"], **rope}
    if config.eagle3:  # upstream needs the key
        values["draft_vocab_size"] = config.draft_vocab_size or config.vocab_size
    if layers := values.pop("feature_layers"):
        values[FUSED_IDS] = layers  # as vLLM counts, and nested as SpecForge does
        values["eagle_config"] = {FUSED_IDS: [i - 1 for i in layers], "use_aux_hidden_state": True}
    if values["own_lm_head"] == config.eagle3:
        del values["own_lm_head"]
    for key in OPTIONAL:
        if values[key] == getattr(HeadConfig, key):
            del values[key]
    if reader == "vllm" and not config.eagle3:
        if config.bias or config.draft_vocab_size:
            values["architectures"] = [VLLM_CLASS]
        for key in ("bias", "attention_bias"):  # biases of o, which these heads never have
            if values.get(key):  # where bias is absent, fc has one
                del values[key]
    return {key: values[key] for key in sorted(values) if values[key] is not None}

"""config.json and names of the weights in the layouts of draft heads.

    upstream     SafeAILab/EAGLE: heads of EAGLE-1/2 and EAGLE-3 (cnets1.py, cnets.py). Ours too,
                 with head_type, and d2t for EAGLE-1/2; SGLang and vLLM load them
    specforge    sgl-project/SpecForge and ModelOpt: EAGLE-3 under upstream's names, architecture
                 LlamaForCausalLMEagle3 (specforge/modeling/draft/llama3_eagle.py)
    speculators  vllm-project/speculators (src/speculators/models/eagle.py, models/eagle3/): nested
                 config; "fusion_fc", "transformer." for EAGLE-1/2, "layers.0." for EAGLE-3

All are read, upstream's is written. Fused layers are counted in two ways. Ours is an index into
transformers' hidden_states: i is what enters layer i; speculators and vLLM count alike. SpecForge's
i is what leaves layer i, our i + 1. Without ids all mean 2, n // 2 and n - 3.
"""

from transformers import PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.heads.head_config import HeadConfig

# what speculators' names of weights begin with -> what upstream's do, by type
SPECULATORS = {
    "eagle": {"fusion_fc.": "fc.", "transformer.": "layers.0."},
    "eagle3": {"layers.0.": "midlayer."},
}
# what changes a head's forward and has no counterpart here: EAGLE-3.1, HASS, P-EAGLE, Qwen3's layer
UNSUPPORTED = ("fc_norm", "norm_output", "norm_before_fc", "input_norm", "layernorms", "mlp_bias")
UNSUPPORTED += ("parallel_drafting",)
FUSED_IDS = "eagle_aux_hidden_state_layer_ids"
# what of a config.json is the head's: transformers' keys of any model are not
FIELDS = HeadConfig.__dataclass_fields__.keys() - PretrainedConfig.__dataclass_fields__.keys()
FIELDS |= {"rope_theta", "rope_scaling"}


def read_config(values: dict) -> tuple[str, HeadConfig, list[str]]:
    """Read a config.json of any layout.

    Returns:
        The layout, the shape, and what was assumed, a sentence each.

    Raises:
        BadInput: a head that cannot run here; names the setting.
        StrictDataclassError, LookupError, TypeError, ...: something else than a head's config.
    """
    layer = values.get("transformer_layer_config")
    if layer:
        layout, notes = "speculators", []
        values = layer | _beside_layer(values)
        ids = values.get(FUSED_IDS)
        if ids:
            notes = [f"fused layers {ids}: if SpecForge counted them, add 1 to each"]
    else:
        ids, notes = _fused_layers(values)
        eagle3 = "Eagle3" in str(values.get("architectures"))
        layout = "specforge" if eagle3 and "head_type" not in values else "upstream"
        # upstream's EAGLE-1/2 heads have no draft_vocab_size; ours do, beside head_type
        eagle3 |= "draft_vocab_size" in values
        values = {"head_type": "eagle3" if eagle3 else "eagle"} | values
    for key in UNSUPPORTED:
        # norm_output false: no norm at all in SpecForge 0.2, the usual one in SGLang and vLLM
        if values.get(key) or (key == "norm_output" and key in values):
            raise BadInput(f"{key} {values[key]} is not supported")
    if "sliding_attention" in (values.get("layer_types") or ()):
        raise BadInput("layer_types with sliding_attention are not supported")
    values = {"feature_layers": ids} | values
    known = {key: values[key] for key in FIELDS & values.keys() if values[key] is not None}
    return layout, HeadConfig(**known), notes


def _beside_layer(values: dict) -> dict:
    """What speculators' config says beside the layer, in our terms."""
    kind = values["speculators_model_type"]
    if kind == "eagle":
        bias = bool(values.get("fusion_bias"))
        return values | {"head_type": kind, "bias": bias, "num_hidden_layers": 1}
    if not isinstance(values.get("norm_before_residual"), bool):
        raise BadInput(
            "no norm_before_residual: speculators takes false for it, vLLM true; write into it "
            "what the head was trained with"
        )
    return values | {"head_type": kind}


def _fused_layers(values: dict) -> tuple[list[int] | None, list[str]]:
    """The ids of vLLM, or of SpecForge as we count them, and what was assumed."""
    nested = (values.get("eagle_config") or {}).get(FUSED_IDS)
    if values.get(FUSED_IDS) or not nested:
        return values.get(FUSED_IDS), []
    # sgl-project/sglang pull request 25454 tells the two ways apart by the first id
    ids = nested if nested[0] == 2 else [i + 1 for i in nested]
    return ids, [f"fused layers {nested}: assumed that hidden states {ids} of the target are meant"]


def to_json(config: HeadConfig) -> dict:
    """config.json that upstream, SGLang, vLLM and we read."""
    name = "LlamaForCausalLMEagle3" if config.eagle3 else "LlamaForCausalLM"
    values = {key: value for key, value in config.to_dict().items() if key in FIELDS}
    values |= {"architectures": [name], "model_type": "llama"}
    scaling = values.pop("rope_parameters")
    values["rope_theta"] = scaling.pop("rope_theta")
    plain = scaling["rope_type"] == "default"
    # upstream and older readers want the type as `type`
    values["rope_scaling"] = None if plain else {"type": scaling["rope_type"], **scaling}
    if config.eagle3:  # upstream needs the key
        values["draft_vocab_size"] = config.draft_vocab_size or config.vocab_size
    if layers := values.pop("feature_layers"):
        values[FUSED_IDS] = layers  # as vLLM counts, and nested as SpecForge does
        values["eagle_config"] = {FUSED_IDS: [i - 1 for i in layers], "use_aux_hidden_state": True}
    return {key: values[key] for key in sorted(values) if values[key] is not None}

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

# what a layout's names of weights begin with -> what upstream's do
RENAMES = {
    ("speculators", "eagle"): {"fusion_fc.": "fc.", "transformer.": "layers.0."},
    ("speculators", "eagle3"): {"layers.0.": "midlayer."},
}
# what changes a head's forward and has no counterpart here: EAGLE-3.1, HASS, P-EAGLE, Qwen3's layer
UNSUPPORTED = ("fc_norm", "norm_output", "norm_before_fc", "input_norm", "layernorms", "mlp_bias")
UNSUPPORTED += ("parallel_drafting",)
FUSED_IDS = "eagle_aux_hidden_state_layer_ids"
# what of a config.json is the head's: transformers' keys of any model are not
FIELDS = HeadConfig.__dataclass_fields__.keys() - PretrainedConfig.__dataclass_fields__.keys()
FIELDS |= {"rope_theta", "rope_scaling"}


def renamed(key: str, layout: str, config: HeadConfig) -> str:
    """Upstream's name for a weight in a file of the layout."""
    for theirs, ours in RENAMES.get((layout, config.head_type), {}).items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    return key


def read_config(values: dict) -> tuple[str, HeadConfig, list[str]]:
    """The layout of a config.json, its shape, and what was assumed, a sentence each.

    Raises:
        BadInput: a head that cannot run here; names the setting.
        StrictDataclassError, LookupError, TypeError, ...: something else than a head's config.
    """
    notes, ids = [], values.get(FUSED_IDS)
    if "transformer_layer_config" in values:
        layout = "speculators"
        values = _flat(values)
        if ids:
            notes = [f"fused layers {ids}: if SpecForge counted them, add 1 to each"]
    else:
        eagle3 = "Eagle3" in str(values.get("architectures"))
        layout = "specforge" if eagle3 and "head_type" not in values else "upstream"
        left = (values.get("eagle_config") or {}).get(FUSED_IDS)
        if left and not ids:
            # sgl-project/sglang pull request 25454 tells the two ways apart by the first id
            ids = left if left[0] == 2 else [i + 1 for i in left]
            notes = [f"fused layers {left}: assumed that hidden states {ids} are meant"]
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


def _flat(values: dict) -> dict:
    """speculators' config as one of upstream's."""
    kind = values["speculators_model_type"]
    flat = values["transformer_layer_config"] | values | {"head_type": kind}
    if kind == "eagle":
        return flat | {"bias": bool(values.get("fusion_bias")), "num_hidden_layers": 1}
    if isinstance(values.get("norm_before_residual"), bool):
        return flat
    raise BadInput(
        "no norm_before_residual: speculators takes false for it, vLLM true; write into it what "
        "the head was trained with"
    )


def to_json(config: HeadConfig) -> dict:
    """config.json that upstream, SGLang, vLLM and we read."""
    name = "LlamaForCausalLMEagle3" if config.eagle3 else "LlamaForCausalLM"
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
    return {key: values[key] for key in sorted(values) if values[key] is not None}

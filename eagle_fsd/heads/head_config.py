"""The shape of a draft head, of a new one for a target or of a stored one in any layout.

    upstream     SafeAILab/EAGLE: heads of EAGLE-1/2 and EAGLE-3 (cnets1.py, cnets.py). Ours too,
                 with head_type, and d2t for EAGLE-1/2; SGLang and vLLM: docs/serve.md
    specforge    sgl-project/SpecForge and ModelOpt: EAGLE-3 under upstream's names, architecture
                 LlamaForCausalLMEagle3 (specforge/modeling/draft/llama3_eagle.py)
    speculators  vllm-project/speculators (src/speculators/models/eagle.py, models/eagle3/): nested
                 config; "fusion_fc", "transformer." for EAGLE-1/2, "layers.0." for EAGLE-3

All are read, upstream's is written. Fused layers are counted in two ways. Ours is an index into
transformers' hidden_states: i is what enters layer i; speculators and vLLM count alike. SpecForge's
i is what leaves layer i, our i + 1. Without ids all mean 2, n // 2 and n - 3.
"""

from collections.abc import Sequence

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, PretrainedConfig

from eagle_fsd.config import BadInput

# what families call the inner size of their MLPs, and the epsilon of their norms
INNER_SIZES = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
# what a layout's names of weights begin with -> what upstream's do
RENAMES = {
    ("speculators", "eagle"): {"fusion_fc.": "fc.", "transformer.": "layers.0."},
    ("speculators", "eagle3"): {"layers.0.": "midlayer."},
}
# what changes a head's forward and has no counterpart here: EAGLE-3.1, HASS, P-EAGLE, Qwen3's layer
UNSUPPORTED = ("fc_norm", "norm_output", "norm_before_fc", "input_norm", "layernorms", "mlp_bias")
UNSUPPORTED += ("parallel_drafting",)
FUSED_IDS = "eagle_aux_hidden_state_layer_ids"


@strict
class HeadConfig(LlamaConfig):
    """A Llama layer, which transformers checks, and what makes a head of it.

    Upstream's names and defaults (SafeAILab/EAGLE eagle/model/{cnets,cnets1,configs}.py), which are
    transformers' where both have one.

    Attributes:
        head_type: a name in models.HEAD_TYPES: "eagle" (EAGLE-1/2), "eagle3".
        bias: whether fc has one; EAGLE-3's has none.
        qkv_bias: biases on q, k and v (Qwen2 heads); none on o, as in attention_bias's layers.
        head_dim: channels of an attention head; EAGLE-3 only (upstream's EAGLE-1/2 ignores it).
        draft_vocab_size: tokens that the head can draft; None is the target's whole vocabulary.
        feature_layers: EAGLE-3: which hidden states of the target are fused; empty: see
            `fused_layers`.
        norm_before_residual: EAGLE-3: the residual starts at the normed hidden state, as in most
            heads that speculators trained; upstream and SpecForge have it never.
    """

    num_hidden_layers: int = 1
    bias: bool = True
    qkv_bias: bool = False
    head_type: str = "eagle"
    draft_vocab_size: int | None = None
    feature_layers: list[int] | tuple[int, ...] = ()
    norm_before_residual: bool = False

    def __post_init__(self, **further):
        self.feature_layers = tuple(self.feature_layers)
        if len(self.feature_layers) not in (0, 3):
            raise BadInput(f"a head fuses three layers, got {self.feature_layers}")
        self.qkv_bias = self.attention_bias = self.qkv_bias or self.attention_bias
        if self.head_type == "eagle":
            self.head_dim = None
        if self.eagle3:
            self.num_hidden_layers, self.bias = 1, False
            if self.draft_vocab_size == self.vocab_size:
                self.draft_vocab_size = None  # ids pass through: d2t and t2d say nothing
        super().__post_init__(**further)
        self.rope_parameters.pop("type", None)  # older files' name of rope_type
        self._attn_implementation = "sdpa"

    @property
    def eagle3(self) -> bool:
        return self.head_type == "eagle3"

    def fused_layers(self, target_layers: int) -> tuple[int, ...]:
        """Hidden states that the head reads: none but the last for EAGLE-1/2; upstream's choice
        for EAGLE-3 is 2, n // 2 and n - 3 of a target with n layers."""
        if not self.eagle3:
            return ()
        return self.feature_layers or (2, target_layers // 2, target_layers - 3)

    def check_fits(self, target_config: PretrainedConfig) -> None:
        """Refuse a head made for another target, by a BadInput that names both values."""
        for key in ("hidden_size", "vocab_size"):
            own, wanted = getattr(self, key), getattr(target_config, key)
            if own != wanted:
                raise BadInput(f"a head for another target: its {key} is {own}, not {wanted}")
        n = target_config.num_hidden_layers
        layers = self.fused_layers(n)
        if any(not 0 <= layer < n for layer in layers):
            raise BadInput(
                f"the head fuses hidden states {layers}; of a target with {n} layers it can be "
                f"0..{n - 1} (number {n}, after the last layer, is only there normed)"
            )


# what of a config.json is the head's: transformers' keys of any model are not
FIELDS = HeadConfig.__dataclass_fields__.keys() - PretrainedConfig.__dataclass_fields__.keys()
FIELDS |= {"rope_theta", "rope_scaling"}


def head_shape(
    target_config: PretrainedConfig, *, head_type: str, draft_vocab: int = 0
) -> HeadConfig:
    """A new head of one layer; `draft_vocab` 0 drafts all tokens of the target.

    It is a Llama layer of the target's hidden size, whatever the target's own layers are. What a
    Llama layer can have of theirs it has: their heads, their inner size, the norm's epsilon, the
    base of rotary positions. Where they have none, or none that fits, a head's size is 64 and the
    inner size four times the hidden size.

    Raises:
        BadInput: a target without a hidden size or a vocabulary, or with fewer tokens.
    """
    D, vocab_size = (_size(target_config, name) for name in ("hidden_size", "vocab_size"))
    if not D or not vocab_size:
        raise BadInput(
            f"no head can be shaped for {target_config.model_type!r}: its config has no hidden_size"
            " or no vocab_size"
        )
    if draft_vocab >= vocab_size:
        raise BadInput(
            f"draft_vocab {draft_vocab} must be less than the target's {vocab_size} tokens"
        )
    eagle3 = head_type == "eagle3"
    heads, size = _size(target_config, "num_attention_heads"), _size(target_config, "head_dim")
    if not heads or D % (2 * heads):  # rotary positions turn pairs of channels
        heads = next((n for n in range(D // 64, 1, -1) if D % (2 * n) == 0), 1)
        size = None
    groups = _size(target_config, "num_key_value_heads") or heads
    optional = {
        "rms_norm_eps": _first(target_config, EPSILONS),
        "max_position_embeddings": _size(target_config, "max_position_embeddings"),
        "hidden_act": _first(target_config, ("hidden_act", "hidden_activation")),
        # models with a base per layer type (Gemma 3) get the head's default
        "rope_theta": (getattr(target_config, "rope_parameters", None) or {}).get("rope_theta"),
    }
    return HeadConfig(
        hidden_size=D,
        vocab_size=vocab_size,
        intermediate_size=_size(target_config, *INNER_SIZES) or 4 * D,
        num_attention_heads=heads,
        num_key_value_heads=groups if heads % groups == 0 else heads,
        qkv_bias=target_config.model_type.startswith("qwen2"),
        head_type=head_type,
        head_dim=size if eagle3 else None,
        draft_vocab_size=draft_vocab or None,
        **{name: value for name, value in optional.items() if value},
    )


def _first(config: PretrainedConfig, names: Sequence[str]) -> object:
    """The first of these that a config has; None if it has none, or one for each layer."""
    for name in names:
        try:
            if (value := getattr(config, name, None)) is not None:
                return value
        except RuntimeError:  # Gemma 4, of what differs by layer
            continue
    return None


def _size(config: PretrainedConfig, *names: str) -> int | None:
    """The same of whole numbers; a list, one for each layer, is none."""
    value = _first(config, names)
    return value if isinstance(value, int) else None


def renamed(key: str, layout: str, config: HeadConfig) -> str:
    """Upstream's name for a weight in a file of the layout."""
    for theirs, ours in RENAMES.get((layout, config.head_type), {}).items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    return key


def read_config(values: dict) -> tuple[str, HeadConfig, list[str]]:
    """The layout of a config.json, its shape, and what was assumed, a sentence each. BadInput names
    a setting that cannot run here; what is no head's config raises anything of files.UNREADABLE."""
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
            # sgl-project/sglang pull request 25454 distinguishes the two ways by the first id
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
    return {key: values[key] for key in sorted(values) if values[key] is not None}

"""The shape of a draft head: of a stored one, or of a new one for a target."""

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, PretrainedConfig

from eagle_fsd.config import BadInput

# what a new head's layer takes over from the target's, by transformers' names
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
SIZES += ("rms_norm_eps", "max_position_embeddings", "vocab_size")


@strict
class HeadConfig(LlamaConfig):
    """A Llama layer, which transformers checks, and what makes a head of it.

    Upstream's names and defaults (SafeAILab/EAGLE eagle/model/{cnets,cnets1,configs}.py), which are
    transformers' where both have one; files of all layouts are read in layouts.py.

    Attributes:
        head_type: a name in models.HEAD_TYPES: "eagle" (EAGLE-1/2), "eagle3".
        bias: whether fc has one.
        qkv_bias: biases on q, k and v (Qwen2 heads); none on o, as in attention_bias's layers.
        head_dim: channels of an attention head; EAGLE-3 only (upstream's EAGLE-1/2 ignores it).
        draft_vocab_size: tokens that the head can draft; None is the target's whole vocabulary.
        feature_layers: EAGLE-3: which hidden states of the target are fused, as indices into
            transformers' `hidden_states` (i is what enters layer i); empty: see `fused_layers`.
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
            self.num_hidden_layers = 1
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


def head_shape(
    target_config: PretrainedConfig, *, head_type: str, draft_vocab: int = 0
) -> HeadConfig:
    """A new head of one layer, shaped like the target's own; `draft_vocab` 0 drafts all its tokens.

    Raises:
        BadInput: a target without the sizes needed, or with fewer tokens.
    """
    sizes = {name: getattr(target_config, name, None) for name in SIZES}
    if None in sizes.values():
        raise BadInput(
            f"a head's layer cannot be shaped like those of {target_config.model_type!r}, whose "
            f"config lacks sizes: {sizes}"
        )
    if draft_vocab >= target_config.vocab_size:
        raise BadInput(
            f"draft_vocab {draft_vocab} must be less than the target's "
            f"{target_config.vocab_size} tokens"
        )
    eagle3 = head_type == "eagle3"
    activation = getattr(target_config, "hidden_act", None)
    # models with a base per layer type (Gemma 3) get the head's default
    base = (getattr(target_config, "rope_parameters", None) or {}).get("rope_theta")
    return HeadConfig(
        **sizes,
        **({"rope_theta": base} if base else {}),
        hidden_act=activation or getattr(target_config, "hidden_activation", HeadConfig.hidden_act),
        qkv_bias=target_config.model_type.startswith("qwen2"),
        bias=not eagle3,
        head_type=head_type,
        head_dim=getattr(target_config, "head_dim", None) if eagle3 else None,
        draft_vocab_size=draft_vocab or None,
    )

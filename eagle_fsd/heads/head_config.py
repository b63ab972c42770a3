"""The shape of a draft head: of a new one for a target, or of a stored one (read in layouts.py)."""

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig, PretrainedConfig

from eagle_fsd.config import BadInput


@strict
class HeadConfig(LlamaConfig):
    """A Llama layer, which transformers checks, and what makes a head of it.

    Upstream's names and defaults (SafeAILab/EAGLE eagle/model/{cnets,cnets1,configs}.py), which are
    transformers' where both have one.

    Attributes:
        head_type: a name in draft_head.HEAD_TYPES: "eagle" (EAGLE-1/2), "eagle3".
        bias: whether fc has one; EAGLE-3's has none.
        qkv_bias: biases on q, k and v (Qwen2 heads); none on o, as in attention_bias's layers.
        qk_norm: q and k are normed in each attention head before they are turned (Qwen3's layer).
        head_dim: channels of an attention head; EAGLE-3 only (upstream's EAGLE-1/2 ignores it).
        draft_vocab_size: tokens that the head can draft; None is the target's whole vocabulary.

    And of EAGLE-3 alone:
        num_hidden_layers: layers behind the first read the hidden state alone, as any Llama layer.
        feature_layers: which hidden states of the target are fused; empty: see `fused_layers`.
        use_aux_hidden_state: false: no fc, the feature is the last hidden state after its norm.
        target_hidden_size: the target's hidden size, where the head's own is another; the head then
            has an embedding of its own.
        norm_before_residual: the residual starts at the normed hidden state, as in most heads that
            speculators trained; upstream and SpecForge have it never.
        norm_before_fc: one norm over all fused states side by side (gpt-oss).
        fc_norm: a norm for each of the fused states (EAGLE-3.1, arXiv 2605.09992).
        norm_output: the next step reads the normed output (EAGLE-3.1), not the un-normed one.
        own_embedding: tokens are embedded by the head, not by the target.
        own_lm_head: false: it reads the target's lm_head, after its own norm if it has one; by
            default EAGLE-1/2 does, and EAGLE-3 has one of its own.
    """

    num_hidden_layers: int = 1
    bias: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    head_type: str = "eagle"
    draft_vocab_size: int | None = None
    feature_layers: list[int] | tuple[int, ...] = ()
    use_aux_hidden_state: bool = True
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    own_lm_head: bool | None = None

    def __post_init__(self, **further):
        self.feature_layers = tuple(self.feature_layers)
        self.qkv_bias = self.attention_bias = self.qkv_bias or self.attention_bias
        if self.head_type == "eagle":
            self.head_dim = None
        if self.own_lm_head is None:
            self.own_lm_head = self.eagle3
        if self.draft_vocab_size == self.vocab_size:
            self.draft_vocab_size = None  # ids pass through: d2t and t2d say nothing
        if self.eagle3:
            self.bias = False
        if self.target_hidden_size == self.hidden_size:
            self.target_hidden_size = None
        if self.target_hidden_size:
            self.own_embedding = True
        if self.eagle3 and self.target_hidden_size and not self.use_aux_hidden_state:
            raise BadInput(
                f"hidden_size {self.hidden_size} is another than target_hidden_size "
                f"{self.target_hidden_size}, and without fc (use_aux_hidden_state false) nothing "
                "leads from one to the other: set the two alike, or give a head with fc"
            )
        if (self.draft_vocab_size or 0) > self.vocab_size:
            raise BadInput(
                f"draft_vocab_size {self.draft_vocab_size} must be less than vocab_size "
                f"{self.vocab_size}, or absent for all tokens"
            )
        super().__post_init__(**further)
        self.rope_parameters.pop("type", None)  # older files' name of rope_type
        self._attn_implementation = "sdpa"

    @property
    def eagle3(self) -> bool:
        return self.head_type == "eagle3"

    @property
    def feature_size(self) -> int:
        """The target's hidden size, which its features and its lm_head have."""
        return self.target_hidden_size or self.hidden_size

    @property
    def num_fused(self) -> int:
        """How many of the target's hidden states a feature is made of."""
        fused = self.eagle3 and self.use_aux_hidden_state
        return (len(self.feature_layers) or 3) if fused else 1

    def fused_layers(self, target_layers: int) -> tuple[int, ...]:
        """Hidden states that the head reads, as indices into transformers' `hidden_states`: none
        but the last for EAGLE-1/2; upstream's choice for EAGLE-3 is 2, n // 2 and n - 3 of a target
        with n layers."""
        if not self.eagle3 or not self.use_aux_hidden_state:
            return ()
        return self.feature_layers or (2, target_layers // 2, target_layers - 3)

    def check_fits(self, target_config: PretrainedConfig) -> None:
        """Refuse a head made for another target, by a BadInput that names both values."""
        if misfits := self.misfits(target_config):
            raise BadInput("; ".join(misfits))

    def misfits(self, target_config: PretrainedConfig) -> list[str]:
        """Why the head is not one for this target, a sentence each."""
        misfits = []
        for key, own in (("hidden_size", self.feature_size), ("vocab_size", self.vocab_size)):
            if own != (wanted := getattr(target_config, key)):
                misfits.append(f"a head for another target: its {key} is {own}, not {wanted}")
        n = target_config.num_hidden_layers
        layers = self.fused_layers(n)
        if any(not 0 <= layer <= n for layer in layers):
            misfits.append(
                f"the head fuses hidden states {layers}; of a target with {n} layers it can be "
                f"0..{n}"
            )
        return misfits


def head_shape(
    target_config: PretrainedConfig, *, head_type: str, draft_vocab: int = 0
) -> HeadConfig:
    """A new head of one layer; `draft_vocab` 0 drafts all tokens of the target.

    It is a Llama layer of the target's hidden size, whatever the target's own layers are, with what
    a Llama layer can have of theirs. Where they have none, or none that fits, an attention head's
    size is 64 and the inner size four times the hidden size. BadInput: the target has no hidden
    size, or fewer tokens.
    """
    if not (D := _stated(target_config, "hidden_size")):
        raise BadInput(
            f"no head can be shaped for a target of type {target_config.model_type!r}: its config "
            "has no hidden_size; name another target"
        )
    heads, size = _stated(target_config, "num_attention_heads"), _stated(target_config, "head_dim")
    if not heads or D % (2 * heads):  # rotary positions turn pairs of channels
        heads = next((n for n in range(D // 64, 1, -1) if D % (2 * n) == 0), 1)
        size = None
    groups = _stated(target_config, "num_key_value_heads") or heads
    names = ("rms_norm_eps", "max_position_embeddings", "hidden_act")
    optional = {name: _stated(target_config, name) for name in names}
    # models with a base per layer type (Gemma 3) get the head's default
    rope = getattr(target_config, "rope_parameters", None) or {}
    optional["rope_theta"] = rope.get("rope_theta")
    return HeadConfig(
        hidden_size=D,
        vocab_size=target_config.vocab_size,
        intermediate_size=_stated(target_config, "intermediate_size") or 4 * D,
        num_attention_heads=heads,
        num_key_value_heads=groups if heads % groups == 0 else heads,
        qkv_bias=target_config.model_type.startswith("qwen2"),
        head_type=head_type,
        head_dim=size if head_type == "eagle3" else None,
        draft_vocab_size=draft_vocab or None,
        **{name: value for name, value in optional.items() if value},
    )


def _stated(config: PretrainedConfig, name: str) -> int | float | str | None:
    """What a config says; None if it says nothing, or something else for each layer."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # Gemma 4, of what differs by layer
        return None
    return value if isinstance(value, (int, float, str)) else None

"""The shape of a draft head: config.json with upstream's names.

Its weights are named in models.py, as upstream names them. Defaults: SafeAILab/EAGLE
eagle/model/{cnets,cnets1,configs}.py. The JSON is parsed here because transformers 5 moves
rope_theta away. Other projects' layouts: layouts.py.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from transformers.activations import ACT2FN

from eagle_fsd.config import BadInput

NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
COUNTS = ("num_key_value_heads", "num_hidden_layers", "max_position_embeddings")
# rope_scaling's types, and the numbers beside "factor" that each needs
ROPE_SCALINGS = {
    "linear": (),
    "dynamic": (),
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class HeadConfig:
    """Shape of a head, with upstream's names and defaults for absent keys.

    Attributes:
        head_type: a name in models.HEAD_TYPES: "eagle" (EAGLE-1/2), "eagle3".
        bias: whether fc has one (absent in older EAGLE-1/2 configs, where it is true).
        qkv_bias: biases on q, k and v (Qwen2 heads).
        rope_scaling: None, or {"type": a key of ROPE_SCALINGS, "factor": float, ...}.
        head_dim: channels of an attention head; EAGLE-3 only (upstream's EAGLE-1/2 ignores it).
        draft_vocab_size: tokens that the head can draft; None is the target's whole vocabulary.
        feature_layers: EAGLE-3: which hidden states of the target are fused, as indices into
            transformers' `hidden_states` (i is what enters layer i); empty: see `fused_layers`.
        norm_before_residual: EAGLE-3: the residual starts at the normed hidden state, as in most
            heads that speculators trained; upstream and SpecForge have it never.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    num_hidden_layers: int = 1
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    max_position_embeddings: int = 2048
    bias: bool = True
    qkv_bias: bool = False
    head_type: str = "eagle"
    head_dim: int | None = None
    draft_vocab_size: int | None = None
    feature_layers: tuple[int, ...] = ()
    norm_before_residual: bool = False

    def __post_init__(self):
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        object.__setattr__(self, "feature_layers", tuple(self.feature_layers))
        if self.head_dim and self.head_dim * self.num_attention_heads == self.hidden_size:
            object.__setattr__(self, "head_dim", None)
        fault = next(self._faults(), None)
        if fault:
            raise BadInput(f"head config: {fault}")

    def _faults(self) -> Iterator[str]:
        """What is wrong; each check takes those before it as passed."""
        for name in (*NEEDED, *COUNTS, "head_dim", "draft_vocab_size"):
            size = getattr(self, name)
            if size is not None and size < 1:
                yield f"{name} must be positive, got {size}"
        D, heads, layers = self.hidden_size, self.num_attention_heads, self.feature_layers
        if self.head_dim is None and D % heads:
            yield f"hidden_size {D} is not divisible by num_attention_heads {heads}"
        if heads % self.num_key_value_heads:
            yield (
                f"num_attention_heads {heads} is not divisible by num_key_value_heads "
                f"{self.num_key_value_heads}"
            )
        if self.hidden_act not in ACT2FN:
            yield f"unknown hidden_act {self.hidden_act!r}"
        if self.draft_vocab_size and self.draft_vocab_size > self.vocab_size:
            yield (
                f"draft_vocab_size {self.draft_vocab_size} is more than vocab_size "
                f"{self.vocab_size}"
            )
        if self.eagle3:
            if self.num_hidden_layers != 1:
                yield f"an EAGLE-3 head has one layer, not {self.num_hidden_layers}"
            if len(layers) not in (0, 3):
                yield f"an EAGLE-3 head fuses three layers, got {layers}"
            if not all(type(layer) is int for layer in layers):
                yield f"feature_layers must be whole numbers, got {layers}"
        elif self.norm_before_residual or layers:
            yield "norm_before_residual and feature_layers are settings of EAGLE-3 heads"
        elif self.head_dim is not None:
            yield (
                f"head_dim {self.head_dim} of an EAGLE-1/2 head must be hidden_size / "
                f"num_attention_heads = {D // heads}"
            )
        if self.rope_scaling is not None:
            yield from self._rope_faults(self.rope_scaling)

    def _rope_faults(self, scaling: dict) -> Iterator[str]:
        kind = scaling.get("type")
        if kind not in ROPE_SCALINGS:
            yield f"rope_scaling {scaling} is unknown; {', '.join(ROPE_SCALINGS)} are supported"
        for key in ("factor", *ROPE_SCALINGS[kind]):
            if not isinstance(scaling.get(key), int | float):
                yield f"rope_scaling {kind} needs a number as {key}, got {scaling.get(key)!r}"

    @property
    def channels(self) -> int:
        """Width of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def eagle3(self) -> bool:
        return self.head_type == "eagle3"

    def fused_layers(self, target_layers: int) -> tuple[int, ...]:
        """Hidden states that the head reads: none but the last for EAGLE-1/2; upstream's choice
        for EAGLE-3 is 2, n // 2 and n - 3 of a target with n layers."""
        if not self.eagle3:
            return ()
        return self.feature_layers or (2, target_layers // 2, target_layers - 3)

    def llama_layer(self) -> dict:
        """Shape of the head's layer, as arguments of transformers' LlamaConfig; no rope."""
        same = (*NEEDED, *COUNTS, "hidden_act", "rms_norm_eps")
        shape = {name: getattr(self, name) for name in same}
        return shape | {"head_dim": self.channels, "attention_bias": self.qkv_bias}

    def llama_rope_scaling(self) -> dict | None:
        """`rope_scaling` with transformers' rope_type in place of upstream's type."""
        if self.rope_scaling is None:
            return None
        scaling = dict(self.rope_scaling)
        return {"rope_type": scaling.pop("type"), **scaling}

    @classmethod
    def from_json(cls, values: dict) -> "HeadConfig":
        """Read upstream's config.json; keys that have no part in the head are ignored.

        A draft_vocab_size without head_type means EAGLE-3, as upstream's heads have it.

        Raises:
            BadInput: a needed key is absent, or see HeadConfig.
            TypeError, ValueError, AttributeError: a value is of a wrong type.
        """
        values = {key: value for key, value in values.items() if value is not None}
        missing = [name for name in NEEDED if name not in values]
        if missing:
            raise BadInput(f"no {', '.join(missing)}: not an EAGLE head's config")
        if "draft_vocab_size" in values:
            values.setdefault("head_type", "eagle3")
        if values.get("head_type", "eagle") == "eagle":
            values.pop("head_dim", None)  # as upstream
        elif values.get("draft_vocab_size") == values["vocab_size"]:
            del values["draft_vocab_size"]  # ids pass through: d2t and t2d say nothing
        rope = dict(
            values.get("rope_parameters", {})
        )  # where transformers 5 saves base and scaling
        values.setdefault("rope_theta", rope.pop("rope_theta", cls.rope_theta))
        scaling = dict(values.get("rope_scaling", rope))
        scaling = {"type": scaling.pop("rope_type", "default"), **scaling}
        values["rope_scaling"] = None if scaling["type"] == "default" else scaling
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ & values.keys()})

    def to_json(self) -> dict:
        """What upstream's loader and ours read back."""
        name = "LlamaForCausalLMEagle3" if self.eagle3 else "LlamaForCausalLM"
        values = {"architectures": [name], "model_type": "llama", **asdict(self)}
        values["feature_layers"] = list(self.feature_layers)
        if self.eagle3:  # upstream needs the key
            values["draft_vocab_size"] = self.draft_vocab_size or self.vocab_size
        optional = ("head_dim", "draft_vocab_size", "feature_layers", "norm_before_residual")
        return {key: value for key, value in values.items() if value or key not in optional}

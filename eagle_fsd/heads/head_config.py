"""The shape of a draft head: config.json with upstream's names, and the keys of its weights.

    EAGLE-1/2 ("eagle")
    fc.weight [D, 2D]   fc.bias [D] (absent when config "bias" is false)
    layers.0.self_attn.{q,k,v,o}_proj.weight   (+ {q,k,v}_proj.bias when config "qkv_bias")
    layers.0.mlp.{gate,up,down}_proj.weight    layers.0.post_attention_layernorm.weight
    d2t [R] only with a reduced draft vocabulary (our extension; upstream has it for EAGLE-3 alone)

    EAGLE-3 ("eagle3")
    fc.weight [D, 3D]   norm.weight [D]   lm_head.weight [R, D]   d2t [R]   t2d [V]
    midlayer.self_attn.{q,k,v}_proj.weight [heads * C, 2D]   midlayer.self_attn.o_proj.weight
    midlayer.mlp.{gate,up,down}_proj.weight
    midlayer.{hidden_norm,input_layernorm,post_attention_layernorm}.weight

Key names and defaults: SafeAILab/EAGLE eagle/model/{cnets,cnets1,configs}.py. The JSON is parsed
here because transformers 5 moves rope_theta away. Other projects' layouts: layouts.py.

Axes: D hidden size, M intermediate size, C channels of an attention head, V the target's
vocabulary, R draft vocabulary.
"""

from dataclasses import asdict, dataclass

from transformers.activations import ACT2FN

# rope_scaling's types, and the keys beside "factor" that each needs
ROPE_SCALINGS = {
    "linear": (),
    "dynamic": (),
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class HeadConfig:
    """Shape of a head, with upstream's names and defaults for absent keys.

    Attributes:
        head_type: "eagle" (EAGLE-1/2) or "eagle3".
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
        sizes = ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"]
        sizes += ["num_key_value_heads", "num_hidden_layers", "max_position_embeddings"]
        sizes += [
            name for name in ("head_dim", "draft_vocab_size") if getattr(self, name) is not None
        ]
        for size in sizes:
            if getattr(self, size) < 1:
                raise ValueError(f"head config: {size} must be positive, got {getattr(self, size)}")
        if self.head_dim and self.head_dim * self.num_attention_heads == self.hidden_size:
            object.__setattr__(self, "head_dim", None)
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"head config: hidden_size {self.hidden_size} is not divisible by "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"head config: num_attention_heads {self.num_attention_heads} is not divisible by "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"head config: unknown hidden_act {self.hidden_act!r}")
        self._check_kind()
        self._check_rope()

    def _check_kind(self) -> None:
        if self.head_type not in ("eagle", "eagle3"):
            raise ValueError(f"head config: head_type {self.head_type!r} is not eagle or eagle3")
        if self.draft_vocab_size and self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"head config: draft_vocab_size {self.draft_vocab_size} is more than vocab_size "
                f"{self.vocab_size}"
            )
        if self.head_type == "eagle3":
            if self.num_hidden_layers != 1:
                raise ValueError(
                    f"head config: an EAGLE-3 head has one layer, not {self.num_hidden_layers}"
                )
            if len(self.feature_layers) not in (0, 3):
                raise ValueError(
                    f"head config: an EAGLE-3 head fuses three layers, got {self.feature_layers}"
                )
            if not all(type(layer) is int for layer in self.feature_layers):
                raise ValueError(
                    f"head config: feature_layers must be whole numbers, got {self.feature_layers}"
                )
            return
        if self.norm_before_residual or self.feature_layers:
            raise ValueError(
                "head config: norm_before_residual and feature_layers are settings of EAGLE-3 heads"
            )
        if self.head_dim is not None:
            raise ValueError(
                f"head config: head_dim {self.head_dim} of an EAGLE-1/2 head must be hidden_size / "
                f"num_attention_heads = {self.hidden_size // self.num_attention_heads}"
            )

    def _check_rope(self) -> None:
        scaling = self.rope_scaling
        if scaling is None:
            return
        kind = scaling.get("type")
        if kind not in ROPE_SCALINGS or "factor" not in scaling:
            raise ValueError(
                f"head config: rope_scaling {scaling} is unknown; {', '.join(ROPE_SCALINGS)} with "
                "a factor are supported"
            )
        missing = [key for key in ROPE_SCALINGS[kind] if key not in scaling]
        if missing:
            raise ValueError(f"head config: rope_scaling {kind} lacks {', '.join(missing)}")
        for key in ("factor", *ROPE_SCALINGS[kind]):
            if not isinstance(scaling[key], int | float):
                raise ValueError(f"head config: rope_scaling {key} is no number: {scaling[key]!r}")

    @property
    def channels(self) -> int:
        """Width C of an attention head."""
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

    @classmethod
    def from_json(cls, values: dict, *, source: str) -> "HeadConfig":
        """Read upstream's config.json; keys that have no part in the head are ignored.

        A draft_vocab_size without head_type means EAGLE-3, as upstream's heads have it.

        Raises:
            ValueError: a needed key is absent or of a wrong type; names `source`.
        """
        values = {key: value for key, value in values.items() if value is not None}
        rope = dict(values.get("rope_parameters", {}))  # as transformers 5 saves it
        if "rope_theta" in rope:
            values.setdefault("rope_theta", rope.pop("rope_theta"))
        kind = rope.pop("rope_type", "default")
        if kind != "default":
            values.setdefault("rope_scaling", {"type": kind, **rope})
        if isinstance(values.get("rope_scaling"), dict):
            scaling = dict(values["rope_scaling"])
            scaling.setdefault("type", scaling.pop("rope_type", "default"))
            values["rope_scaling"] = None if scaling["type"] == "default" else scaling
        needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        missing = [name for name in needed if name not in values]
        if missing:
            raise ValueError(f"{source} has no {', '.join(missing)}: not an EAGLE head's config")
        if "head_type" not in values and "draft_vocab_size" in values:
            values["head_type"] = "eagle3"
        if values.get("head_type", "eagle") == "eagle":
            values.pop("head_dim", None)  # as upstream
        elif values.get("draft_vocab_size") == values["vocab_size"]:
            del values["draft_vocab_size"]  # ids pass through: d2t and t2d say nothing
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        try:
            return cls(**known)
        except (TypeError, AttributeError) as error:  # a number given as text, say
            raise ValueError(f"{source} has a value of a wrong type ({error})") from error

    def to_json(self) -> dict:
        """What upstream's loader and ours read back."""
        name = "LlamaForCausalLMEagle3" if self.eagle3 else "LlamaForCausalLM"
        values = {"architectures": [name], "model_type": "llama", **asdict(self)}
        values["feature_layers"] = list(self.feature_layers)
        if self.eagle3:  # upstream needs the key
            values["draft_vocab_size"] = self.draft_vocab_size or self.vocab_size
        for optional in ("head_dim", "draft_vocab_size", "feature_layers", "norm_before_residual"):
            if not values[optional]:
                del values[optional]
        return values

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every key of the checkpoint and its shape; embed_tokens, which is optional, is not in."""
        return self._eagle3_shapes() if self.eagle3 else self._eagle_shapes()

    def optional_shapes(self) -> dict[str, tuple[int, ...]]:
        """Keys that a file may hold beside `shapes`: they say nothing that is not known."""
        optional = {"embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        if self.eagle3 and self.draft_vocab_size is None:
            optional |= {"d2t": (self.vocab_size,), "t2d": (self.vocab_size,)}
        return optional

    def _eagle_shapes(self) -> dict[str, tuple[int, ...]]:
        D = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, 2 * D)}
        if self.bias:
            shapes["fc.bias"] = (D,)
        for i in range(self.num_hidden_layers):
            shapes |= self._layer_shapes(f"layers.{i}", D)
            if i:
                shapes[f"layers.{i}.input_layernorm.weight"] = (D,)
        if self.draft_vocab_size:
            shapes["d2t"] = (self.draft_vocab_size,)
        return shapes

    def _eagle3_shapes(self) -> dict[str, tuple[int, ...]]:
        D = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (D, 3 * D),
            **self._layer_shapes("midlayer", 2 * D),
            "midlayer.hidden_norm.weight": (D,),
            "midlayer.input_layernorm.weight": (D,),
            "norm.weight": (D,),
            "lm_head.weight": (self.draft_vocab_size or self.vocab_size, D),
        }
        if self.draft_vocab_size:
            shapes |= {"d2t": (self.draft_vocab_size,), "t2d": (self.vocab_size,)}
        return shapes

    def _layer_shapes(self, layer: str, width: int) -> dict[str, tuple[int, ...]]:
        """A decoder layer whose q, k and v read rows of `width`."""
        D, M = self.hidden_size, self.intermediate_size
        q, kv = self.num_attention_heads * self.channels, self.num_key_value_heads * self.channels
        shapes: dict[str, tuple[int, ...]] = {}
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = (rows, width)
            if self.qkv_bias:
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (D, q)
        shapes[f"{layer}.mlp.gate_proj.weight"] = (M, D)
        shapes[f"{layer}.mlp.up_proj.weight"] = (M, D)
        shapes[f"{layer}.mlp.down_proj.weight"] = (D, M)
        shapes[f"{layer}.post_attention_layernorm.weight"] = (D,)
        return shapes

"""Draft-head checkpoints: a folder with config.json and weights, under upstream's key names.

    fc.weight [D, 2D]   fc.bias [D] (absent when config "bias" is false)
    layers.0.self_attn.{q,k,v,o}_proj.weight   (+ {q,k,v}_proj.bias when config "qkv_bias")
    layers.0.mlp.{gate,up,down}_proj.weight    layers.0.post_attention_layernorm.weight
    embed_tokens.weight [V, D] is optional: it is a copy of the target's, which is used instead.

Published heads load from a folder or a hub id: model.safetensors or pytorch_model.bin, single or
sharded. Key names and defaults: SafeAILab/EAGLE eagle/model/{cnets1,configs}.py. Pickles are read
with weights_only=True. The JSON is parsed here because transformers 5 moves rope_theta away.
"""

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers.activations import ACT2FN

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"


@dataclass(frozen=True)
class HeadConfig:
    """Shape of an EAGLE-1/2 head, with upstream's names and defaults for absent keys.

    Attributes:
        bias: whether fc has one (absent in older configs, where it is true).
        qkv_bias: biases on q, k and v (Qwen2 heads).
        rope_scaling: None, or {"type": "linear" | "dynamic", "factor": float}.
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

    def __post_init__(self):
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        for size in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
            if getattr(self, size) < 1:
                raise ValueError(f"head config: {size} must be positive, got {getattr(self, size)}")
        if self.hidden_size % self.num_attention_heads:
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
        scaling = self.rope_scaling
        if scaling and not (scaling.get("type") in ("linear", "dynamic") and "factor" in scaling):
            raise ValueError(
                f"head config: rope_scaling {scaling} is unknown; linear and dynamic with a factor "
                "are supported"
            )

    @classmethod
    def from_json(cls, values: dict, *, source: str) -> "HeadConfig":
        """Read upstream's config.json; keys that have no part in the head are ignored.

        Raises:
            ValueError: a needed key is absent, or this is an EAGLE-3 head; names `source`.
        """
        if "draft_vocab_size" in values:
            raise ValueError(
                f"{source} is an EAGLE-3 head (it has draft_vocab_size); EAGLE-1/2 heads are "
                "supported"
            )
        values = {key: value for key, value in values.items() if value is not None}
        rope = dict(values.get("rope_parameters", {}))  # as transformers 5 saves it
        if "rope_theta" in rope:
            values.setdefault("rope_theta", rope.pop("rope_theta"))
        kind = rope.pop("rope_type", "default")
        if kind != "default":
            values.setdefault("rope_scaling", {"type": kind, **rope})
        needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        missing = [name for name in needed if name not in values]
        if missing:
            raise ValueError(f"{source} has no {', '.join(missing)}: not an EAGLE head's config")
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        try:
            return cls(**known)
        except (TypeError, AttributeError) as error:  # a number given as text, say
            raise ValueError(f"{source} has a value of a wrong type ({error})") from error

    def to_json(self) -> dict:
        """What upstream's loader and ours read back."""
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **asdict(self)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every key of the checkpoint and its shape; embed_tokens, which is optional, is not in."""
        D, M = self.hidden_size, self.intermediate_size
        kv = D // self.num_attention_heads * self.num_key_value_heads
        shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, 2 * D)}
        if self.bias:
            shapes["fc.bias"] = (D,)
        for i in range(self.num_hidden_layers):
            layer = f"layers.{i}"
            for name, width in (("q", D), ("k", kv), ("v", kv)):
                shapes[f"{layer}.self_attn.{name}_proj.weight"] = (width, D)
                if self.qkv_bias:
                    shapes[f"{layer}.self_attn.{name}_proj.bias"] = (width,)
            shapes[f"{layer}.self_attn.o_proj.weight"] = (D, D)
            shapes[f"{layer}.mlp.gate_proj.weight"] = (M, D)
            shapes[f"{layer}.mlp.up_proj.weight"] = (M, D)
            shapes[f"{layer}.mlp.down_proj.weight"] = (D, M)
            if i:
                shapes[f"{layer}.input_layernorm.weight"] = (D,)
            shapes[f"{layer}.post_attention_layernorm.weight"] = (D,)
        return shapes


def resolve_folder(name: str | Path) -> Path:
    """A local folder, or a hub id fetched into the hub's cache.

    Raises:
        ValueError: neither; names what was given.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(str(name), allow_patterns=["*.json", "*.safetensors", "*.bin"])
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ValueError(
            f"no draft head at {name!r}: it is no folder, and the hub did not give it ({error})"
        ) from error


def read_head_config(folder: Path) -> HeadConfig:
    """config.json of a head; ValueError if it is absent, broken or of another kind."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise ValueError(f"{folder} is no draft head: it has no {CONFIG_NAME}")
    return HeadConfig.from_json(_read_json(path), source=str(path))


def read_head_weights(folder: Path, config: HeadConfig) -> dict[str, torch.Tensor]:
    """The head's tensors, embed_tokens left out, every key and shape checked.

    Raises:
        ValueError: no weights, or missing, extra or misshapen keys, each named.
    """
    tensors = _read_tensors(folder)
    wanted = config.shapes()
    optional = {"embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    faults = [f"missing {key} {shape}" for key, shape in wanted.items() if key not in tensors]
    for key, tensor in tensors.items():
        shape = wanted.get(key) or optional.get(key)
        if shape is None:
            faults.append(f"unexpected {key} {tuple(tensor.shape)}")
        elif tuple(tensor.shape) != shape:
            faults.append(f"{key} has shape {tuple(tensor.shape)}, config.json says {shape}")
    if faults:
        raise ValueError(f"the draft head in {folder} does not fit: " + "; ".join(faults))
    return {key: tensors[key] for key in wanted}


def write_head(
    folder: str | Path,
    config: HeadConfig,
    tensors: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write config.json and model.safetensors; the weights appear in one rename."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(config.to_json(), indent=2) + "\n")
    half = {key: tensors[key].detach().to("cpu", dtype).contiguous() for key in config.shapes()}
    save_file(half, folder / f"{WEIGHTS_NAME}.tmp", metadata={"format": "pt"})
    (folder / f"{WEIGHTS_NAME}.tmp").replace(folder / WEIGHTS_NAME)


def _read_json(path: Path) -> dict:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is broken JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {values!r:.80}")
    return values


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    for single in (WEIGHTS_NAME, "pytorch_model.bin"):
        if (folder / single).is_file():
            return _read_file(folder / single)
        index = folder / f"{single}.index.json"
        if index.is_file():
            placed = _read_json(index).get("weight_map")
            if not isinstance(placed, dict):
                raise ValueError(f"{index} has no weight_map")
            shards = sorted(set(placed.values()))
            missing = [shard for shard in shards if not (folder / shard).is_file()]
            if missing:
                raise ValueError(f"{index} names shards that are absent: {', '.join(missing)}")
            return {k: v for shard in shards for k, v in _read_file(folder / shard).items()}
    raise ValueError(f"{folder} has no weights: expected {WEIGHTS_NAME} or pytorch_model.bin")


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # a pickle from outside may run code; weights_only reads tensors and nothing else
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"cannot read {path}: it is broken, or a pickle that holds more than tensors, which is "
            f"never loaded ({reason[:200]})"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(t, torch.Tensor) for t in tensors.values()
    ):
        raise ValueError(f"{path} must hold a dictionary of tensors")
    return tensors

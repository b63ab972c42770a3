"""Draft heads as published, written out by hand: config.json, weights and their files.

The layouts are never written by the writer under test. Where they were looked up is said in
eagle_fsd/heads/layouts.py.

Sizes: D hidden, M intermediate, V vocabulary, R draft vocabulary; 6 heads of 4 channels, 2 for
keys and values.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

D, M, V, R = 24, 37, 41, 11
SIZES = {
    "hidden_size": D,
    "intermediate_size": M,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": V,
}
TOKENS = torch.tensor([1, 2, 5, 7, 8, 13, 20, 21, 30, 39, 40])  # the draft vocabulary
EMBEDDING = {"embed_tokens.weight": torch.ones(V, D)}


class TargetShape:
    """What load_head asks of a target's config."""

    hidden_size, vocab_size, num_hidden_layers = D, V, 32


def layer(name: str, config: dict, *, width: int) -> dict[str, tuple[int, ...]]:
    """A Llama layer whose q, k and v read rows of `width`."""
    D, M, heads = (config[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads"))
    kv = D // heads * config.get("num_key_value_heads", heads)
    rows = {"q": D, "k": kv, "v": kv}
    biased = config.get("qkv_bias", False)
    return {
        **{f"{name}.self_attn.{k}_proj.weight": (rows[k], width) for k in rows},
        **{f"{name}.self_attn.{k}_proj.bias": (rows[k],) for k in rows if biased},
        f"{name}.self_attn.o_proj.weight": (D, D),
        f"{name}.mlp.gate_proj.weight": (M, D),
        f"{name}.mlp.up_proj.weight": (M, D),
        f"{name}.mlp.down_proj.weight": (D, M),
        f"{name}.post_attention_layernorm.weight": (D,),
    }


def draw(shapes: dict[str, tuple[int, ...]], *, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        key: torch.randn(shape, generator=generator) * (1.5 / shape[-1] ** 0.5)
        for key, shape in shapes.items()
    }


def eagle_tensors(config: dict = SIZES) -> dict[str, torch.Tensor]:
    """An EAGLE-1/2 head under upstream's keys."""
    D = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (D, 2 * D)}
    if config.get("bias", True):
        shapes["fc.bias"] = (D,)
    for i in range(config.get("num_hidden_layers", 1)):
        shapes |= layer(f"layers.{i}", config, width=D)
        if i:  # only the first goes without
            shapes[f"layers.{i}.input_layernorm.weight"] = (D,)
    return draw(shapes)


def eagle3_tensors(*, rows: int = R, **changes) -> dict[str, torch.Tensor]:
    """An EAGLE-3 head of SIZES under upstream's keys."""
    shapes = {"fc.weight": (D, 3 * D)} | layer("midlayer", SIZES | changes, width=2 * D)
    shapes |= {f"midlayer.{name}.weight": (D,) for name in ("hidden_norm", "input_layernorm")}
    shapes |= {"norm.weight": (D,), "lm_head.weight": (rows, D)}
    return draw(shapes) | (vocabulary() if rows == R else {})


def vocabulary() -> dict[str, torch.Tensor]:
    """d2t and t2d of TOKENS."""
    marked = torch.zeros(V, dtype=torch.bool)
    marked[TOKENS] = True
    return {"d2t": TOKENS - torch.arange(R), "t2d": marked}


def renamed(tensors: dict, prefixes: dict[str, str]) -> dict[str, torch.Tensor]:
    """Tensors whose keys begin otherwise."""
    for old, new in prefixes.items():
        tensors = {
            new + key.removeprefix(old) if key.startswith(old) else key: tensor
            for key, tensor in tensors.items()
        }
    return tensors


SPECFORGE = SIZES | {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
SPECFORGE |= {"rope_scaling": None, "draft_vocab_size": R, "head_dim": 4}
SPECULATORS = {
    "speculators_config": {"verifier": {"architectures": ["LlamaForCausalLM"]}},
    "speculators_version": "0.3.0",
    "transformer_layer_config": SIZES
    | {"model_type": "llama", "num_hidden_layers": 1, "head_dim": 4, "rope_theta": 500000.0}
    | {"attention_bias": False, "mlp_bias": False, "rope_scaling": None},
}
SPECULATORS3 = SPECULATORS | {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": R,
    "norm_before_residual": False,
}


def with_layer(config: dict, **changes) -> dict:
    """speculators' config with a changed layer."""
    return config | {"transformer_layer_config": config["transformer_layer_config"] | changes}


def save(
    folder: Path, config: dict, tensors: dict[str, torch.Tensor], kind: str = "safetensors"
) -> Path:
    """A head with its weights as "safetensors" or "bin"."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder

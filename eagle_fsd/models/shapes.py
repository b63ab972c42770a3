"""Shapes of targets by name, from their public config.json."""

from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.engine.families import check_supported

# As published beside the weights; what has no part in the size or the time of a forward is left out
SHAPES: dict[str, dict] = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
    },
    "qwen3-32b": {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
}


def load_shape(name: str) -> PretrainedConfig:
    """The config of a target.

    Args:
        name: a key of SHAPES, or the path of a config.json or of a folder that holds one.

    Raises:
        BadInput: unknown name, unreadable file, a model that cannot verify trees, or one with
            experts, of which a step reads a part that depends on the tokens.
    """
    if name in SHAPES:
        return AutoConfig.for_model(**SHAPES[name])
    if not Path(name).exists():
        raise BadInput(
            f"unknown shape {name!r}: after random: comes {', '.join(SHAPES)}, or the path of a "
            "config.json"
        )
    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{name} is no target's config: {error}") from error
    check_supported(config)
    for key in ("num_local_experts", "num_experts"):
        if getattr(config, key, None):
            raise BadInput(
                f"{name} has {getattr(config, key)} experts: how many of them a step reads depends "
                "on the tokens, which are random here. Give a dense model"
            )
    return config

"""The shape of a new head, from its target's config."""

from transformers import PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.heads.head_config import HeadConfig

# what the head's layer takes over from the target's, by transformers' names
SAME = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
SAME += ("rms_norm_eps", "max_position_embeddings", "vocab_size")


def head_shape(
    target_config: PretrainedConfig, *, head_type: str, draft_vocab: int = 0
) -> HeadConfig:
    """One layer shaped like the target's own.

    Args:
        head_type: "eagle" (EAGLE-1/2) or "eagle3".
        draft_vocab: tokens that the head can draft; 0 is the target's whole vocabulary.

    Raises:
        BadInput: see HeadConfig; a target without the sizes needed, or with fewer tokens.
    """
    missing = [name for name in SAME if getattr(target_config, name, None) is None]
    if missing:
        raise BadInput(
            f"targets of type {target_config.model_type!r} have no {', '.join(missing)} in their "
            "config: the head's layer cannot be shaped like theirs"
        )
    V, eagle3 = target_config.vocab_size, head_type == "eagle3"
    if draft_vocab >= V:
        raise BadInput(f"--draft_vocab {draft_vocab} must be less than the target's {V} tokens")
    activation = getattr(target_config, "hidden_act", None)
    rope = getattr(target_config, "rope_parameters", None) or {}
    return HeadConfig(
        **{name: getattr(target_config, name) for name in SAME},
        # models with a base per layer type (Gemma 3) get the head's default
        rope_theta=rope.get("rope_theta", HeadConfig.rope_theta),
        hidden_act=activation or getattr(target_config, "hidden_activation", HeadConfig.hidden_act),
        qkv_bias=target_config.model_type.startswith("qwen2"),
        bias=not eagle3,
        head_type=head_type,
        head_dim=getattr(target_config, "head_dim", None) if eagle3 else None,
        draft_vocab_size=draft_vocab or None,
    )

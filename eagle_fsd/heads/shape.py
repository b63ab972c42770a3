"""The shape of a new head, from its target's config."""

from transformers import PretrainedConfig

from eagle_fsd.heads.head_config import HeadConfig

NEEDED = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps")


def head_shape(
    target_config: PretrainedConfig, *, head_type: str, draft_vocab: int = 0
) -> HeadConfig:
    """One layer shaped like the target's own.

    Args:
        head_type: "eagle" (EAGLE-1/2) or "eagle3".
        draft_vocab: tokens that the head can draft; 0 is the target's whole vocabulary.

    Raises:
        ValueError: see HeadConfig; or a target without the sizes needed.
    """
    missing = [name for name in NEEDED if getattr(target_config, name, None) is None]
    if missing:
        raise ValueError(
            f"targets of type {target_config.model_type!r} have no {', '.join(missing)} in their "
            "config: the head's layer cannot be shaped like theirs"
        )
    eagle3 = head_type == "eagle3"
    activation = getattr(target_config, "hidden_act", None)
    rope = getattr(target_config, "rope_parameters", None) or {}
    return HeadConfig(
        hidden_size=target_config.hidden_size,
        intermediate_size=target_config.intermediate_size,
        num_attention_heads=target_config.num_attention_heads,
        num_key_value_heads=target_config.num_key_value_heads,
        vocab_size=target_config.vocab_size,
        rms_norm_eps=target_config.rms_norm_eps,
        # models with a base per layer type (Gemma 3) get the head's default
        rope_theta=rope.get("rope_theta", HeadConfig.rope_theta),
        max_position_embeddings=target_config.max_position_embeddings,
        hidden_act=activation or getattr(target_config, "hidden_activation", HeadConfig.hidden_act),
        qkv_bias=target_config.model_type.startswith("qwen2"),
        bias=not eagle3,
        head_type=head_type,
        head_dim=getattr(target_config, "head_dim", None) if eagle3 else None,
        draft_vocab_size=draft_vocab or None,
    )

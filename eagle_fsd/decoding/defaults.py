"""What a model's own generation config would change of its answers."""

from transformers import GenerationConfig

# its end tokens, its form, and what changes no answer
NO_DEFAULTS = frozenset(
    "_from_model_config transformers_version bos_token_id eos_token_id pad_token_id use_cache "
    "decoder_start_token_id output_attentions output_hidden_states max_length".split()
)


def generation_defaults(config: GenerationConfig) -> dict[str, object]:
    """Its settings by name, but for end tokens: temperature, penalties, suppressed tokens."""
    settings = config.to_diff_dict()
    return {name: settings[name] for name in settings if name not in NO_DEFAULTS}

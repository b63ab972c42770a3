"""Which model families can verify a draft tree, by their configs; by trial: trial.py."""

from transformers import PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.families.text_model import logit_factor, rope_parts, text_config
from eagle_fsd.recurrent.kinds import HYBRID, NOTHING, RECURRENT, check_states, layer_types

# Families whose tree attention the tests check, sliding windows included where they have them.
TESTED_FAMILIES = ("gemma3_text", "llama", "mistral", "mixtral", "qwen2", "qwen3")
# Layers whose masks masks.layer_masks can make.
LAYER_TYPES = ("chunked_attention", "full_attention", "sliding_attention")
# Rotary positions that are the same at every length of the text; those of longrope change at one,
# and texts end there (text_model.longest_text). Those of dynamic change from token to token: cached
# keys are of a length before, and a tree may reach over it.
ROPES = ("default", "linear", "llama3", "longrope", "proportional", "yarn")


def check_supported(config: PretrainedConfig) -> None:
    """Refuse, by its config alone, a model whose verification could not be right; of a multimodal
    model its text model is meant.

    Raises:
        BadInput: names the model type and what is not supported.
    """
    if config.is_encoder_decoder:
        raise BadInput(
            f"target of type {config.model_type!r} is an encoder-decoder; a decoder is needed"
        )
    config = text_config(config)
    kind = config.model_type
    # 1. It reads a text from left to right. "vision": of images alone.
    both_ways = {"use_bidirectional_attention": (True, "all"), "is_causal": (False,)}
    for name, values in both_ways.items():
        if (value := getattr(config, name, None)) in values:
            raise BadInput(
                f"target of type {kind!r} reads a text in both directions ({name} is {value}), and "
                "a token's draft is verified by what stands before it alone: give a model that "
                "reads from left to right"
            )
    # 2. Its layers.
    check_states(config)
    if unknown := set(layer_types(config)) - {*LAYER_TYPES, *RECURRENT, *HYBRID, *NOTHING}:
        raise BadInput(
            f"target of type {kind!r} has layers of type {sorted(unknown)}; a draft tree can be "
            f"verified with {', '.join(LAYER_TYPES)} layers only"
        )
    # 3. Its logits and its positions.
    logit_factor(config)
    for part in rope_parts(config):
        check_rope(part, f"target of type {kind!r}")


def check_rope(parameters: dict, owner: str, known: tuple[str, ...] = ROPES) -> None:
    """Refuse, by a BadInput that names the owner, rotary positions of another kind than those; by
    default ones that are the same at every length of the text."""
    name = parameters.get("rope_type") or parameters.get("type") or "default"
    if name not in known:
        raise BadInput(
            f"{owner} has rope_type {name!r}; it can be one of {', '.join(known)}: others change "
            "with the length of the text, or are not known here"
        )
    texts = {key: value for key, value in parameters.items() if isinstance(value, str)}
    if texts.keys() - {"rope_type", "type"}:
        raise BadInput(f"{owner} has text for numbers in rope_parameters: {texts}")

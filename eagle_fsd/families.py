"""What is known of families of transformers models, by the names in their configs: where the text
model is, how it makes logits, and which families can verify draft trees.

eagle_fsd.engine.trial.check_target finds a family that does anything else.
"""

import copy
import inspect

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from eagle_fsd.config import BadInput
from eagle_fsd.recurrent.kinds import HYBRID, NOTHING, RECURRENT, check_states, layer_types
from eagle_fsd.versions import told_versions

# Families whose tree attention the tests check, sliding windows included where they have them.
TESTED_FAMILIES = ("gemma3_text", "llama", "mistral", "mixtral", "qwen2", "qwen3")
# Layers whose masks masks.layer_masks can make.
LAYER_TYPES = ("chunked_attention", "full_attention", "sliding_attention")
# Rotary positions that are the same at every length of the text; those of longrope change at one,
# and texts end there (longest_text). Those of dynamic change from token to token: cached
# keys are of a length before, and a tree may reach over it.
ROPES = ("default", "linear", "llama3", "longrope", "proportional", "yarn")
# Settings, and the values with which a text is read in both directions.
BOTH_WAYS = {"use_bidirectional_attention": (True, "all"), "is_causal": (False,)}
# What forwards of transformers call their cache: by the first name from 5.24 on
CACHE_NAMES = ("cache", "past_key_values")
# What families call the factor of their logits, and whether it multiplies. Each family has one.
FACTORS = {
    "logit_scale": True,
    "lm_head_multiplier": True,
    "output_multiplier": True,
    "logits_scaling": False,
}
# These multiply by what Granite, from which they have the name, divides by.
MULTIPLIED = ("hyperclovax",)


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the text model: of a multimodal config a part, of any other the whole."""
    return config.get_text_config(decoder=True)


def text_body(model: PreTrainedModel) -> PreTrainedModel:
    """The text model without its lm_head: from token ids to hidden states after the final norm."""
    if text_config(model.config) is not model.config:
        return text_body(model.get_decoder())  # which of Llama 4 has the lm_head too
    if model.base_model is model:  # Llama 4's class names a part that only its multimodal class has
        return getattr(model, "model", model)
    return model.base_model


def cache_name(layer: nn.Module | type[nn.Module]) -> str:
    """By which name the forward of a model or a layer of transformers takes its cache; one that
    somebody has wrapped takes it by that of its class. BadInput: by none that is known here."""
    layer = getattr(layer, "_orig_mod", layer)  # what torch.compile wraps
    kind = layer if isinstance(layer, type) else type(layer)
    for forward in (layer.forward, kind.forward):
        for name in CACHE_NAMES:
            if name in inspect.signature(forward).parameters:
                return name
    raise BadInput(f"the forward of a {kind.__name__} takes no cache: {told_versions()}")


def shortened(body: PreTrainedModel, count: int) -> PreTrainedModel:
    """A shallow copy of a text_body without the layers behind the first `count`."""
    cut, every = copy.copy(body), body.config.num_hidden_layers
    cut._modules = {
        name: child[:count] if isinstance(child, nn.ModuleList) and len(child) == every else child
        for name, child in body.named_children()
    }
    cut.config = copy.deepcopy(body.config)
    cut.config.num_hidden_layers = count
    if getattr(cut.config, "layer_types", None):
        cut.config.layer_types = cut.config.layer_types[:count]
    return cut


def with_last_state(body: PreTrainedModel) -> PreTrainedModel:
    """A shallow copy of a text_body whose last hidden state is the un-normed one that leaves its
    last layer: by transformers' own setting, which of other models stays as it is."""
    if getattr(body, "_can_record_outputs", None):
        # transformers would record both, the copy and what it is of, at the layers that they share
        maybe_install_capturing_hooks(body)
    untied = copy.copy(body)
    untied.config = copy.copy(body.config)
    untied.config.tie_last_hidden_states = False
    return untied


def logit_factor(config: PretrainedConfig) -> float:
    """What the family multiplies the products of its lm_head by."""
    for name, multiplies in FACTORS.items():
        value = getattr(config, name, None)
        # what a config.json has beside its class's names is read by no model
        if value is not None and hasattr(type(config), name):
            multiplies = multiplies or config.model_type in MULTIPLIED
            return float(value) if multiplies else 1 / float(value)
    return 1.0


def longest_text(config: PretrainedConfig) -> int:
    """Positions that the model was made for, or those before its rotary positions change."""
    most = getattr(config, "max_position_embeddings", None) or 2**31
    for part in rope_parts(config):
        # cached keys have the positions of before, so that plain decoding itself would mix the two
        if part.get("rope_type") == "longrope":
            most = min(most, part["original_max_position_embeddings"])
    return most


def rope_parts(config: PretrainedConfig) -> list[dict]:
    """The parameters of rotary positions; several where types of layers have their own."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [part for part in rope.values() if isinstance(part, dict)] or [rope]


def check_supported(config: PretrainedConfig) -> None:
    """Refuse, by its config alone, a model whose verification could not be right; of a multimodal
    model its text model is meant."""
    if config.is_encoder_decoder:
        raise BadInput(
            f"target of type {config.model_type!r} is an encoder-decoder; a decoder is needed"
        )
    config = text_config(config)
    kind = config.model_type
    # 1. It reads a text from left to right ("vision": both ways of images alone).
    for name, values in BOTH_WAYS.items():
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
    # 3. Its positions.
    if longest_text(config) < 1:
        raise BadInput(
            f"the target's config says {longest_text(config)} positions "
            "(max_position_embeddings): set it to the longest text that the model was made for"
        )
    for part in rope_parts(config):
        check_rope(part, f"target of type {kind!r}")


def check_rope(parameters: dict, owner: str, known: tuple[str, ...] = ROPES) -> None:
    """Refuse, by a BadInput that names the owner, rotary positions of another kind."""
    name = parameters.get("rope_type") or parameters.get("type") or "default"
    if name not in known:
        raise BadInput(
            f"{owner} has rope_type {name!r}; it can be one of {', '.join(known)}: others change "
            "with the length of the text, or are not known here"
        )

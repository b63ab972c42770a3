"""A target's stored weights: all of them, and no others; of a multimodal checkpoint those of its
text model. Code that a target brings along is never run.

Where transformers has a class for the text model alone, its weights are found in the checkpoint by
what their names begin with, and nothing else is read. Otherwise (Qwen-VL, GLM-V, whose text models
take positions in several dimensions) the whole model is loaded, and what is no part of its text
model is dropped.
"""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GgufConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.families import text_body, text_config
from eagle_fsd.heads.checkpoint import UNREADABLE
from eagle_fsd.heads.mtp_head import without_mtp

# ImportError: a quantisation, an attention or a tokenizer needs a package that is not here
UNLOADABLE = (*UNREADABLE, ImportError)
# What the names of a text model's weights begin with in multimodal checkpoints -> in its own
PREFIXES = {
    r"^model\.language_model\.": "model.",
    r"^model\.text_model\.": "model.",
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
# transformers' whole models of these families leave out the factor of the logits that their text
# models have (Cohere's logit_scale): which of the two distributions is right is not known here.
WITHOUT_FACTOR = ("aya_vision", "cohere2_vision")
AutoClass = type[AutoModelForCausalLM] | type[AutoModelForImageTextToText]


def class_to_load(config: PretrainedConfig) -> tuple[AutoClass, PretrainedConfig]:
    """The class that loads a target, of the whole config or of its text model's alone, and which.

    Raises:
        BadInput: transformers knows no class of the family that makes logits of text, or two that
            make different ones.
    """
    text, known = text_config(config), config.model_type not in WITHOUT_FACTOR
    if known and type(text) in MODEL_FOR_CAUSAL_LM_MAPPING:
        if text is not config:
            text = copy.deepcopy(text)
            # of these the whole model's values count
            for name in ("tie_word_embeddings", "eos_token_id", "quantization_config"):
                if getattr(config, name, None) is not None:
                    setattr(text, name, getattr(config, name))
        return AutoModelForCausalLM, text
    if known and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and text is not config:
        return AutoModelForImageTextToText, config
    raise BadInput(
        f"target of type {config.model_type!r} has no readout: transformers knows no class of this "
        "family that makes logits of text, or two that make different ones; give a causal language "
        "model"
    )


def text_only(model: PreTrainedModel) -> PreTrainedModel:
    """The model without what reads images and sounds, if it has any."""
    body = text_body(model)
    for parent in (model, model.base_model) if body is not model.base_model else ():
        for name, child in list(parent.named_children()):
            kept = (body, model.get_output_embeddings())
            if not any(part in kept for part in child.modules()):
                setattr(parent, name, None)
    return model


def stored_model(
    name: str, path: str, config: PretrainedConfig, *, dtype: torch.dtype, device: str, **options
) -> PreTrainedModel:
    """The model with the weights that are stored for it.

    Args:
        name: as users give it.
        path, options: what from_pretrained takes.
        config: the whole, of a multimodal checkpoint.
    """
    if "gguf_file" in options:
        # transformers 5.23 would keep GGUF weights packed
        options["quantization_config"] = GgufConfig(dequantize=True)
    auto_class, chosen = class_to_load(config)
    options |= {"config": chosen, "dtype": dtype, "device_map": device}
    # what does not fit is named below
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    if chosen is not config:
        options["key_mapping"] = PREFIXES
    try:
        with quiet_loading():
            model, found = auto_class.from_pretrained(path, **options)
    except torch.OutOfMemoryError:
        raise
    except UNLOADABLE as error:
        raise BadInput(
            f"target {name!r} does not load ({reason(error)}): mend or fetch its files anew, "
            "install what they need, or give another target"
        ) from error
    # Of what is missing transformers makes random numbers, and only warns. Tied weights, and keys
    # that it ignores for a family, are not among these.
    missing, misshapen = found["missing_keys"], found["mismatched_keys"]
    unexpected = without_mtp(found["unexpected_keys"], text_config(chosen))  # a drafter's (heads/)
    if "gguf_file" in options:  # which have more, such as rope_freqs
        unexpected = ()
    elif chosen is not config and not missing:
        # images' and sounds' are left out; not, where the text model is found, more of its own
        own = tuple(f"model.{part}." for part, _ in text_body(model).named_children())
        unexpected = [key for key in unexpected if key.startswith((*own, "lm_head."))]
    misshapen = [
        f"{key}, {tuple(stored)} in the place of {tuple(wanted)}"
        for key, stored, wanted in misshapen
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "misshapen": misshapen}
    faults = [
        f"{len(keys)} are {kind}, the first {min(keys)}" for kind, keys in kinds.items() if keys
    ]
    if faults:
        raise BadInput(
            f"the weights of target {name!r} are not those of the {type(model).__name__} that its "
            f"config describes: {'; '.join(faults)}: give a folder in which both belong together"
        )
    return text_only(model)


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keeps transformers' own progress bars quiet, which last for seconds, and its table of keys
    that are left out, those of what reads images and sounds. The bars of a download from the hub,
    which may last for long, are huggingface_hub's and stay."""
    hook = logging.set_tqdm_hook(lambda bar, args, named: bar(*args, **named | {"disable": True}))
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.set_tqdm_hook(hook)


def reason(error: Exception) -> str:
    """What transformers could not load, in one line, without advice to run what is a target's."""
    if "trust_remote_code" in str(error):
        return "it needs code of its own, which is never run here"
    if isinstance(error, pickle.UnpicklingError):
        return (
            "its weights are a pickle that is cut off, or of more than tensors, which could run "
            "code and is never loaded"
        )
    return one_line(error)

"""A target's weights: those that are stored, all and no others, and of a multimodal checkpoint
those of its text model; or random ones of a shape, for times and memory. Code that a target brings
along is never run.

Where transformers has a class for the text model alone, its weights are found in the checkpoint by
what their names begin with, and nothing else is read. Otherwise (Qwen-VL, GLM-V, whose text models
take positions in several dimensions) the whole model is loaded, and what is no part of its text
model is dropped.

Random weights are named where others are: target `random:llama-3.1-8b` or
`random:path/config.json`, head `random:eagle` or `random:eagle3:32000` (32,000 draft tokens).
"""

import copy
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GgufConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from eagle_fsd.config import BadInput, one_line
from eagle_fsd.families import text_body, text_config
from eagle_fsd.heads.checkpoint import UNREADABLE
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.head_config import head_shape
from eagle_fsd.heads.mtp_head import without_mtp
from eagle_fsd.models.model_files import check_generation

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
# In these the whole model reads something else than the embedding of the tokens that images and
# sounds stand in for, even where a prompt has no image; and what configs call such tokens.
PLACED = ("gemma3n", "gemma4", "gemma4_unified")
PLACEHOLDERS = re.compile("(image|video|audio)_token_id$")
AutoClass = type[AutoModelForCausalLM] | type[AutoModelForImageTextToText]
PREFIX = "random:"
# Where they differ from transformers' defaults, but for what has no part in the size or the time of
# a forward
SHAPES = {
    "llama-3.1-8b": lambda: LlamaConfig(
        vocab_size=128256,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    ),
}
# Logits of random rows vary by about 1, and a draft so flat fills the tree's first levels only.
# Steeper by this factor, the tree is as deep as a trained head's.
STEEPNESS = 8.0


def class_to_load(config: PretrainedConfig) -> tuple[AutoClass, PretrainedConfig]:
    """The class that loads a target, and the config that it takes: the whole one, or that of the
    text model alone."""
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
    """The model with the weights that are stored for it, all and no others. The name is as users
    give it, path and options are what from_pretrained takes, the config is the whole one."""
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
        check_generation(path)
        with quiet_loading():
            model, found = auto_class.from_pretrained(path, **options)
    except torch.OutOfMemoryError:  # which is a RuntimeError
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
    model = text_only(model)
    check_placed(model, name)
    return model


def check_placed(model: PreTrainedModel, name: str) -> None:
    """Refuse a target of which "auto" has left parts in the processor's memory or on the disk:
    accelerate would copy them to a card in every forward, and their weights are not at hand here.
    """
    cards = {str(place) for place in getattr(model, "hf_device_map", {}).values()} - {"cpu", "disk"}
    left = [
        part
        for part, weight in model.named_parameters()
        if weight.device.type == "meta" or cards and weight.device.type == "cpu"
    ]
    if left:
        raise BadInput(
            f"target {name!r} is larger than the memory that --device auto may spread it over: "
            f"{len(left)} of its weights lie elsewhere, the first {left[0]}; take more or larger "
            "cards, a --dtype of 16 bits, or --device cpu"
        )


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keeps transformers' own progress bars quiet, and its table of keys that are left out. The
    bars of a download, which may last for long, are huggingface_hub's and stay."""
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


# --- random ones ----------------------------------------------------------------------------------


@torch.no_grad()
def randomize(module: nn.Module, *, seed: int, readout: nn.Parameter | None = None) -> None:
    """Random weights that keep the size of what they act on: no overflow, no denormals. The
    readout, which makes the logits, is steeper."""
    parameters = list(module.named_parameters())  # tied ones once
    generator = torch.Generator(parameters[0][1].device).manual_seed(seed)
    for name, parameter in parameters:
        if parameter.ndim == 1:  # biases and norms
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        scale = parameter.shape[-1] ** -0.5
        if parameter is readout:
            scale *= STEEPNESS
        elif "embed" in name:
            scale = 1.0
        parameter.normal_(0.0, scale, generator=generator)
        parameter.copy_(parameter.bfloat16())  # numbers as most models are stored in


def random_model(config: PretrainedConfig, *, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A model of the shape, always the same on one kind of device, whose answers no token ends."""
    if device == "auto":
        raise BadInput("a target of random weights is made on one device: give --device")
    auto_class, config = class_to_load(config)
    with torch.device(device):
        model = auto_class.from_config(config, dtype=dtype, trust_remote_code=False)
    model = text_only(model).eval()
    randomize(model, seed=0, readout=model.get_output_embeddings().weight)
    model.generation_config.eos_token_id = None
    return model


def random_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, so that any text is a prompt; the vocabulary's other tokens have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    return fast


def random_head(name: str, target_config: PretrainedConfig) -> DraftHead:
    """A head shaped like a layer of the target, float32 on the CPU, for `random:TYPE` (one of
    HEAD_TYPES) or `random:TYPE:TOKENS`: a draft vocabulary spread evenly over the target's."""
    head_type, _, tokens = name.removeprefix(PREFIX).partition(":")
    if not tokens.isdecimal():  # a type alone, or one that is not known
        head_type, tokens = name.removeprefix(PREFIX), "0"
    R = int(tokens)
    config = head_shape(target_config, head_type=head_type, draft_vocab=R)
    config.check_fits(target_config)
    head = build_head(config).eval().requires_grad_(False)
    randomize(head, seed=1, readout=None if head.lm_head is None else head.lm_head.weight)
    if R:
        head.set_draft_tokens(torch.arange(R) * config.vocab_size // R)
    return head

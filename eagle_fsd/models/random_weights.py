"""Targets and heads of a given shape with random weights: for times and memory, not for quality.

They are named where others are: target `random:llama-3.1-8b` or `random:path/config.json`, head
`random:eagle` or `random:eagle3:32000` (32,000 draft tokens).
"""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from eagle_fsd.config import BadInput
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.head_config import head_shape
from eagle_fsd.models.weights import class_to_load, text_only

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
    """A model of the shape, always the same on one kind of device, whose answers no token ends.
    BadInput: no single device."""
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

"""Targets and heads of a given shape with random weights: for times and memory, not for quality.

They are named where others are: target `random:llama-3.1-8b` or `random:path/config.json`, head
`random:eagle` or `random:eagle3:32000` (32,000 draft tokens).

Nothing is initialised twice: a target is built empty on its device, and one block of normal numbers
is copied into it over and over. Its length is a prime, so no two rows of a matrix are alike.
"""

import os

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.initialization import no_init_weights

from eagle_fsd.config import BadInput
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import DraftHead, build_head
from eagle_fsd.heads.shape import head_shape

PREFIX = "random:"
HEAD_TYPES = ("eagle", "eagle3")
BLOCK = 1048583  # values, a prime
# Logits of random rows vary by about 1, and a draft so flat fills the tree's first levels only.
# Steeper by this factor, the tree is as deep as a trained head's.
STEEPNESS = 8.0


def empty_model(
    config: PretrainedConfig, dtype: torch.dtype, device: torch.device | str
) -> PreTrainedModel:
    """A model of the shape with unset weights; on "meta" it takes no memory."""
    with torch.device(device), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()  # no_init_weights leaves that out too
    return model.eval()


def module_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and buffers, tied ones once."""
    tensors = {id(t): t for t in [*module.parameters(), *module.buffers()]}
    return sum(t.nbytes for t in tensors.values())


def cache_row_bytes(config: PretrainedConfig | HeadConfig, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one position over all layers."""
    if isinstance(config, HeadConfig):
        channels = config.channels
    else:
        heads = config.num_attention_heads
        channels = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return config.num_hidden_layers * 2 * kv_heads * channels * dtype.itemsize


def device_bytes(device: torch.device) -> int:
    """Memory that could be had: free on an accelerator, installed on a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(needed: int, device: torch.device, *, name: str) -> None:
    """Refuse what cannot fit, before anything is allocated.

    Raises:
        BadInput: names both, in GiB.
    """
    available = device_bytes(device)
    if needed > available:
        raise BadInput(
            f"{name} needs {needed / 2**30:.3g} GiB and {device} has {available / 2**30:.3g} GiB: "
            "give a smaller shape or --dtype"
        )


@torch.no_grad()
def fill(module: nn.Module, *, seed: int, readout: nn.Parameter | None = None) -> None:
    """Random weights that keep the size of what they act on: no overflow, no denormals.

    Args:
        readout: the parameter that makes the logits; it is steeper.
    """
    parameters = list(module.named_parameters())  # tied ones once
    device = parameters[0][1].device
    generator = torch.Generator(device).manual_seed(seed)
    block = torch.randn(BLOCK, generator=generator, device=device)
    for name, parameter in parameters:
        if parameter.ndim == 1:  # biases and norms
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        scale = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
        if parameter is readout:
            scale = STEEPNESS * parameter.shape[-1] ** -0.5
        for part in parameter.view(-1).split(BLOCK):
            part.copy_(block[: part.shape[0]]).mul_(scale)


def random_model(
    config: PretrainedConfig, *, dtype: torch.dtype, device: str, seed: int = 0
) -> PreTrainedModel:
    """A model of the shape; the same seed gives the same weights on one kind of device.

    No token ends its answers: they are as long as their budget.

    Raises:
        BadInput: no single device, or too small a one.
    """
    if device == "auto":
        raise BadInput("a target of random weights is made on one device: give --device")
    size = module_bytes(empty_model(config, dtype, "meta"))
    check_memory(size, torch.device(device), name="a target of random weights")
    model = empty_model(config, dtype, device)
    fill(model, seed=seed, readout=model.get_output_embeddings().weight)
    model.generation_config.eos_token_id = None
    return model


def random_tokenizer(config: PretrainedConfig) -> PreTrainedTokenizerFast:
    """Bytes as tokens, so that any text is a prompt; the vocabulary's other tokens have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if config.vocab_size < len(alphabet):
        raise BadInput(
            f"a target of random weights takes bytes as tokens: a vocabulary of "
            f"{config.vocab_size} is too small, at least {len(alphabet)} are needed"
        )
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    return fast


def random_head(name: str, target_config: PretrainedConfig, *, seed: int = 1) -> DraftHead:
    """A head shaped like a layer of the target, float32 on the CPU.

    Args:
        name: `random:TYPE` or `random:TYPE:TOKENS`, with TYPE eagle (EAGLE-1/2) or eagle3; a
            draft vocabulary of so many TOKENS is spread evenly over the target's.

    Raises:
        BadInput: not of that form, or no such head for the target.
    """
    head_type, _, tokens = name.removeprefix(PREFIX).partition(":")
    if head_type not in HEAD_TYPES or (tokens and not tokens.isdecimal()):
        raise BadInput(
            f"a head of random weights is random:{' or random:'.join(HEAD_TYPES)}, with :TOKENS "
            f"for a draft vocabulary; got {name!r}"
        )
    R = int(tokens or 0)
    if R > target_config.vocab_size:
        raise BadInput(f"head {name!r}: the target has {target_config.vocab_size} tokens only")
    config = head_shape(target_config, head_type=head_type, draft_vocab=R)
    with no_init_weights():
        head = build_head(config).eval().requires_grad_(False)
    fill(head, seed=seed, readout=None if head.lm_head is None else head.lm_head.weight)
    if R:
        head.set_draft_tokens(torch.arange(R) * config.vocab_size // R)
    return head

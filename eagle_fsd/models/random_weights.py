"""A target and a head of a given shape with random weights, made where they will run.

Nothing is initialised twice: the modules are built empty on the device, and one block of normal
numbers is copied into them over and over. Its length is a prime, so no two rows of a matrix are
alike.
"""

import os

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.engine.families import check_tree_attention
from eagle_fsd.engine.select import choose_engine
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import build_head

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


def head_bytes(config: HeadConfig, dtype: torch.dtype) -> int:
    """Bytes of a head with the rows of an lm_head that it reads and does not share."""
    with torch.device("meta"):
        head = build_head(config).to(dtype)
    copied = 0
    if not config.eagle3 and config.draft_vocab_size:  # copied out of the target's lm_head
        copied = config.draft_vocab_size * config.hidden_size * dtype.itemsize
    return module_bytes(head) + copied


def cache_row_bytes(config: PretrainedConfig | HeadConfig, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one position over all layers."""
    if isinstance(config, HeadConfig):
        channels = config.channels
    else:
        heads = config.num_attention_heads
        channels = getattr(config, "head_dim", None) or config.hidden_size // heads
    per_layer = 2 * config.num_key_value_heads * channels
    return config.num_hidden_layers * per_layer * dtype.itemsize


def device_bytes(device: torch.device) -> int:
    """Memory that could be had: free on an accelerator, installed on a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(needed: dict[str, int], device: torch.device) -> None:
    """Refuse what cannot fit, before anything is allocated.

    Args:
        needed: what it is -> its bytes.

    Raises:
        BadInput: names every part, in GiB, and the device's memory.
    """
    total, available = sum(needed.values()), device_bytes(device)
    if total > available:
        parts = ", ".join(f"{name} {size / 2**30:.3g}" for name, size in needed.items())
        raise BadInput(
            f"{total / 2**30:.3g} GiB are needed ({parts}) and {device} has "
            f"{available / 2**30:.3g} GiB: give a smaller shape, --prompt_tokens or --dtype"
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


def random_target(
    config: PretrainedConfig,
    *,
    dtype: torch.dtype,
    device: str,
    engine: str = "auto",
    feature_layers: tuple[int, ...] = (),
    seed: int = 0,
) -> Target:
    """A target of the shape; the same seed gives the same weights on one kind of device.

    Args:
        engine: how it is run, as in eagle_fsd.api.load.
    """
    chosen = choose_engine(engine, device=device, dtype=dtype)
    model = empty_model(config, dtype, device)
    fill(model, seed=seed, readout=model.get_output_embeddings().weight)
    target = Target(model, engine=chosen, feature_layers=feature_layers, keep_stock=False)
    check_tree_attention(target)
    return target


def random_drafter(
    config: HeadConfig, target: Target, tree: TreeConfig, *, seed: int = 1
) -> EagleDrafter:
    """A drafter with a random head; a reduced vocabulary is spread evenly over the target's."""
    with no_init_weights():
        head = build_head(config).eval().to(target.device, target.dtype)
    head.requires_grad_(False)
    fill(head, seed=seed, readout=None if head.lm_head is None else head.lm_head.weight)
    R = config.draft_vocab_size
    if R:
        head.set_draft_tokens(torch.arange(R, device=target.device) * config.vocab_size // R)
    return EagleDrafter(head, target, tree)

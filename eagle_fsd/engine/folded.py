"""The engine for any device: stock layers in fewer operators, of torch's own.

On a GPU a round waits for the launches of its operators, not for their arithmetic, so it is their
number that counts (tests/test_launches.py has it). Stock layers stay where they are and keep their
weights, which become parts of joined ones: whoever looks for them there finds them (a router, a
baseline of transformers' own), and no weight is held twice.

Axes: R rows of a linear layer, D input size.
"""

from functools import partial

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from eagle_fsd.decoding.engine import Engine
from eagle_fsd.engine.attention import NAME, Rotation, sharing_copy
from eagle_fsd.engine.lean import ATTENTION, JOINED, joinable, lean_attention, lean_mlp, lean_norm
from eagle_fsd.families import text_body, text_config


class Folded(Engine):
    name = "folded"
    rebuilds = True

    def rebuild(self, model: PreTrainedModel, *, keep_stock: bool) -> PreTrainedModel:
        if keep_stock:
            model = sharing_copy(model)
        if text_config(model.config)._attn_implementation == "sdpa":
            model.set_attn_implementation(NAME)
        self.exchange(text_body(model))
        return model

    @torch.no_grad()
    def exchange(self, module: nn.Module) -> None:
        rotation = Rotation()
        for parent in module.modules():
            if hasattr(parent, "_hf_hook"):  # accelerate moves what enters and leaves it
                continue
            # 1. Layers of the same input become one product, with which their parent runs.
            for names in JOINED:
                if linears := joinable(parent, names):
                    product = _joined(linears)
                    if names == ATTENTION:
                        lean = lean_attention(parent, product, rotation)
                    else:
                        lean = lean_mlp(parent, product)
                    if lean is not None:
                        parent.forward = lean
            # 2. Norms.
            if (norm := lean_norm(parent)) is not None:
                parent.forward = norm

    def mask_repeats(self, config: PretrainedConfig) -> int:
        if config._attn_implementation != NAME:
            return 1
        heads = config.num_attention_heads
        return heads // (getattr(config, "num_key_value_heads", 0) or heads)


def _joined(linears: list[nn.Linear]) -> partial:
    """Their product, from [N, D] to [N, R] of all of them; each goes on with its part of the joined
    weight, so that it is held once."""
    parts = {"weight": [linear.weight for linear in linears]}
    if linears[0].bias is not None:
        parts["bias"] = [linear.bias for linear in linears]
    joined = {name: torch.cat([part.detach() for part in each]) for name, each in parts.items()}
    sizes = [linear.out_features for linear in linears]
    for name, each in parts.items():
        for part, own in zip(each, joined[name].split(sizes), strict=True):
            part.data = own
    return partial(nn.functional.linear, **joined)

"""Tiny random heads of every kind, with targets that give the hidden states they read."""

import torch
from tiny import FAMILIES, random_model, tiny_head

from eagle_fsd.decoding.target import Target
from eagle_fsd.heads.models import DraftHead, Eagle3Head

LAYERS = 7  # 2, 3 and 4 are upstream's fused layers of a target with seven


def draft_tokens(size: int, *, seed: int = 0) -> torch.Tensor:
    """Ascending token ids, neither the first nor consecutive."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(101, generator=generator)[:size].sort().values


def tiny_head3(*, seed: int = 0, scale: float = 1.0, **changes) -> Eagle3Head:
    """A random float32 EAGLE-3 head for a target of tiny.SIZES."""
    head = tiny_head(seed=seed, scale=scale, head_type="eagle3", **changes)
    if head.d2t is not None:
        head.set_draft_tokens(draft_tokens(head.d2t.shape[0], seed=seed))
    return head


def fused_target(family: str = "llama", *, seed: int = 0, layers: tuple[int, ...] = (2, 3, 4)):
    """A random target with seven layers that gives the hidden states an EAGLE-3 head reads."""
    config = FAMILIES[family]()
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * 3)[:LAYERS]
    config.num_hidden_layers = LAYERS
    return Target(random_model(config, seed=seed), feature_layers=layers)


HEADS = {
    "eagle3": {},
    "eagle3, own layers": {"feature_layers": (0, 6, 1), "head_dim": 14},
    "eagle3, 37 tokens": {"draft_vocab_size": 37, "num_key_value_heads": 1},
    "eagle3, normed residual": {"draft_vocab_size": 37, "norm_before_residual": True},
    "eagle": {},
    "eagle, 37 tokens": {"draft_vocab_size": 37},
    "eagle, biases": {"qkv_bias": True, "bias": False},
    "eagle, two layers": {"num_hidden_layers": 2},
}


def target_and_head(
    name: str, *, family: str = "llama", seed: int = 0, scale: float = 1.0
) -> tuple[Target, DraftHead]:
    """A head of HEADS, and a target that it reads."""
    changes = HEADS[name]
    if name.startswith("eagle3"):
        head = tiny_head3(seed=seed, scale=scale, **changes)
        return fused_target(family, seed=seed, layers=head.config.fused_layers(LAYERS)), head
    target = fused_target(family, seed=seed, layers=())
    head = tiny_head(target, seed=seed, scale=scale, **changes)
    if head.d2t is not None:
        head.set_draft_tokens(draft_tokens(37, seed=seed))
    return target, head

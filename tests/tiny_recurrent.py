"""Tiny random targets of every family with recurrent layers."""

import torch
from tiny import SIZES, random_model
from transformers import AutoConfig

from eagle_fsd.decoding.target import Target
from eagle_fsd.engine.select import ENGINES

LONG_SIZES = SIZES | {"max_position_embeddings": 1021, "num_hidden_layers": 4}
EXPERTS = {  # torch's grouped matmul wants rows of 16 bytes, in half precision too: no primes here
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 32,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
QWEN = DELTA | {"head_dim": 16}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 10,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
TYPES = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 3}
HYBRIDS = {
    "qwen3_next": QWEN | EXPERTS | {"mlp_only_layers": [0]},
    "qwen3_5_text": QWEN,
    "qwen3_5_moe_text": QWEN | EXPERTS,
    "olmo_hybrid": DELTA | {"linear_num_key_heads": 4},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 80, "head_dim": 10},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "granitemoehybrid": MAMBA
    | {
        "layer_types": TYPES,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "intermediate_size": 56,
        "shared_intermediate_size": 31,
        "logits_scaling": 3.0,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"],
        "ssm_state_size": 12,
        "mamba_num_heads": 8,
        "mamba_head_dim": 10,
        "n_groups": 2,
        "chunk_size": 16,
        "head_dim": 10,
        "n_routed_experts": 4,
        "moe_intermediate_size": 24,
        "moe_shared_expert_intermediate_size": 32,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "mamba_d_state": 12,
        "mamba_ngroups": 2,
        "n_mamba_heads": 8,
        "chunk_size": 16,
        "num_key_value_heads": 4,
        "num_mem_blocks": 2,
        "adapter_rank": 6,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
    },
    "lfm2": CONVOLUTIONS | {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": CONVOLUTIONS
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "kimi_linear": {
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "layer_types": TYPES,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 6,
        "v_head_dim": 10,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 24,
    },
}

KINDS = ("qwen3_5_text", "kimi_linear", "falcon_h1", "lfm2")  # one of every kind of recurrence


def hybrid_model(family: str, *, seed: int = 0, attention: str = "sdpa", **changes):
    """Decays, which transformers draws when it makes a model, are drawn from the seed too."""
    sizes = dict(LONG_SIZES)
    if family == "nemotron_h":
        del sizes["num_hidden_layers"]  # which follows from its list of layers
    config = AutoConfig.for_model(family, **sizes | HYBRIDS[family] | changes)
    torch.manual_seed(seed)
    return random_model(config, seed=seed, attention=attention)


def hybrid_target(family: str, *, engine: str = "stock", **options) -> Target:
    return Target(hybrid_model(family, **options), engine=ENGINES[engine]())

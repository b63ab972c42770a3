"""A tiny random model of every causal family that the installed transformers knows.

The config of a family is its class's default with small sizes: SIZES by the setting's name, and
SPECIAL for what a family needs besides. Weights are random and vary everywhere, biases and norms
too, so that a layer that an engine leaves out changes the answer.
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB, LAYERS, POSITIONS = 128, 4, 1024
MOST_PARAMETERS = 20_000_000
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
COUNTS = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers num_blocks"
    " encoder_layers num_encoder_layers layers depth"
).split()
NAMES = {
    VOCAB: "vocab_size vocab_size_per_layer_input decoder_vocab_size",
    POSITIONS: "max_position_embeddings n_positions max_seq_len n_ctx model_max_length"
    " max_target_positions context_length",
    64: "hidden_size n_embd d_model dim emb_dim embedding_dim embedding_size word_embed_proj_dim"
    " attention_hidden_size input_embedding_size output_embedding_size lru_width",
    96: "intermediate_size ffn_dim dff dim_ff d_inner decoder_ffn_dim encoder_ffn_dim n_inner"
    " ffn_hidden_size intermediate_size_mlp feed_forward_size dense_intermediate_size"
    " ffn_intermediate_size",
    32: "qk_head_dim moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size"
    " moe_shared_expert_intermediate_size expert_ffn_hidden_size mamba_d_ssm kv_lora_rank"
    " q_lora_rank o_lora_rank ple_embed_dim router_hidden_size shared_experts_intermediate_size"
    " rel_extent adapter_rank hc_lowrank chunk_size block_size",
    16: "head_dim kv_channels dim_head d_head attention_head_size attention_head_dim v_head_dim"
    " qk_nope_head_dim qk_rope_head_dim index_head_dim linear_key_head_dim linear_value_head_dim"
    " swa_head_dim global_head_dim mamba_d_head mamba_head_dim mamba_headdim linear_head_dim"
    " state_size ssm_state_size mamba_d_state hidden_size_per_layer_input laurel_rank"
    " time_step_rank mamba_dt_rank",
    8: "rotary_dim mamba_n_heads mamba_num_heads n_mamba_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads"
    " encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads"
    " attention_heads linear_num_value_heads swa_num_attention_heads linear_num_heads"
    " index_n_heads num_experts num_local_experts n_routed_experts moe_num_experts"
    " index_topk_blocks num_query_groups",
    2: "num_key_value_heads num_kv_heads num_experts_per_tok num_experts_per_token moe_k moe_topk"
    " linear_num_key_heads swa_num_key_value_heads topk_group n_group num_expert_group"
    " first_k_dense_replace num_kv_shared_layers zero_expert_num attn_layer_period"
    " expert_layer_period no_rope_layer_interval layer_group_size num_layers_per_stack o_groups",
    1: "num_nextn_predict_layers num_codebooks max_window_layers n_groups attn_layer_offset",
    0: "pad_token_id",
}
SIZES = {name: size for size, names in NAMES.items() for name in names.split()}
SIZES |= dict.fromkeys(COUNTS, LAYERS) | {"bos_token_id": 1, "eos_token_id": None}
WINDOWS = (
    "sliding_window sliding_window_size window_size attention_window_size local_attention"
    " attention_chunk_size index_topk"
).split()
# Settings of a family beside those; the whole of a nested config where its name is given
BOTH_LAYERS = ["linear_attention", "full_attention"] * 2
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPECIAL: dict[str, dict] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": VOCAB},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 32},
    "falcon_h1": {"mamba_d_ssm": 128},
    "granitemoehybrid": {"layer_types": BOTH_LAYERS},
    "hrm_text": {"num_hidden_layers": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": VOCAB,
    },
    "reformer": {"axial_pos_shape": [32, 32], "axial_pos_embds_dim": [32, 32]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_head_dim": 32, "attention_hidden_size": 128},
    "zamba2": {"attention_head_dim": 32, "attention_hidden_size": 128},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_config(family: str, *, window: int = 0) -> PretrainedConfig:
    """The family's config at its small sizes; with a window, where it has one.

    Raises:
        Exception: any, from a family whose sizes depend on each other in a way of its own.
    """
    return AutoConfig.for_model(family, **_shrunk(AutoConfig.for_model(family), window))


def has_window(config: PretrainedConfig) -> bool:
    """Whether the config, or the text's within it, names a window."""
    parts = [config, getattr(config, "text_config", None)]
    return any(hasattr(part, name) for part in parts if part for name in WINDOWS)


def _shrunk(config: PretrainedConfig, window: int) -> dict:
    """Settings that make a default config small."""
    given, changed = config.to_dict(), {}
    layers = next((given[n] for n in COUNTS if given.get(n)), 0)
    for name, value in given.items():
        if name in WINDOWS and window:
            changed[name] = window
        elif name in ("is_decoder", "use_sliding_window"):
            changed[name] = True
        elif name in SIZES and (value is not None or name == "eos_token_id"):
            changed[name] = SIZES[name]
        elif isinstance(value, list) and layers > 1 and len(value) == layers:
            changed[name] = _shortened(value)
    for name in config.sub_configs:
        if isinstance(part := getattr(config, name, None), PretrainedConfig):
            changed[name] = _shrunk(part, window)
    if given.get("kv_lora_rank"):  # keys of every head are made from one vector
        changed["num_key_value_heads"] = SIZES["num_attention_heads"]
    return changed | SPECIAL.get(config.model_type, {})


def _shortened(each_layer: list) -> list:
    """What layers are, for LAYERS of them: every kind in turn, in the order of their coming."""
    kinds = list(dict.fromkeys(map(repr, each_layer)))
    chosen = [each_layer[list(map(repr, each_layer)).index(kind)] for kind in kinds]
    return (chosen * LAYERS)[:LAYERS]


def tiny_model(config: PretrainedConfig, *, seed: int) -> PreTrainedModel:
    """A float32 model of numbers that bfloat16 holds. ValueError: it would not be tiny."""
    with torch.device("meta"):
        shape = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if (count := sum(p.numel() for p in shape.parameters())) > MOST_PARAMETERS:
        raise ValueError(f"the model has {count:,} parameters")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _randomize(model, seed=seed)
    return model.requires_grad_(False)


@torch.no_grad()
def _randomize(module: nn.Module, *, seed: int) -> None:
    """Matrices keep the size of what they act on, times 1.5, so that the argmax varies; biases and
    norms vary by .1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.copy_(0.1 * noise)
        elif parameter.ndim < 2:  # a norm: around what it was made with
            parameter.add_(0.1 * noise)
        elif "embed" in name:
            parameter.copy_(noise)
        else:
            parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
        parameter.copy_(parameter.bfloat16())

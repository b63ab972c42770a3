"""Tiny random multimodal checkpoints as folders on disk; their text models are of tests/tiny.py's
sizes."""

from copy import deepcopy
from pathlib import Path

import torch
from tiny import MIXED, WIDE, WINDOW, randomize
from tiny_folder import write_target
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

EYES = {
    "hidden_size": 32,
    "intermediate_size": 36,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
# by dimension of the positions; they add up to half of a head's size
TURNS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 2]}}
SLIDING = {"sliding_window": WINDOW, "layer_types": list(MIXED)}
# name -> settings of the text model and of what reads images
MULTIMODAL = {
    "gemma3": (WIDE | SLIDING, EYES),
    "gemma4": (
        WIDE
        | SLIDING
        | {"hidden_size_per_layer_input": 0, "global_head_dim": 14, "pad_token_id": 0},
        EYES,
    ),
    "mistral3": (
        WIDE | {"model_type": "mistral", "sliding_window": None},
        EYES | {"model_type": "pixtral"},
    ),
    "llama4": (
        WIDE
        | {
            "intermediate_size_mlp": 53,
            "num_local_experts": 3,
            "moe_layers": [1],
            "no_rope_layers": [1, 0, 1],
            "attention_chunk_size": 16,
        },
        EYES | {"vision_output_dim": 40, "projector_input_dim": 8, "projector_output_dim": 8},
    ),
    "qwen3_vl": (
        WIDE | TURNS,
        {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 36,
            "num_heads": 2,
            "patch_size": 4,
            "out_hidden_size": 40,
            "spatial_merge_size": 2,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
    ),
}


def multimodal_model(family: str) -> PreTrainedModel:
    text, eyes = deepcopy(MULTIMODAL[family])  # Gemma 4's config changes its layer_types
    config = AutoConfig.for_model(family, text_config=text, vision_config=eyes)
    config.tie_word_embeddings = False
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    randomize(model, seed=0, scale=1.5)
    return model.eval().requires_grad_(False)


def write_multimodal(folder: Path, family: str) -> PreTrainedModel:
    """With write_target's tokenizer; the model that was written."""
    model = multimodal_model(family)
    model.save_pretrained(write_target(folder))
    return model

"""What a .gguf file says of its model and transformers' reader leaves out: taken where the config
has a setting for it, refused by its key where it has none."""

import re
from pathlib import Path

import numpy as np
import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle_fsd.config import BadInput
from eagle_fsd.families import rope_parts
from eagle_fsd.recurrent.kinds import layer_types

# Keys behind the architecture's name that can change logits, but for those that every model's
# class reads or that are settings of training
MATTERS = re.compile("attention[.]|expert|rope[.]|.*softcapping|.*_scale")
READ = re.compile(
    "attention[.](head_count(_kv)?|layer_norm(_rms)?_epsilon|causal)|rope[.]scaling[.]finetuned"
)
# What configs call the same
NAMES = {
    "attention.key_length": ("global_head_dim", "head_dim"),
    "attention.key_length_swa": ("head_dim",),
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "attention.value_length": ("global_head_dim", "head_dim"),
    "attention.value_length_swa": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_used_count": ("num_experts_per_tok",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale",),
}
# Llama 3.1's and 3.2's, whose frequencies a file holds as factors
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def take_metadata(config: PretrainedConfig, path: Path) -> None:
    """Complete the config that transformers made of the file. BadInput names what has no place."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    kind = reader.fields["general.architecture"].contents()
    said = {
        key.removeprefix(f"{kind}."): field.contents()
        for key, field in reader.fields.items()
        if key.startswith(f"{kind}.")
    }
    factors = {t.name: t.data for t in reader.tensors if t.name.startswith("rope_f")}
    # 1. What has a setting of its own.
    left = {key: v for key, v in said.items() if MATTERS.match(key) and not READ.match(key) and v}
    for key, names in NAMES.items():
        own = [name for name in names if hasattr(config, name)]
        if own and key in left:
            setattr(config, own[0], left.pop(key))
    if "attention.sliding_window" not in said and not layer_types(config):
        config.sliding_window = None  # of Mistral's class there is one by default
    slides = [kind == "sliding_attention" for kind in layer_types(config)]
    pattern = left.pop("attention.sliding_window_pattern", slides)
    if pattern not in (slides, slides and next((n for n, s in enumerate(slides, 1) if not s), 0)):
        left["attention.sliding_window_pattern"] = pattern
    # 2. Rotary positions, which layers that slide may have their own of.
    heads, rope = getattr(config, "num_attention_heads", 1), rope_parts(config)[0]
    size = config.hidden_size // heads
    if getattr(config, "head_dim", None) and "attention.key_length" in said:
        size = config.head_dim
    elif hasattr(config, "head_dim"):
        config.head_dim = size  # as llama.cpp has it; configs have sizes by default
    full = (getattr(config, "rope_parameters", None) or {}).get("full_attention", rope)
    local = (getattr(config, "rope_parameters", None) or {}).get("sliding_attention", full)
    rotary = int(size * full.get("partial_rotary_factor", 1))
    own_parts = {"": full} | ({} if local is full else {"_swa": local})
    for end, part in own_parts.items() if rope else ():
        if left.get(f"rope.dimension_count{end}") == rotary:
            del left[f"rope.dimension_count{end}"]
        part["rope_theta"] = left.pop(f"rope.freq_base{end}", part.get("rope_theta"))
    scaling = {"rope_type": left.get("rope.scaling.type", "none")}
    if scaling["rope_type"] in ("none", full.get("rope_type")):
        left = {key: value for key, value in left.items() if not key.startswith("rope.scaling.")}
    elif scaling["rope_type"] in ("linear", "yarn") and rope:
        del left["rope.scaling.type"]
        scaling["factor"] = left.pop("rope.scaling.factor", 1.0)
        if length := left.pop("rope.scaling.original_context_length", None):
            scaling["original_max_position_embeddings"] = length
        full.update(scaling)
    if "rope_freqs.weight" in factors and rope and local is full:
        factor_R = torch.from_numpy(np.array(factors["rope_freqs.weight"], dtype=np.float32))
        before = dict(full)
        plain_R = full["rope_theta"] ** (-torch.arange(0, rotary, 2) / rotary)
        full.update(LLAMA3, rope_type="llama3", factor=factor_R.max().item())
        scaled_R = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]
        if factor_R.shape == plain_R.shape and (plain_R / scaled_R).allclose(factor_R, rtol=1e-3):
            del factors["rope_freqs.weight"]
        else:
            config.rope_parameters = before
    # 3. What is left has no place.
    if refused := [*(f"{kind}.{key}" for key in left), *factors]:
        raise BadInput(
            f"{path} says what transformers does not read of it or has no setting for "
            f"({', '.join(refused)}), without which its text is another: give the checkpoint that "
            "it was made from, of safetensors"
        )

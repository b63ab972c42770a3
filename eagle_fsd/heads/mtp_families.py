"""Multi-token-prediction (MTP) layers inside checkpoints: of which families, under which keys, and
with which of transformers' layers they run.

A checkpoint of these families holds, beside the target, a layer that predicts one token further:

    families                        keys of the MTP layer of number k; n = target's layers + k
    DeepSeek-V3, GLM-4.5 to 4.7     model.layers.n.{enorm,hnorm,eh_proj,shared_head.norm}, and the
                                    decoder layer under model.layers.n.
    Qwen3-Next, Qwen3.5 to 3.8      mtp.{pre_fc_norm_embedding,pre_fc_norm_hidden,fc,norm}, and the
                                    decoder layer under mtp.layers.k.
    MiMo-7B, with a config of       model.mtp_layers.k.{token_layernorm,hidden_layernorm,input_proj,
    type qwen2                      final_layernorm}, and a Qwen2 layer beside them

The keys are those of transformers 5.23 (conversion_mapping.py, "MtpModel"), for Qwen and MiMo those
of vLLM (vllm/model_executor/models/{qwen3_next_mtp,mimo_mtp}.py). Another family takes an entry of
FAMILIES. Its norms, attention and experts are what transformers' class of the family makes them: of
Qwen's the norms' factor is 1 + weight, the attention's queries have a gate.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from transformers import PretrainedConfig


@dataclass(frozen=True)
class Layout:
    """Names of an MTP layer's tensors, with {n} and {k} for its number (see above).

    Attributes:
        enorm, hnorm, eh_proj, norm: what norms the embedding and the hidden state, projects both
            side by side to one, and norms what comes out of the decoder layer.
        every: what all names begin with.
        layer: what those of the decoder layer's own tensors begin with.
        embedding, lm_head: where a checkpoint keeps these a second time.
        hidden_first: the projection reads [hidden, embedding] and not [embedding, hidden].
        several: it holds as many layers as one likes, each with all of its own.
    """

    enorm: str
    hnorm: str
    eh_proj: str
    norm: str
    every: str
    layer: str
    embedding: str = ""
    lm_head: str = ""
    hidden_first: bool = False
    several: bool = True


BEHIND = Layout(
    enorm="model.layers.{n}.enorm.weight",
    hnorm="model.layers.{n}.hnorm.weight",
    eh_proj="model.layers.{n}.eh_proj.weight",
    norm="model.layers.{n}.shared_head.norm.weight",
    every="model.layers.{n}.",
    layer="model.layers.{n}.",
    embedding="model.layers.{n}.embed_tokens.weight",
    lm_head="model.layers.{n}.shared_head.head.weight",
)
APART = Layout(
    enorm="mtp.pre_fc_norm_embedding.weight",
    hnorm="mtp.pre_fc_norm_hidden.weight",
    eh_proj="mtp.fc.weight",
    norm="mtp.norm.weight",
    every="mtp.",
    layer="mtp.layers.{k}.",
    embedding="mtp.embed_tokens.weight",
    several=False,
)
MIMO = Layout(
    enorm="model.mtp_layers.{k}.token_layernorm.weight",
    hnorm="model.mtp_layers.{k}.hidden_layernorm.weight",
    eh_proj="model.mtp_layers.{k}.input_proj.weight",
    norm="model.mtp_layers.{k}.final_layernorm.weight",
    every="model.mtp_layers.{k}.",
    layer="model.mtp_layers.{k}.",
    hidden_first=True,
)
# By the model type of a text model's config
FAMILIES = {
    "deepseek_v3": BEHIND,
    "glm4_moe": BEHIND,
    "glm4_moe_lite": BEHIND,
    "qwen2": MIMO,
    "qwen3_5_moe_text": APART,
    "qwen3_5_text": APART,
    "qwen3_next": APART,
}
# What configs call the number of MTP layers
COUNTS = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers")


def stored_name(template: str, layer: int, target_layers: int) -> str:
    """A name of a Layout for the MTP layer of that number."""
    return template.format(k=layer, n=target_layers + layer)


def stored_layers(layout: Layout, keys: Iterable[str], target_layers: int) -> int:
    """How many MTP layers there are under these keys."""
    held, count = set(keys), 0
    while stored_name(layout.eh_proj, count, target_layers) in held:
        count += 1
        if not layout.several:
            break
    return count


def without_mtp(keys: Iterable[str], config: PretrainedConfig) -> list[str]:
    """Keys of a checkpoint that are no MTP layer's, which has a projection: a decoder layer that is
    merely one more than the config counts has none."""
    keys, layout = list(keys), FAMILIES.get(config.model_type)
    if layout is None:
        return keys
    n = config.num_hidden_layers
    layers = range(stored_layers(layout, keys, n))
    mine = tuple(stored_name(layout.every, layer, n) for layer in layers)
    return [key for key in keys if not key.startswith(mine)]


def layers_config(config: PretrainedConfig, count: int) -> PretrainedConfig:
    """A config with which the family's model class makes the decoder layers of `count` MTP layers
    in the place of its own, numbered from 0: all with full attention, and with experts where the
    family has any."""
    own = copy.deepcopy(config)
    own.num_hidden_layers = count
    for name, value in (
        ("layer_types", ["full_attention"] * count),
        ("mlp_layer_types", ["sparse"] * count),
        ("first_k_dense_replace", 0),
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
    ):
        if getattr(own, name, None) is not None:
            setattr(own, name, value)
    return own

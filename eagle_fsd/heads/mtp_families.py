"""The multi-token-prediction (MTP) layer inside checkpoints: of which families, under which keys,
and with which of transformers' layers it runs.

A checkpoint of these families holds, beside the target, a layer that predicts one token further:

    families                        keys of the MTP layer; n = the number of the target's layers
    DeepSeek-V3, GLM-4.5 to 4.7     model.layers.n.{enorm,hnorm,eh_proj,shared_head.norm}, and the
                                    decoder layer under model.layers.n.
    Qwen3-Next, Qwen3.5 to 3.8      mtp.{pre_fc_norm_embedding,pre_fc_norm_hidden,fc,norm}, and the
                                    decoder layer under mtp.layers.0.
    MiMo-7B, with a config of       model.mtp_layers.0.{token_layernorm,hidden_layernorm,input_proj,
    type qwen2                      final_layernorm}, and a Qwen2 layer beside them

The keys are those of transformers 5.23 (conversion_mapping.py, "MtpModel"), for Qwen and MiMo those
of vLLM (vllm/model_executor/models/{qwen3_next_mtp,mimo_mtp}.py). Another family takes an entry of
FAMILIES. Its norms, attention and experts are what transformers' class of the family makes them: of
Qwen's the norms' factor is 1 + weight, the attention's queries have a gate.
"""

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from transformers import PretrainedConfig


@dataclass(frozen=True)
class Layout:
    """Names of an MTP layer's tensors, with {n} for the number of layers before it (see above).

    Attributes:
        enorm, hnorm, eh_proj, norm: what norms the embedding and the hidden state, projects both
            side by side to one, and norms what comes out of the decoder layer.
        every: what all names begin with.
        layer: what those of the decoder layer's own tensors begin with.
        embedding, lm_head: where a checkpoint keeps these a second time.
        hidden_first: the projection reads [hidden, embedding] and not [embedding, hidden].
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

    def after(self, layers: int) -> "Layout":
        """The names behind so many decoder layers."""
        names = {key: value for key, value in asdict(self).items() if isinstance(value, str)}
        return replace(self, **{key: name.format(n=layers) for key, name in names.items()})


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
    layer="mtp.layers.0.",
    embedding="mtp.embed_tokens.weight",
)
MIMO = Layout(
    enorm="model.mtp_layers.0.token_layernorm.weight",
    hnorm="model.mtp_layers.0.hidden_layernorm.weight",
    eh_proj="model.mtp_layers.0.input_proj.weight",
    norm="model.mtp_layers.0.final_layernorm.weight",
    every="model.mtp_layers.",
    layer="model.mtp_layers.0.",
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


def counted_layers(config: PretrainedConfig) -> int:
    """How many MTP layers a text model's config counts, at least one."""
    return max(1, *(getattr(config, name, None) or 0 for name in COUNTS))


def without_mtp(keys: Iterable[str], config: PretrainedConfig) -> list[str]:
    """Keys of a checkpoint that are no MTP layer's, which has a projection: a decoder layer that is
    merely one more than the config counts has none."""
    keys, layout = list(keys), FAMILIES.get(config.model_type)
    if layout is None:
        return keys
    first = config.num_hidden_layers
    layers = [layout.after(n) for n in range(first, first + counted_layers(config))]
    starts = tuple(layer.every for layer in layers if layer.eh_proj in keys)
    return [key for key in keys if not key.startswith(starts)]


def layer_config(config: PretrainedConfig) -> PretrainedConfig:
    """A config with which the family's model class makes the decoder layer of an MTP layer in the
    place of its own: with full attention, and with experts where the family has any."""
    only = copy.deepcopy(config)
    only.num_hidden_layers = 1
    for name, value in (
        ("layer_types", ["full_attention"]),
        ("mlp_layer_types", ["sparse"]),
        ("first_k_dense_replace", 0),
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
    ):
        if getattr(only, name, None) is not None:
            setattr(only, name, value)
    return only

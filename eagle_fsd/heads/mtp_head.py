"""A checkpoint's own multi-token-prediction (MTP) layer as a draft head: of which families, under
which keys, and the module, made of transformers' classes of the family.

    proj([norm(embedding of token i+1), norm(hidden i)]) -> decoder layer -> final norm -> lm_head

That is the step of EAGLE-1 (draft_head.py) with norms of its own, and its logits are of token i+2
too. Checkpoints were trained for one step; below the first level the layer is run on its own output
(arXiv 2509.18362). Which of two states it reads is a switch, on which engines disagree:

    feature   the target's hidden state after its final norm ("normed", as transformers and vLLM
              take it) or before ("raw")
    own       its own output after its final norm, or before

Axes: B batch, T new positions, D hidden size.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_layers import MtpLayer

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.families import cache_name, text_body
from eagle_fsd.heads.draft_head import DraftHead

CACHE_NAME = cache_name(MtpLayer)
STATES = ("normed", "raw")
ROUTER_BIAS = "e_score_correction_bias"  # chooses experts, in float32 whatever the weights are in
# what two targets have alike of which one's MTP layer is the other's too, as far as configs say
FITTING = ("model_type", "hidden_size", "vocab_size", "num_hidden_layers")
# What is around the decoder layer: the norms of the embedding and of the hidden state, what makes
# one of both side by side, and the norm of the output; and copies of the tables of the target.
PARTS = ("enorm", "hnorm", "eh_proj", "norm", "embedding", "lm_head")


def names(start: str, layer: str, *ends: str) -> dict[str, str]:
    """What a checkpoint calls these parts; of "" what all names begin with, of "layer" what those
    of the decoder layer do. {n} is the number of the target's layers. They are those of
    transformers 5.23 (conversion_mapping.py, "MtpModel"), for Qwen and MiMo of vLLM
    (qwen3_next_mtp, mimo_mtp)."""
    ends = (*ends, "embed_tokens", "shared_head.head")
    parts = {part: f"{start}{end}.weight" for part, end in zip(PARTS, ends, strict=True)}
    return {"": start, "layer": start + layer} | parts


BEHIND = names("model.layers.{n}.", "", "enorm", "hnorm", "eh_proj", "shared_head.norm")
APART = names("mtp.", "layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MIMO = names(  # whose projection reads [hidden, embedding]
    *("model.mtp_layers.", "0."),
    *("0.token_layernorm", "0.hidden_layernorm", "0.input_proj", "0.final_layernorm"),
)
# By the model type of a text model's config. Norms, attention and experts are what transformers'
# class of the family makes them.
FAMILIES = {
    "deepseek_v3": BEHIND,
    "glm4_moe": BEHIND,
    "glm4_moe_lite": BEHIND,
    "qwen2": MIMO,  # MiMo-7B, with a config of that type
    "qwen3_5_moe_text": APART,
    "qwen3_5_text": APART,
    "qwen3_next": APART,
}
# What configs call the number of MTP layers
COUNTS = ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers")


def counted_layers(config: PretrainedConfig) -> int:
    return max(1, *(getattr(config, name, None) or 0 for name in COUNTS))


def without_mtp(keys: Iterable[str], config: PretrainedConfig) -> list[str]:
    """Keys of a checkpoint that are no MTP layer's, which has a projection: a decoder layer that is
    merely one more than the config counts has none."""
    keys, named = list(keys), FAMILIES.get(config.model_type)
    first = config.num_hidden_layers if named else 0  # some other families have no such setting
    for n in range(first, first + counted_layers(config)) if named else ():
        if named["eh_proj"].format(n=n) in keys:
            keys = [key for key in keys if not key.startswith(named[""].format(n=n))]
    return keys


def check_same(own: dict[str, object], target_config: PretrainedConfig) -> None:
    for key in FITTING:
        if own.get(key) != (wanted := getattr(target_config, key)):
            raise BadInput(
                f"an MTP layer of another target: its {key} is {own.get(key)}, not {wanted}; name "
                "one that was made for this target"
            )


@dataclass
class MtpConfig:
    """What a HeadConfig says of other heads.

    Attributes:
        target: of the target's text model.
        feature, own: see above.
        fused_experts: its experts lie in one tensor for all, in the checkpoint as in transformers.
        layer: with what the family's model class makes the decoder layer, as one with full
            attention, and with experts where the family has any.
    """

    target: PretrainedConfig
    feature: str = "normed"
    own: str = "normed"
    own_lm_head: bool = False
    fused_experts: bool = False

    head_type = "mtp"
    eagle3 = False
    own_embedding = False
    draft_vocab_size = None
    num_hidden_layers = 1

    def __post_init__(self):
        for name in ("feature", "own"):
            check_known(name, getattr(self, name), STATES)
        self.layer = layer = copy.deepcopy(self.target)
        alone = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
        alone |= {"mlp_layer_types": ["sparse"], "first_k_dense_replace": 0}
        alone |= {"mlp_only_layers": [], "decoder_sparse_step": 1}
        for name, value in alone.items():
            if getattr(layer, name, None) is not None:
                setattr(layer, name, value)
        self.hidden_size = self.feature_size = layer.hidden_size
        self.vocab_size = layer.vocab_size
        self.num_attention_heads = layer.num_attention_heads
        self.num_key_value_heads = layer.num_key_value_heads

    @property
    def _attn_implementation(self) -> str:
        return self.layer._attn_implementation

    @_attn_implementation.setter
    def _attn_implementation(self, name: str) -> None:
        self.layer._attn_implementation = name

    def key(self, part: str) -> str:
        """What the checkpoint calls it, see names."""
        return FAMILIES[self.target.model_type][part].format(n=self.target.num_hidden_layers)

    def fused_layers(self, target_layers: int) -> tuple[int, ...]:
        """The target's hidden states that it reads, see Target.feature_layers: the last."""
        return (target_layers,) if self.feature == "raw" else ()

    def check_fits(self, target_config: PretrainedConfig) -> None:
        check_same({key: getattr(self.target, key) for key in FITTING}, target_config)


class MtpHead(DraftHead):
    """Without weights until they are loaded; `step` is transformers' own but for the final norm."""

    config: MtpConfig

    def __init__(self, config: MtpConfig):
        with torch.device("meta"):  # takes no memory: its layers are wanted, and their classes
            model = AutoModelForCausalLM.from_config(
                config.layer, dtype=torch.float32, trust_remote_code=False
            )
        body = text_body(model)
        config.layer = body.config  # the very one that the layer reads
        body.config.mtp_hidden_states_first = FAMILIES[config.target.model_type] is MIMO
        super().__init__(config, rotary=type(body.rotary_emb)(config=body.config))
        kind, norm, D = type(body.layers[0]), type(body.norm), config.hidden_size
        with torch.device("meta"):
            self.step = MtpLayer(config.layer, kind, norm, 0, use_post_norm=False)
            self.norm = norm(D, eps=config.layer.rms_norm_eps)
            if config.own_lm_head:
                self.lm_head = nn.Linear(D, config.vocab_size, bias=False)

    def normed(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden_BTD) if self.config.own == "raw" else hidden_BTD

    def forward(self, hidden_BTD, embedding_BTD, angle_BT2d, *, cache=None, mask=None):
        output_BTD = self.step(
            embedding_BTD,
            hidden_BTD,
            position_embeddings=angle_BT2d.to(hidden_BTD.dtype).unbind(2),
            attention_mask=mask,
            position_ids=None,
            **{CACHE_NAME: cache},
        )
        return output_BTD if self.config.own == "raw" else self.norm(output_BTD)

    def _apply(self, fn, recurse: bool = True) -> "MtpHead":
        """A module's own, of another device or dtype; routers' biases stay in float32."""
        biases = [(part, part._buffers.get(ROUTER_BIAS)) for part in self.modules()]
        super()._apply(fn, recurse)
        for part, bias in biases:
            if bias is not None and not bias.is_meta:
                part._buffers[ROUTER_BIAS] = bias.to(part._buffers[ROUTER_BIAS].device)
        return self

"""A checkpoint's own MTP layers as a draft head, made of transformers' classes of its family.

    proj([norm(embedding of token i+1), norm(hidden i)]) -> decoder layer -> final norm -> lm_head

That is the step of EAGLE-1 (draft_head.py) with norms of its own, and its logits are of token i+2
too. Checkpoints were trained for one step; below the first level the layer is run on its own output
(arXiv 2509.18362 says what that costs, and trains it). Which of two states it reads is a switch:

    feature   the target's hidden state after its final norm ("normed") or before ("raw")
    own       its own output after its final norm, or before

Both are "normed" by default. So are the features in transformers 5.23 (hidden_states[-1] in
generation/candidate_generator.py) and in vLLM, and engines that had recycled the state before the
norm gained by taking the one behind it (ROCm/ATOM 1742 and 1764, vllm-project/vllm 47448);
ggml-org/llama.cpp 24025 says the opposite of DeepSeek and GLM.

Axes: B batch, T new positions, D hidden size.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, Cache, PretrainedConfig
from transformers.modeling_layers import MtpLayer

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.families.text_model import text_body
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.heads.mtp_families import Layout, layers_config

STATES = ("normed", "raw")
ROUTER_BIAS = "e_score_correction_bias"  # chooses experts, in float32 whatever the weights are in


# what two targets have alike of which one's MTP layers are the other's too, as far as configs say
FITTING = ("model_type", "hidden_size", "vocab_size", "num_hidden_layers")


def check_same(own: dict[str, object], target_config: PretrainedConfig) -> None:
    """Refuse, by a BadInput, another target than one with these values of FITTING."""
    for key in FITTING:
        if own.get(key) != (wanted := getattr(target_config, key)):
            raise BadInput(
                f"an MTP layer of another target: its {key} is {own.get(key)}, not {wanted}"
            )


@dataclass
class MtpConfig:
    """What a HeadConfig says of other heads.

    Attributes:
        target: of the target's text model.
        layers: what the decoder layers are made with, and read (mtp_families.layers_config).
        count: of the layers.
        feature, own: see above.
        own_lm_head: it has one; else the target's is its own too.
        fused_experts: its experts lie in one tensor for all, in the checkpoint as in transformers.
    """

    target: PretrainedConfig
    layout: Layout
    layers: PretrainedConfig
    count: int = 1
    feature: str = "normed"
    own: str = "normed"
    own_lm_head: bool = False
    fused_experts: bool = False

    head_type = "mtp"
    eagle3 = False
    own_embedding = False
    draft_vocab_size = None

    def __post_init__(self):
        for name in ("feature", "own"):
            check_known(name, getattr(self, name), STATES)

    @property
    def hidden_size(self) -> int:
        return self.layers.hidden_size

    @property
    def feature_size(self) -> int:
        """The target's hidden size, see HeadConfig."""
        return self.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.layers.vocab_size

    @property
    def num_attention_heads(self) -> int:
        return self.layers.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        return self.layers.num_key_value_heads

    @property
    def num_hidden_layers(self) -> int:
        return self.count

    @property
    def _attn_implementation(self) -> str:
        return self.layers._attn_implementation

    @_attn_implementation.setter
    def _attn_implementation(self, name: str) -> None:
        self.layers._attn_implementation = name

    def fused_layers(self, target_layers: int) -> tuple[int, ...]:
        """The target's hidden states that it reads, see Target.feature_layers: the last."""
        return (target_layers,) if self.feature == "raw" else ()

    def check_fits(self, target_config: PretrainedConfig) -> None:
        """Refuse a layer of another target, by a BadInput that names both values."""
        check_same({key: getattr(self.target, key) for key in FITTING}, target_config)

    def check_one(self) -> None:
        """Refuse several layers, by a BadInput, where one is run at every level."""
        if self.count > 1:
            raise BadInput(
                f"a head of {self.count} MTP layers, each for a level of its own, grows trees and "
                "does nothing else here: it can be neither trained nor judged by level"
            )


class MtpHead(DraftHead):
    """MTP layers, without weights; `steps` are transformers' own but for the final norm."""

    config: MtpConfig

    def __init__(self, config: MtpConfig):
        with torch.device("meta"):  # takes no memory: its layers are wanted, and their classes
            model = AutoModelForCausalLM.from_config(
                config.layers, dtype=torch.float32, trust_remote_code=False
            )
        body = text_body(model)
        config.layers = body.config  # the very one that the layers read
        body.config.mtp_hidden_states_first = config.layout.hidden_first
        super().__init__(config, rotary=type(body.rotary_emb)(config=body.config))
        kind, norm = type(body.layers[0]), type(body.norm)
        D, eps, layers = config.hidden_size, config.layers.rms_norm_eps, range(config.count)
        with torch.device("meta"):  # until load_state_dict(.., assign=True)
            self.steps = nn.ModuleList(
                MtpLayer(config.layers, kind, norm, i, use_post_norm=False) for i in layers
            )
            self.norms = nn.ModuleList(norm(D, eps=eps) for _ in layers)
            if config.own_lm_head:
                self.lm_head = nn.Linear(D, config.vocab_size, bias=False)

    @property
    def fc(self) -> nn.Linear:
        """The first layer's projection."""
        return self.steps[0].eh_proj

    def normed(self, hidden_BTD: torch.Tensor, layer: int = 0) -> torch.Tensor:
        return self.norms[layer](hidden_BTD) if self.config.own == "raw" else hidden_BTD

    def forward(self, hidden_BTD, embedding_BTD, angle_T2d, *, cache=None, mask=None):
        self.config.check_one()
        step = (hidden_BTD, embedding_BTD, angle_T2d)
        return self.run_layer(0, *step, cache=cache, mask=mask)

    def run_layer(
        self,
        layer: int,
        hidden_BTD: torch.Tensor,
        embedding_BTD: torch.Tensor,
        angle_T2d: torch.Tensor,
        *,
        cache: Cache | None,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """`forward` of one of several layers, whose rows are a layer of the cache."""
        output_BTD = self.steps[layer](
            embedding_BTD,
            hidden_BTD,
            position_embeddings=angle_T2d.to(hidden_BTD.dtype)[None].unbind(2),
            attention_mask=mask,
            position_ids=None,
            past_key_values=cache,
        )
        return output_BTD if self.config.own == "raw" else self.norms[layer](output_BTD)

    def _apply(self, fn, recurse: bool = True) -> "MtpHead":
        """As a module's own, to another device or dtype; routers' biases stay in float32."""
        biased = [part for part in self.modules() if ROUTER_BIAS in part._buffers]
        kept = [(part, part._buffers[ROUTER_BIAS]) for part in biased]
        kept = [(part, bias) for part, bias in kept if not bias.is_meta]
        super()._apply(fn, recurse)
        for part, bias in kept:
            part._buffers[ROUTER_BIAS] = bias.to(part._buffers[ROUTER_BIAS].device)
        return self


def new_config(
    target: PretrainedConfig,
    layout: Layout,
    count: int,
    *,
    feature: str = "normed",
    own: str = "normed",
    own_lm_head: bool = False,
    fused_experts: bool = False,
) -> MtpConfig:
    """Of `count` MTP layers behind a target's."""
    states = {"feature": feature, "own": own}
    kept = {"own_lm_head": own_lm_head, "fused_experts": fused_experts}
    return MtpConfig(target, layout, layers_config(target, count), count, **states, **kept)

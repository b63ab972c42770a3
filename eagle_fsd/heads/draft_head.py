"""The draft heads EAGLE-1/2 and EAGLE-3, and how training runs them on their own predictions.

A head is run step by step on `hidden`: at true positions `fuse(features)`, below them its own last
output. A step reads hidden at position i and the embedding of token i+1, and its output stands for
position i+1; the logits of token i+2 are made of it (draft_readout in drafters/eagle.py).

    EAGLE-1/2  hidden = the target's feature (hidden state after the final norm);
               fc([embedding, hidden]), then a stock Llama layer without input norm; the target's
               own lm_head (SafeAILab/EAGLE eagle/model/cnets1.py; arXiv 2401.15077 section 4.1)
    EAGLE-3    hidden = fc([three of the target's hidden states]); one Llama layer whose q, k, v
               read [norm(embedding), norm(hidden)]; own norm and lm_head, over a reduced vocabulary
               (eagle/model/cnets.py; arXiv 2503.01840 section 3); what others add: HeadConfig

Names of parameters and buffers are upstream's checkpoint keys, and vLLM's for layers behind the
first ("layers.1.").

Axes: B batch, T new positions, S unrolled steps, D hidden size, F features (the target's hidden
size, or several states of it side by side), R draft vocabulary.
"""

from collections.abc import Iterable

import torch
from torch import nn
from transformers import Cache, DynamicCache
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from eagle_fsd.config import check_known
from eagle_fsd.families import cache_name
from eagle_fsd.heads.head_config import HeadConfig

CACHE_NAME = cache_name(LlamaDecoderLayer)


class DraftHead(nn.Module):
    """What all kinds share. Where lm_head is None, logits are made by the target's; the embedding
    likewise."""

    lm_head: nn.Linear | None
    embed_tokens: nn.Embedding | None

    def __init__(self, config: HeadConfig, rotary: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.lm_head = None  # not in the class, where it would hide the module of EAGLE-3
        own = config.own_embedding
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size) if own else None
        # Cosines come from a float32 table even in a half-precision head, so the table is no
        # submodule, which `to` would cast (as upstream does, which blurs far positions).
        self._rotary = (rotary or LlamaRotaryEmbedding(config),)
        R = config.draft_vocab_size
        self.register_buffer("d2t", torch.zeros(R, dtype=torch.int64) if R else None)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def draft_token_R(self) -> torch.Tensor | None:
        """The target's id of every token that can be drafted, int64 [R]; None: all, as they are."""
        if self.d2t is None:
            return None
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def set_draft_tokens(self, token_R: torch.Tensor) -> None:
        """Of ascending ids of the target, int64 [R]; of all of them there is nothing to be set."""
        if self.d2t is None:
            return
        self.d2t.copy_(token_R - torch.arange(len(token_R), device=token_R.device))
        if hasattr(self, "t2d"):
            self.t2d.zero_()[token_R] = True

    def fuse(self, feature_BTF: torch.Tensor) -> torch.Tensor:
        """The target's features as the head's hidden, [B, T, D]."""
        return feature_BTF

    def normed(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """What the lm_head reads."""
        return hidden_BTD

    def forward(
        self,
        hidden_BTD: torch.Tensor,
        embedding_BTD: torch.Tensor,
        angle_BT2d: torch.Tensor,
        *,
        cache: Cache | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One step: the next hidden of every position, [B, T, D].

        Args:
            hidden_BTD: `fuse` of the target's features, or what an earlier step returned.
            embedding_BTD: of the token AFTER each position.
            angle_BT2d: of `angles`; of one sequence, that of all.
            cache: rows are appended to it.
            mask: additive, [1 or B, 1, T, rows]; None: causal without rows before T, full if T = 1.
        """
        raise NotImplementedError

    def angles(self, position_T: torch.Tensor) -> torch.Tensor:
        """Cosines and sines of rotary positions, float32 [T, 2, head_dim]."""
        rotary = self._rotary[0]
        if rotary.inv_freq.device != position_T.device:
            rotary.to(position_T.device)
        cos_1Td, sin_1Td = rotary(rotary.inv_freq, position_T[None])
        return torch.stack([cos_1Td[0], sin_1Td[0]], dim=1)


class _Layer(LlamaDecoderLayer):
    """A stock layer, with Qwen3's attention where q and k are normed."""

    def __init__(self, config: HeadConfig, index: int):
        super().__init__(config, index)
        if config.qk_norm:
            self.self_attn = Qwen3Attention(config, index)
        self.self_attn.o_proj.bias = None  # qkv_bias is of q, k and v, and none of o


class EagleHead(DraftHead):
    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.bias)
        self.layers = nn.ModuleList(_Layer(config, i) for i in range(config.num_hidden_layers))
        # the feature is already normed; upstream's first layer has no input norm
        self.layers[0].input_layernorm = nn.Identity()
        if config.own_lm_head:
            rows = config.draft_vocab_size or config.vocab_size
            self.lm_head = nn.Linear(config.hidden_size, rows, bias=False)

    def forward(self, hidden_BTD, embedding_BTD, angle_BT2d, *, cache=None, mask=None):
        hidden_BTD = self.fc(torch.cat([embedding_BTD, hidden_BTD], dim=-1))
        positions = angle_BT2d.to(hidden_BTD.dtype).unbind(2)
        return _run(self.layers, hidden_BTD, positions, cache, mask)


class Eagle3Head(DraftHead):
    """EAGLE-3, and what its publishers add (HeadConfig). The next step reads the un-normed output,
    with norm_output the normed one."""

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        D, R, eps = config.hidden_size, config.draft_vocab_size, config.rms_norm_eps
        F = config.num_fused * config.feature_size
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(F, eps)
        if config.fc_norm:
            sizes = [config.feature_size] * config.num_fused
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(size, eps) for size in sizes)
        if config.use_aux_hidden_state:
            self.fc = nn.Linear(F, D, bias=False)
        self.midlayer = _Eagle3Layer(config)
        further = {str(i): _Layer(config, i) for i in range(1, config.num_hidden_layers)}
        self.layers = nn.ModuleDict(further)
        self.norm = LlamaRMSNorm(D, eps)
        if config.own_lm_head:
            self.lm_head = nn.Linear(D, R or config.vocab_size, bias=False)
        if R:
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def fuse(self, feature_BTF: torch.Tensor) -> torch.Tensor:
        if self.config.norm_before_fc:
            feature_BTF = self.input_norm(feature_BTF)
        if self.config.fc_norm:
            states = feature_BTF.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(state) for norm, state in zip(self.fc_norm, states, strict=True)]
            feature_BTF = torch.cat(normed, dim=-1)
        return self.fc(feature_BTF) if self.config.use_aux_hidden_state else feature_BTF

    def normed(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return hidden_BTD if self.config.norm_output else self.norm(hidden_BTD)

    def forward(self, hidden_BTD, embedding_BTD, angle_BT2d, *, cache=None, mask=None):
        positions = angle_BT2d.to(hidden_BTD.dtype).unbind(2)
        hidden_BTD = self.midlayer(hidden_BTD, embedding_BTD, positions, cache=cache, mask=mask)
        hidden_BTD = _run(self.layers.values(), hidden_BTD, positions, cache, mask)
        return self.norm(hidden_BTD) if self.config.norm_output else hidden_BTD


def _run(layers: Iterable[_Layer], hidden_BTD, positions, cache, mask) -> torch.Tensor:
    """Stock layers one after the other; `positions` are cosines and sines, [1, T, d] each."""
    for layer in layers:
        hidden_BTD = layer(
            hidden_BTD,
            attention_mask=mask,
            use_cache=cache is not None,
            position_embeddings=positions,
            **{CACHE_NAME: cache},
        )
    return hidden_BTD


class _Eagle3Layer(_Layer):
    """A layer whose attention reads the embedding beside the hidden state."""

    def __init__(self, config: HeadConfig):
        super().__init__(config, 0)
        D = config.hidden_size
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = LlamaRMSNorm(D, config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * D, rows, bias=config.qkv_bias))

    def forward(self, hidden_BTD, embedding_BTD, position_embeddings, *, cache, mask):
        normed_BTD = self.hidden_norm(hidden_BTD)
        if self.norm_before_residual:
            hidden_BTD = normed_BTD
        attended_BTD, _ = self.self_attn(
            torch.cat([self.input_layernorm(embedding_BTD), normed_BTD], dim=-1),
            position_embeddings=position_embeddings,
            attention_mask=mask,
            **{CACHE_NAME: cache},
        )
        hidden_BTD = hidden_BTD + attended_BTD
        return hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD))


HEAD_TYPES: dict[str, type[DraftHead]] = {"eagle": EagleHead, "eagle3": Eagle3Head}


def build_head(config: HeadConfig) -> DraftHead:
    """A head of this shape, freshly initialised."""
    check_known("head_type", config.head_type, HEAD_TYPES)
    return HEAD_TYPES[config.head_type](config)


def unroll(
    head: DraftHead, feature_BTF: torch.Tensor, embedding_BTD: torch.Tensor, *, steps: int
) -> torch.Tensor:
    """The output of a head that is run on its own predictions along a known text, [S, B, T, D].

    Step 1 is the head as EAGLE-1/2 trains it: true features everywhere. At step s the head has
    already drafted s - 1 tokens, so the last s - 1 hidden states it sees are its own (EAGLE-3's
    training-time test, arXiv 2503.01840; HASS, arXiv 2408.15766). All steps at position i predict
    the same thing, the feature at i+1 and the token at i+2, and so share their labels. Positions
    i < s - 1 have no root s levels above them and hold nothing of meaning.

    Args:
        embedding_BTD: embedding of the token after each position, the text's throughout.
    """
    if not torch.is_autocast_enabled(feature_BTF.device.type):
        # the target may be in half precision while the head is not
        feature_BTF, embedding_BTD = feature_BTF.to(head.dtype), embedding_BTD.to(head.dtype)
    fused_BTD = head.fuse(feature_BTF)
    position_T = torch.arange(feature_BTF.shape[1], device=feature_BTF.device)
    behind_TT = position_T[:, None] - position_T  # of each key, as seen from each query
    angle_1T2d = head.angles(position_T)[None]
    cache = DynamicCache()  # it concatenates: nothing that a gradient needs is changed in place
    hidden_BTD, mask, outputs = fused_BTD, None, []
    for step in range(steps):
        if step:  # what the last step predicted for index i stands at i - 1
            hidden_BTD = torch.cat([fused_BTD[:, :1], outputs[-1][:, :-1]], dim=1)
            # Over the keys of all steps so far, [1, 1, T, (step + 1) T]: of keys from true features
            # those up to the root, then one of each step. At position 4 a query sees (step: keys)
            #     step 1    1: 0 1 2 3 4
            #     step 2    1: 0 1 2 3        2: 4
            #     step 3    1: 0 1 2          2: 3     3: 4
            blocks = [behind_TT >= step, *(behind_TT == step - own for own in range(1, step + 1))]
            seen = torch.cat(blocks, dim=1)[None, None]
            mask = torch.zeros_like(seen, dtype=hidden_BTD.dtype)
            mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
        outputs.append(head(hidden_BTD, embedding_BTD, angle_1T2d, cache=cache, mask=mask))
    return torch.stack(outputs)

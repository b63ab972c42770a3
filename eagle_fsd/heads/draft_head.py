"""The draft heads: EAGLE-1/2 and EAGLE-3. How trees are grown with them is in eagle.py.

A head is run step by step on `hidden`: at true positions `fuse(features)`, below them its own last
output. A step reads hidden at position i and the embedding of token i+1, and its output stands for
position i+1; the logits of token i+2 are made of it (draft_readout in drafters/eagle.py).

    EAGLE-1/2  hidden = the target's feature (hidden state after the final norm);
               fc([embedding, hidden]), then a stock Llama layer without input norm; the target's
               own lm_head (SafeAILab/EAGLE eagle/model/cnets1.py; arXiv 2401.15077 section 4.1)
    EAGLE-3    hidden = fc([three of the target's hidden states]); one Llama layer whose q, k, v
               read [norm(embedding), norm(hidden)]; own norm and lm_head, over a reduced vocabulary
               (eagle/model/cnets.py; arXiv 2503.01840 section 3)

Names of parameters and buffers are upstream's checkpoint keys.

Axes: B batch, T new positions, N rows, D hidden size, F features (D or 3 D), V the target's
vocabulary, R draft vocabulary, X tokens that may be taken into it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn
from transformers import Cache
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from eagle_fsd.config import BadInput, check_known
from eagle_fsd.heads.head_config import HeadConfig


class DraftHead(nn.Module):
    """What both kinds share: the draft vocabulary, rotary positions and the way to logits, by an
    lm_head of its own or, where that is None, the target's."""

    lm_head: nn.Linear | None

    def __init__(self, config: HeadConfig, rotary: nn.Module | None = None):
        super().__init__()
        self.config = config
        self.lm_head = None  # not in the class, where it would hide the module of EAGLE-3
        # Cosines come from a float32 table even in a half-precision head, so the table is no
        # submodule, which `to` would cast (as upstream does, which blurs far positions).
        self._rotary = (rotary or LlamaRotaryEmbedding(config),)
        R = config.draft_vocab_size
        self.register_buffer("d2t", torch.zeros(R, dtype=torch.int64) if R else None)

    @property
    def draft_token_R(self) -> torch.Tensor | None:
        """The target's id of every token that can be drafted, int64 [R]; None: all, as they are."""
        if self.d2t is None:
            return None
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def set_draft_tokens(self, token_R: torch.Tensor) -> None:
        """Choose the draft vocabulary: ascending target ids, int64 [R]."""
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
        angle_T2d: torch.Tensor,
        *,
        cache: Cache | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One step: the next hidden of every position, [B, T, D].

        Args:
            hidden_BTD: `fuse` of the target's features, or what an earlier step returned.
            embedding_BTD: of the token AFTER each position.
            angle_T2d: of `angles`; a single one is that of all.
            cache: rows are appended to it.
            mask: additive, [1 or B, 1, T, rows]; None: causal without rows before T, full if T = 1.
        """
        raise NotImplementedError

    def angles(self, position_T: torch.Tensor) -> torch.Tensor:
        """What a step reads of rotary positions: cosines and sines, float32 [T, 2, head_dim]."""
        rotary = self._rotary[0]
        if rotary.inv_freq.device != position_T.device:
            rotary.to(position_T.device)
        cos_1Td, sin_1Td = rotary(rotary.inv_freq, position_T[None])
        return torch.stack([cos_1Td[0], sin_1Td[0]], dim=1)


def _cos_and_sin(angle_T2d: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """As transformers' layers take them, [1, T, d] each."""
    return angle_T2d.to(dtype)[None].unbind(2)


class EagleHead(DraftHead):
    """EAGLE-1/2."""

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.bias)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        # the feature is already normed; upstream's first layer has no input norm
        self.layers[0].input_layernorm = nn.Identity()
        for layer in self.layers:  # qkv_bias is of q, k and v, and none of o
            layer.self_attn.o_proj.bias = None

    def forward(self, hidden_BTD, embedding_BTD, angle_T2d, *, cache=None, mask=None):
        hidden_BTD = self.fc(torch.cat([embedding_BTD, hidden_BTD], dim=-1))
        positions = _cos_and_sin(angle_T2d, hidden_BTD.dtype)
        for layer in self.layers:
            hidden_BTD = layer(
                hidden_BTD,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=cache is not None,
                position_embeddings=positions,
            )
        return hidden_BTD


class Eagle3Head(DraftHead):
    """EAGLE-3. The un-normed output is what the next step reads."""

    def __init__(self, config: HeadConfig):
        super().__init__(config)
        D, R = config.hidden_size, config.draft_vocab_size
        self.fc = nn.Linear(3 * D, D, bias=False)
        self.midlayer = _Eagle3Layer(config)
        self.norm = LlamaRMSNorm(D, config.rms_norm_eps)
        self.lm_head = nn.Linear(D, R or config.vocab_size, bias=False)
        if R:
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def fuse(self, feature_BTF: torch.Tensor) -> torch.Tensor:
        return self.fc(feature_BTF)

    def normed(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden_BTD)

    def forward(self, hidden_BTD, embedding_BTD, angle_T2d, *, cache=None, mask=None):
        positions = _cos_and_sin(angle_T2d, hidden_BTD.dtype)
        return self.midlayer(hidden_BTD, embedding_BTD, positions, cache=cache, mask=mask)


class _Eagle3Layer(LlamaDecoderLayer):
    """A Llama layer whose attention reads the embedding beside the hidden state."""

    def __init__(self, config: HeadConfig):
        super().__init__(config, 0)
        D = config.hidden_size
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = LlamaRMSNorm(D, config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * D, rows, bias=config.qkv_bias))
        self.self_attn.o_proj.bias = None

    def forward(self, hidden_BTD, embedding_BTD, position_embeddings, *, cache, mask):
        normed_BTD = self.hidden_norm(hidden_BTD)
        if self.norm_before_residual:
            hidden_BTD = normed_BTD
        attended_BTD, _ = self.self_attn(
            torch.cat([self.input_layernorm(embedding_BTD), normed_BTD], dim=-1),
            position_embeddings=position_embeddings,
            attention_mask=mask,
            past_key_values=cache,
        )
        hidden_BTD = hidden_BTD + attended_BTD
        return hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD))


HEAD_TYPES: dict[str, type[DraftHead]] = {"eagle": EagleHead, "eagle3": Eagle3Head}


def build_head(config: HeadConfig) -> DraftHead:
    """A head of this shape, freshly initialised."""
    check_known("head_type", config.head_type, HEAD_TYPES)
    return HEAD_TYPES[config.head_type](config)


# --- the draft vocabulary: the tokens that a head can draft ---------------------------------------
#
# A head over 16 K of 49 K tokens reads a third of the lm_head at every level (FR-Spec, arXiv
# 2502.14856; EAGLE-3's d2t). What the target says outside of it can never be drafted, and counts in
# every divergence. It is chosen before training, or cut out of a head that exists.


def answer_counts(dialogues: Iterable) -> Counter[int]:
    """How often each token is in `ids` of dialogues where `mask` says the assistant wrote it."""
    return Counter(t for d in dialogues for t, own in zip(d.ids, d.mask, strict=True) if own)


def frequent_tokens(counts: Counter[int], size: int, token_X: torch.Tensor) -> torch.Tensor:
    """Ascending ids of the `size` tokens among `token_X` that were written most often, int64 [R].
    Where fewer were written, the lowest ids fill up."""
    if not 1 <= size <= len(token_X):
        raise BadInput(f"a draft vocabulary of {size} must be 1 to {len(token_X)} tokens")
    # equal counts: the lower id, whatever the order of the data
    ranked = sorted(token_X.tolist(), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:size]))


def coverage(counts: Counter[int], token_R: torch.Tensor) -> float:
    """Share of what was written that is in the draft vocabulary."""
    return sum(counts[token] for token in token_R.tolist()) / max(1, counts.total())


def cut_vocabulary(head: DraftHead, token_R: torch.Tensor) -> DraftHead:
    """The same head, drafting these of its tokens only; its logits are the former ones' columns.

    An EAGLE-1/2 head reads the target's lm_head, so that it only gets d2t. An EAGLE-3 head keeps
    these rows of its own lm_head, and gets d2t and t2d:

        drafts before    2 5 7 9    lm_head rows a b c d    d2t 2 4 5 6
        token_R          5 9        lm_head rows b d        d2t 5 8

    The head given is not changed; token_R are ascending ids, int64 [R], all in its vocabulary.
    """
    former_R = head.draft_token_R
    row_R = token_R if former_R is None else torch.searchsorted(former_R, token_R)
    cut = build_head(replace(head.config, draft_vocab_size=len(token_R))).eval()
    cut.set_draft_tokens(token_R)
    weights = dict(head.named_parameters())
    if head.lm_head is not None:
        weights["lm_head.weight"] = weights["lm_head.weight"].detach()[row_R]
    cut.load_state_dict(dict(cut.named_buffers()) | weights, assign=True)
    return cut

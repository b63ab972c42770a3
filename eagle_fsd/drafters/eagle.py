"""The EAGLE-1/2 draft head, and the drafter that grows dynamic trees with it.

The head predicts the target's next feature (hidden state after the final norm) from the present
feature and the next token's embedding: fc([embedding, feature]), then one stock Llama decoder layer
without input norm. The target's embedding and lm_head are reused. Architecture and key names:
SafeAILab/EAGLE eagle/model/cnets1.py (arXiv 2401.15077 section 4.1); trees: tree.py.

Axes: B batch, T new positions, K frontier nodes, D hidden size, V vocabulary.
"""

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from eagle_fsd.cache import TreeCache
from eagle_fsd.checkpoint import HeadConfig
from eagle_fsd.config import TreeConfig
from eagle_fsd.target import Target
from eagle_fsd.tree import DraftTree, TreeGrower


class EagleHead(nn.Module):
    """fc + decoder layers; parameter names are upstream's checkpoint keys."""

    def __init__(self, config: HeadConfig):
        super().__init__()
        self.config = config
        self._llama_config = _llama_config(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.bias)
        self.layers = nn.ModuleList(
            _decoder_layer(self._llama_config, i, qkv_bias=config.qkv_bias)
            for i in range(config.num_hidden_layers)
        )
        # Cosines come from a float32 table even in a half-precision head, so the table is no
        # submodule, which `to` would cast. (Upstream's are cast: reference/eagle.md section 1.1.)
        self._rotary = (LlamaRotaryEmbedding(self._llama_config),)

    def forward(
        self,
        feature_BTD: torch.Tensor,
        embedding_BTD: torch.Tensor,
        position_T: torch.Tensor,
        *,
        cache: TreeCache | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Predicted next features, [B, T, D].

        Args:
            feature_BTD: the target's (or the head's own) feature at each position.
            embedding_BTD: embedding of the token AFTER each position.
            position_T: rotary positions, int64 [T].
            cache: rows are appended to it.
            mask: additive float mask [1, 1, T, rows]; None is causal without rows before T, and
                full with T = 1.
        """
        hidden_BTD = self.fc(torch.cat([embedding_BTD, feature_BTD], dim=-1))
        rotary = self._rotary[0]
        if rotary.inv_freq.device != hidden_BTD.device:
            rotary.to(hidden_BTD.device)
        position_embeddings = rotary(hidden_BTD, position_T[None])
        for layer in self.layers:
            hidden_BTD = layer(
                hidden_BTD,
                attention_mask=mask,
                position_ids=position_T[None],
                past_key_values=cache,
                use_cache=cache is not None,
                position_embeddings=position_embeddings,
            )
        return hidden_BTD


def _llama_config(config: HeadConfig) -> LlamaConfig:
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling:
        scaling = dict(config.rope_scaling)
        rope |= {"rope_type": scaling.pop("type"), **scaling}
    return LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        num_hidden_layers=config.num_hidden_layers,
        hidden_act=config.hidden_act,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=rope,
        attention_bias=config.qkv_bias,
        attn_implementation="sdpa",
    )


def _decoder_layer(config: LlamaConfig, index: int, *, qkv_bias: bool) -> LlamaDecoderLayer:
    layer = LlamaDecoderLayer(config, index)
    if index == 0:  # the feature is already normed; upstream's first layer has no input norm
        layer.input_layernorm = nn.Identity()
    if qkv_bias:  # Qwen2 heads: biases on q, k and v, none on o
        layer.self_attn.o_proj.bias = None
    return layer


class EagleDrafter:
    """Grows one EAGLE-2 tree a round with an EAGLE-1/2 head.

    Rows of committed tokens stay in the head's cache ("stable"); rows of the tree are dropped after
    each round. With n committed tokens (the root is the last) the stable rows are the pairs
    (f_0, t_1) .. (f_{n-2}, t_{n-1}); the last one's output is the root's, and a frontier of level d
    stands at position n - 2 + d.
    """

    def __init__(self, head: EagleHead, target: Target, tree: TreeConfig):
        if tree.branch_top_k > target.vocab_size:
            raise ValueError(
                f"branch_top_k {tree.branch_top_k} is more than the vocabulary {target.vocab_size}"
            )
        weight = head.fc.weight
        wanted = (target.hidden_size, 2 * target.hidden_size)
        if tuple(weight.shape) != wanted or weight.dtype != target.dtype:
            raise ValueError(
                f"the head's fc.weight is {tuple(weight.shape)} in {weight.dtype}, "
                f"the target needs {wanted} in {target.dtype}"
            )
        self.head = head
        self.target = target
        self.tree_config = tree
        self.max_nodes = tree.num_draft_tokens + 1
        self._cache: TreeCache | None = None
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def reset(self, capacity: int) -> None:
        rows = capacity + self.max_nodes + self.tree_config.num_expanded
        self._cache = TreeCache(self.head.config.num_hidden_layers, rows)
        self._pending = []

    def observe(self, features_TD: torch.Tensor, next_token_T: torch.Tensor) -> None:
        self._pending.append((features_TD, next_token_T))

    @torch.inference_mode()
    def propose(self) -> DraftTree:
        hidden_KD, root_1 = self._extend()
        device = hidden_KD.device
        stable = self._cache.length
        grower = TreeGrower(self.tree_config)
        K = self.tree_config.branch_top_k
        seen_KE = torch.zeros(K, 0, dtype=torch.bool, device=device)  # a frontier's own ancestors
        own_KK = torch.eye(K, dtype=torch.bool, device=device)
        for level in range(self.tree_config.tree_depth):
            token_K, slot_K = grower.add_level(self.target.logits(hidden_KD))
            if level + 1 == self.tree_config.tree_depth:
                break
            if level:
                seen_KE = seen_KE[slot_K]
            seen_KE = torch.cat([seen_KE, own_KK], dim=1)
            hidden_KD = self.head(
                hidden_KD[slot_K][None],
                self.target.embed(token_K)[None],
                torch.full((K,), stable + level, device=device),
                cache=self._cache,
                mask=self._mask(stable, seen_KE),
            )[0]
        self._cache.truncate(stable)
        return grower.finish(root_1)

    def _extend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the pairs committed since the last round; return the root's row [1, D] and token."""
        features_TD, token_T = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        self._pending = []
        stable, T = self._cache.length, token_T.shape[0]
        causal_TT = torch.ones(T, T, dtype=torch.bool, device=token_T.device).tril()
        hidden_TD = self.head(
            features_TD[None],
            self.target.embed(token_T)[None],
            torch.arange(stable, stable + T, device=token_T.device),
            cache=self._cache,
            mask=self._mask(stable, causal_TT) if stable and T > 1 else None,
        )[0]
        return hidden_TD[-1:], token_T[-1:]

    def _mask(self, stable: int, visible_TE: torch.Tensor) -> torch.Tensor:
        """Additive mask [1, 1, T, stable + E]: all stable rows, and of the new ones those given."""
        dtype = self.head.fc.weight.dtype
        mask = torch.zeros(visible_TE.shape, dtype=dtype, device=visible_TE.device)
        mask.masked_fill_(~visible_TE, torch.finfo(dtype).min)
        return nn.functional.pad(mask, (stable, 0))[None, None]

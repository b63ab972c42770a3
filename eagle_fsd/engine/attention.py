"""Attention of few queries over a long cache.

transformers' sdpa attention repeats keys and values for every query head of a group when it is
given a mask (with 128 sequences of 300 tokens on a CPU: most of a step's time). Here the queries of
a group are folded into the rows instead, so that keys and values are read once and nothing is
copied. The mask of a tree comes folded too, made once a round (masks.py), not once a layer.

Axes: B sequences, H query heads, G key/value heads, R = H / G, N queries (tree nodes), K keys,
d head size.
"""

import copy
import inspect
import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from eagle_fsd.families import CACHE_NAMES, cache_name
from eagle_fsd.recurrent.states import ARGUMENT

NAME = "eagle_fsd_folded"

# What a layer may tell its attention that changes nothing here: masks and positions of nodes are
# those that the target made. Whatever else it tells, transformers' own attention is to hear.
UNHEARD = frozenset(
    {"is_causal", "output_attentions", "output_hidden_states", "position_ids", "sliding_window"}
    | {"use_cache", ARGUMENT}
)
# What a layer's forward must take, by these names and no others, for RotaryAttention to replace it
ROTARY = {"hidden_states", "position_embeddings", "attention_mask"}

# From this number of scores a key head on, two bf16 products beat the flash kernel on a CPU
# (measured: 1.6 times at 60 nodes and 200 keys, 1.4 at 8 and 4,000). Their scores are rounded to
# bf16, as in transformers' eager attention, and held in memory, so only for as many queries as
# trees have. In float32 they are no faster.
PRODUCT_SCORES, PRODUCT_QUERIES = 20_000, 64


def folded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """In transformers' calling convention: [B, N, H, d], and no weights.

    Args:
        query: [B, H, N, d]; prompts, which have no mask, go to transformers' sdpa attention.
        key, value: [B, G, K, d].
        attention_mask: from masks.additive_mask; or of one query a sequence, [B, 1, 1, K]; or None
            with one query, which sees every key.
        kwargs: of what is not in UNHEARD all but None goes to transformers' sdpa attention.
    """
    B, H, N, d = query.shape
    G = key.shape[1]
    rows = H // G * N
    # of one row, or of several sequences; one that a layer makes for each query head stays
    if attention_mask is not None and N == 1 and attention_mask.shape[1] in (1, G):
        attention_mask = attention_mask.expand(-1, -1, rows, -1)
    whole = N == 1 if attention_mask is None else attention_mask.shape[2] == rows
    heard = not UNHEARD.issuperset(kwargs) and any(
        value is not None for name, value in kwargs.items() if name not in UNHEARD
    )
    if not whole or heard:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    folded = query.reshape(B, G, rows, d)
    cpu_half = query.device.type == "cpu" and query.dtype == torch.bfloat16
    # transformers' own masks, of a single query beyond a window, are boolean
    additive = attention_mask is not None and attention_mask.is_floating_point()
    if B == 1:
        products = N <= PRODUCT_QUERIES and rows * key.shape[2] >= PRODUCT_SCORES
    else:  # cuts of a longer buffer are copied by every product
        products = key.is_contiguous() and value.is_contiguous()
    if additive and cpu_half and products:
        # [B G, rows, d], [B G, K, d] and masks [1 or B G, rows, K]; the softmax is in float32
        mask = attention_mask.expand(-1, G, -1, -1) if B > 1 else attention_mask
        folded, key, value, mask = (part.flatten(0, 1) for part in (folded, key, value, mask))
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = torch.baddbmm(mask, folded, key.transpose(1, 2), alpha=scaling)
        output = torch.bmm(torch.softmax(scores, dim=-1), value).unflatten(0, (B, G))
    else:
        output = functional.scaled_dot_product_attention(
            folded, key, value, attn_mask=attention_mask, scale=scaling
        )
    # Kernels lay out [B, G, rows, d] as they like, CUDA's memory-efficient one with rows outermost.
    # Contiguous as transformers' own is, which some layers rely on.
    output = output.unflatten(2, (H // G, N)).permute(0, 3, 1, 2, 4)
    return output.reshape(B, N, H, -1), None


class Rotation(threading.local):
    """What all layers of a forward multiply queries and keys by, [B, 1, N, d]: cosines, and sines
    whose first half has the other sign, since rotate_half(x) sin = roll(x) signed_sin. `sin` is
    what they were made of. Each thread has its own."""

    sin = cos = signed_sin = None


class RotaryAttention:
    """A self-attention with rotary positions, of queries, keys and values from one product.

    Args:
        attention: the stock layer, whose o_proj, scaling and config are used.
        product: its q, k and v projections as one, [B, N, D] to [B, N, (H + 2 G) d].
        rotation: shared by the layers of a model.
    """

    def __init__(
        self,
        attention: nn.Module,
        product: Callable[[torch.Tensor], torch.Tensor],
        rotation: Rotation,
    ):
        self._layer, self._stock, self._product = attention, attention.forward, product
        self._cache_name = cache_name(attention)
        self._size = attention.head_dim
        self._queries = attention.q_proj.out_features // self._size
        self._keys = attention.k_proj.out_features // self._size
        self._rotation = rotation

    def __call__(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        attention_mask: torch.Tensor | None = None,
        **more,
    ) -> tuple[torch.Tensor, None]:
        """In transformers' calling convention: [B, N, D], and no weights. `more` are the cache, by
        the stock layer's name for it, and what that layer hands on to its attention."""
        cos, sin = position_embeddings or (None, None)  # Granite 4 places no token
        rotary = cos is not None and cos.shape[-1] == self._size
        if not rotary or self._layer.config._attn_implementation != NAME:
            return self._stock(
                hidden_states,
                position_embeddings=position_embeddings,
                attention_mask=attention_mask,
                **more,
            )
        cache = more.pop(self._cache_name, None)
        B, N, _ = hidden_states.shape
        H, turned = self._queries, self._queries + self._keys
        states = self._product(hidden_states).view(B, N, -1, self._size).transpose(1, 2)
        part, value = states[:, :turned], states[:, turned:]
        rotation = self._rotation
        if rotation.sin is not sin:  # this is the forward's first layer
            first, second = sin.chunk(2, -1)
            rotation.signed_sin = torch.cat([-first, second], dim=-1)[:, None]
            rotation.sin, rotation.cos = sin, cos[:, None]
        rolled = torch.roll(part, self._size // 2, -1)
        part = torch.addcmul(part * rotation.cos, rolled, rotation.signed_sin)
        query, key = part[:, :H], part[:, H:]
        if cache is not None:
            key, value = cache.update(key, value, self._layer.layer_idx)
        output, _ = folded_attention(
            self._layer, query, key, value, attention_mask, scaling=self._layer.scaling, **more
        )
        return self._layer.o_proj(output.reshape(B, N, -1)), None


def takes_rotary(forward: Callable) -> bool:
    """Whether a layer's forward takes what RotaryAttention does, a cache among it, and nothing more
    by name but for what is UNHEARD, so that nothing is swallowed."""
    names = inspect.signature(forward).parameters
    kinds = {name: parameter.kind for name, parameter in names.items()}
    by_name = {name for name, kind in kinds.items() if kind != inspect.Parameter.VAR_KEYWORD}
    more = by_name - ROTARY - UNHEARD
    return by_name >= ROTARY and len(more) == 1 and more <= {*CACHE_NAMES}


AttentionInterface.register(NAME, folded_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def sharing_copy(module: nn.Module) -> nn.Module:
    """A copy of the module tree and its config whose parameters and buffers are the original's."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, memo={id(tensor): tensor for tensor in tensors})

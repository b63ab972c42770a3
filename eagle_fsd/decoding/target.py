"""The target: a stock transformers causal language model behind prefill / verify / commit.

A tree is verified in one forward of the unmodified model: a 4-D additive float mask lets each node
see the committed prefix and its own ancestors, and explicit position_ids place it by its depth (a
boolean mask would be silently wrong with eager attention).

Axes: L prompt tokens, N tree nodes, K rows of the cache, M nodes whose logits are wanted, A
accepted path with its root, B sequences, V vocabulary, D hidden size, F features: what a draft head
reads of the target (D, or several layers' D side by side).
"""

import copy
import math
from functools import partial

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.engine import STOCK, Engine
from eagle_fsd.decoding.masks import layer_masks, leave_cudnn_attention, nearer_masks
from eagle_fsd.decoding.readout import Readout
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.families import (
    cache_name,
    longest_text,
    shortened,
    text_body,
    text_config,
    with_last_state,
)
from eagle_fsd.recurrent.kinds import has_states, layer_types
from eagle_fsd.recurrent.states import ARGUMENT, TreeForward, check_called, exchanged_functions

# Of a generation config: its end tokens, its form, and what changes no answer
NO_DEFAULTS = frozenset(
    "_from_model_config transformers_version bos_token_id eos_token_id pad_token_id use_cache "
    "decoder_start_token_id output_attentions output_hidden_states max_length".split()
)


def generation_defaults(config: GenerationConfig) -> dict[str, object]:
    """What a model's own config would change of its answers, by name, but for the end tokens."""
    settings = config.to_diff_dict()
    return {name: settings[name] for name in settings if name not in NO_DEFAULTS}


class Target:
    """A target model, of which any number of answers may be under way: what it knows of one is in
    that answer's cache (`begin`). Who makes a Target by hand skips the trial (engine/trial.py), and
    some families verify trees wrongly.

    Args:
        model: in eval mode. Its generation config is cleared but for the stop tokens, so that
            `generate` has no defaults that our loop lacks. Its weights must stay as they are, since
            an engine and a drafter keep copies of some.
        keep_stock: an engine that rebuilds the model's layers rebuilds those of a copy, so that
            `model` is still as transformers made it; costs the linear weights twice.

    Attributes:
        config: of its text model, a part of a multimodal model's.
        readout: from hidden states after the final norm to logits.
        feature_layers: which hidden states are the features, as indices into transformers'
            `hidden_states` (i is what enters layer i, and the number of layers what leaves the last
            one, before the final norm); empty: the last, after the final norm.
        left_out: see generation_defaults; no answer takes them from there.
        max_positions: see longest_text.
        dtype: of its hidden states and logits; its tables may be held in fewer bits.
        has_states: layers carry a state from token to token instead of keys and values.
        placeholders: ids of a multimodal model that are no text, with their names in its config;
            whoever loads its text model alone sets them.
        asks_positions: layers scale queries by where they stand, and ask the cache for that (Llama
            4).
        masks: masks(visible_NK, key_position_K, position_N) is layer_masks of this model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        engine: Engine = STOCK,
        feature_layers: tuple[int, ...] = (),
        keep_stock: bool = True,
    ):
        self.model, self.config = model, text_config(model.config)
        self.readout = Readout(model, self.config)
        # where logits and features are; the embedding may lie elsewhere, on several devices
        self.device: torch.device = self.readout.lm_head.weight.device
        leave_cudnn_attention(self.device)
        self.dtype: torch.dtype = self.readout.dtype
        eos = model.generation_config.eos_token_id
        self.eos_token_ids = tuple([] if eos is None else eos if isinstance(eos, list) else [eos])
        # `generate` fills what a call leaves open from here: penalties, filters, cache kinds
        self.left_out = generation_defaults(model.generation_config)
        model.generation_config = GenerationConfig(eos_token_id=eos)
        self.hidden_size: int = self.config.hidden_size
        self.num_layers: int = self.config.num_hidden_layers
        assert all(0 <= layer <= self.num_layers for layer in feature_layers), feature_layers
        self.feature_layers = tuple(feature_layers)
        self.vocab_size: int = self.readout.lm_head.weight.shape[0]
        self.max_positions = longest_text(self.config)
        self.placeholders: dict[int, str] = {}
        self.asks_positions = bool(getattr(self.config, "attn_temperature_tuning", False))
        devices = set((getattr(model, "hf_device_map", None) or {}).values())
        self._cache_settings = {"types": layer_types(self.config), "pooled": len(devices) < 2}
        self.has_states = has_states(self.config)
        self.engine = engine
        self.has_stock = keep_stock or not engine.rebuilds
        rebuilt = engine.rebuild(model, keep_stock=keep_stock)
        self._body = text_body(rebuilt)
        self._cache_name = cache_name(self._body)
        if self.num_layers in self.feature_layers:
            self._body = with_last_state(self._body)
        self.readout.run_by(engine)
        if not self.has_stock:
            engine.shrink(model, self.readout.read)
        self.embed_tokens: nn.Module = model.get_input_embeddings()
        repeats = engine.mask_repeats(text_config(rebuilt.config))
        known = {"nearer": nearer_masks(text_body(model)), "dtype": self.dtype, "repeats": repeats}
        self.masks = partial(layer_masks, self.config, **known)
        self._step = engine.wrap(self.run)  # `run`, as the engine may compile it for trees

    def first_layers(self, count: int) -> "Target":
        """A target of the model's first layers, its final norm and its lm_head, on its weights."""
        cut = copy.copy(self)
        cut.num_layers, cut.feature_layers = count, ()
        cut.model = cut._body = shortened(self._body, count)
        cut._cache_settings = dict(self._cache_settings, types=layer_types(self.config)[:count])
        cut._step = self.engine.wrap(cut.run)
        return cut

    # --- an answer ------------------------------------------------------------------------------

    def begin(self, capacity: int) -> TreeCache:
        """The cache of an answer of at most so many rows: prompt, answer and one tree."""
        return TreeCache(self.num_layers, self.engine.rows(capacity), **self._cache_settings)

    @torch.inference_mode()
    def prefill(
        self, cache: TreeCache, prompt_L: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the prompt; returns the logits of the token after it [V], and features [L, F]."""
        assert cache.length == 0, "an answer has one prefill"
        L = len(prompt_L)
        row_L = cache.next_rows(L, self.device)
        (logits_V,), features_LF = self.run(cache, prompt_L, row_L, read_M=row_L[-1:])
        cache.length = cache.committed = L
        if not math.isfinite(logits_V.amax().item()):
            raise no_numbers("in prefill")
        return logits_V, features_LF

    @torch.inference_mode()
    def verify(self, cache: TreeCache, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
        """Run every node of the tree at once, each seeing the prefix and its ancestors only.

        Returns logits [N, V], row i of the token AFTER node i, and features [N, F].
        """
        N, prefix = tree.size, cache.committed
        # 1. Nodes are written right behind the committed rows, in their order, over what an earlier
        #    tree has left there; they stand where their depth says.
        cache.length = prefix
        row_N = cache.next_rows(N, self.device)
        position_N = prefix + tree.depth_N
        # 2. Each sees the committed rows, its ancestors and itself. A single token gets what
        #    `generate` gets, transformers' own masks.
        visible_NK = key_position_K = None
        if N > 1 or self.engine.compiles:
            visible_NK = nn.functional.pad(tree.ancestor_NN, (prefix, 0), value=True)
            key_position_K = torch.cat([torch.arange(prefix, device=self.device), position_N])
        # 3. One forward. Recurrent layers are given the tree; a single token is transformers' own
        #    step there too, which changes their states for good.
        tensors = tree.token_N, row_N, position_N, visible_NK, key_position_K
        if self.has_states and N > 1:
            with exchanged_functions(self._body):
                step = self._step(cache, *tensors, tree.parent_N, tree.ancestor_NN)
            check_called(cache.layers, self.config.model_type)
        else:
            step = self._step(cache, *tensors)
        cache.length = prefix + N
        return step

    def commit(self, cache: TreeCache, node_A: torch.Tensor) -> None:
        """Keep the rows of the accepted path, root first; drop the rest. See keep_path."""
        cache.keep_path(node_A)

    # --- a forward ------------------------------------------------------------------------------

    def run(
        self,
        cache: TreeCache,
        token_N: torch.Tensor,
        row_N: torch.Tensor,
        position_N: torch.Tensor | None = None,
        visible_NK: torch.Tensor | None = None,
        key_position_K: torch.Tensor | None = None,
        parent_N: torch.Tensor | None = None,
        ancestor_NN: torch.Tensor | None = None,
        read_M: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [N, V] and features [N, F] of tokens behind the cache's valid rows. An engine may
        compile it.

        Args:
            row_N: the cache rows that they are written to.
            position_N: where they stand in the text; None: one behind the other.
            visible_NK: which of the first K cache rows each sees; None: all before it, and itself.
            key_position_K: where those rows stand.
            parent_N, ancestor_NN: see DraftTree; for recurrent layers.
            read_M: of which tokens logits are wanted, [M, V]; None: of all.
        """
        mask, end = None, cache.length + token_N.shape[0]
        if visible_NK is not None:
            mask, end = self.masks(visible_NK, key_position_K, position_N), visible_NK.shape[1]
        named: dict[str, object] = {}
        if parent_N is not None:
            named[ARGUMENT] = TreeForward(parent_N, ancestor_NN)
        if position_N is not None:
            # Drafts beyond the last position lie beyond the budget and are never emitted; clamped,
            # they do not run off a table of learned positions.
            position_N = position_N.clamp_max(self.max_positions - 1)
            named["position_ids"] = position_N[None]
        asked = position_N if self.asks_positions else None
        cache.write(row_N, end, positions=asked, tree=named.get(ARGUMENT))
        (hidden_ND,), (features_NF,) = self.forward(
            token_N[None], cache=cache, attention_mask=mask, **named
        )
        hidden_MD = hidden_ND if read_M is None else hidden_ND.index_select(0, read_M)
        return self.readout(hidden_MD), features_NF

    def forward(
        self, token_BN: torch.Tensor, *, cache: TreeCache | None = None, **named: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward of the model, which takes `named` beside token ids and cache: hidden states
        after the final norm [B, N, D] and features [B, N, F], on `device`."""
        # By index the states of those layers alone are kept: 3 of 33 at 8B. A family that knows no
        # indices takes the list for True and gives all.
        layers = list(self.feature_layers)
        token_BN = token_BN.to(self.embed_tokens.weight.device)
        named |= {self._cache_name: cache, "use_cache": cache is not None}
        output = self._body(input_ids=token_BN, output_hidden_states=layers or False, **named)
        hidden_BND = output.last_hidden_state.to(self.device)
        if not layers:
            return hidden_BND, hidden_BND
        states = output.hidden_states
        chosen = [states[layer] for layer in layers] if len(states) == self.num_layers + 1 else []
        complete = chosen and all(state.shape == hidden_BND.shape for state in chosen)
        last_is_normed = states[-1] is output.last_hidden_state
        if not complete or (last_is_normed and self.num_layers in layers):
            raise BadInput(
                f"targets of type {self.config.model_type!r} do not give the hidden states "
                f"{self.feature_layers} before the final norm, which the head reads: take an "
                "EAGLE-1 or EAGLE-2 head"
            )
        return hidden_BND, torch.cat([state.to(self.device) for state in chosen], dim=-1)

    def embed(self, token_T: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(token_T.to(self.embed_tokens.weight.device)).to(self.device)

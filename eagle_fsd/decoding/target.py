"""The target: a stock transformers causal language model behind prefill / verify / commit.

A tree is verified in one forward of the unmodified model: a 4-D additive float mask lets each node
see the committed prefix and its own ancestors, and explicit position_ids place it by its depth (a
boolean mask would be silently wrong with eager attention).

Axes: L prompt tokens, N tree nodes, A accepted path with its root, V vocabulary, D hidden size,
F features: what a draft head reads of the target (D, or several layers' D side by side).
"""

import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.cache import TreeCache, layer_masks
from eagle_fsd.decoding.engine import STOCK, Engine, Seen
from eagle_fsd.decoding.sampling import no_numbers
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.families import (
    cache_name,
    logit_factor,
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
    """A target model and the cache of the one sequence that it is decoding. One made by hand is
    not checked: some families verify trees wrongly (engine.trial.check_target).

    Args:
        model: in eval mode. Its generation config is cleared but for the stop tokens, so that
            `generate` has no defaults that our loop lacks.
        keep_stock: an engine that rebuilds the model's layers rebuilds those of a copy, so that
            `model` is still as transformers made it; costs the linear weights twice.

    Attributes:
        config: of its text model, a part of a multimodal model's.
        readout_is_linear: logits are `readout_rows` times the hidden state and nothing else.
        feature_layers: which hidden states are the features, as indices into transformers'
            `hidden_states` (i is what enters layer i, and the number of layers what leaves the last
            one, before the final norm); empty: the last, after the final norm.
        left_out: see generation_defaults; no answer takes them from there.
        max_positions: see longest_text.
        dtype: of its hidden states and logits; its tables may be held in fewer bits.
        has_states: layers carry a state from token to token instead of keys and values.
        cache: None before the first sequence and after the last.
        last_logits_NV: what the last verification returned, for drafters that learn from it.
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
        self.lm_head = model.get_output_embeddings()
        if not isinstance(getattr(self.lm_head, "weight", None), torch.Tensor):
            raise BadInput(
                f"a {type(model).__name__} has no readout, a linear layer that makes logits of its "
                "hidden states: give a causal language model"
            )
        self.model, self.config = model, text_config(model.config)
        eos = model.generation_config.eos_token_id
        self.eos_token_ids = tuple([] if eos is None else eos if isinstance(eos, list) else [eos])
        # `generate` fills what a call leaves open from here: penalties, filters, cache kinds
        self.left_out = generation_defaults(model.generation_config)
        model.generation_config = GenerationConfig(eos_token_id=eos)
        # where logits and features are; the embedding may lie elsewhere, on several devices
        self.device: torch.device = self.lm_head.weight.device
        self.dtype: torch.dtype = self.lm_head.weight.dtype
        self.hidden_size: int = self.config.hidden_size
        self.num_layers: int = self.config.num_hidden_layers
        assert all(0 <= layer <= self.num_layers for layer in feature_layers), feature_layers
        self.feature_layers = tuple(feature_layers)
        self.vocab_size: int = self.lm_head.weight.shape[0]
        self.max_positions = longest_text(self.config)
        self._factor = logit_factor(self.config)
        # Gemma 2 and others squash logits to within plus or minus this number
        self._cap = getattr(self.config, "final_logit_softcapping", None)
        # layers of Llama 4 scale queries by where they stand, and ask the cache for that
        self._asks_positions = bool(getattr(self.config, "attn_temperature_tuning", False))
        self.readout_is_linear = self._cap is None and self.lm_head.bias is None
        devices = set((getattr(model, "hf_device_map", None) or {}).values())
        self._cache_settings = {"types": layer_types(self.config), "pooled": len(devices) < 2}
        self.has_states = has_states(self.config)
        self.engine = engine
        self.has_stock = keep_stock or not engine.rebuilds
        rebuilt = engine.rebuild(model, keep_stock=keep_stock)
        self._body = text_body(rebuilt)
        self._cache_name = cache_name(self._body.forward)
        if self.num_layers in self.feature_layers:
            self._body = with_last_state(self._body)
        self._read = engine.linear(self.lm_head.weight, self.lm_head.bias)
        if not self.has_stock:
            engine.shrink(model, self._read)
        self.embed_tokens: nn.Module = model.get_input_embeddings()
        repeats = engine.mask_repeats(text_config(rebuilt.config))
        self.masks = partial(layer_masks, self.config, dtype=self.dtype, repeats=repeats)
        self._step = engine.wrap(self._run_nodes)
        self._lock = threading.RLock()
        self._seen = Seen(self._kept)
        self.close()

    def _kept(self) -> list[nn.Module | torch.Tensor | None]:
        """What of the model it, its engine or its drafter keeps a reference or a copy of."""
        lm_head, weights = self.model.get_output_embeddings(), self.model.parameters()
        if not self.engine.rebuilds:
            weights = (getattr(lm_head, name, None) for name in ("weight", "bias"))
        return [lm_head, self.model.get_input_embeddings(), text_body(self.model), *weights]

    @property
    def is_stale(self) -> bool:
        """The model has other parts or weights than those that this Target was made of."""
        return self._seen.has_changed()

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self.num_layers, self.engine.rows(capacity), **self._cache_settings)

    def first_layers(self, count: int) -> "Target":
        """A target of the model's first layers, its final norm and its lm_head, on its weights."""
        cut = copy.copy(self)
        cut.num_layers, cut.feature_layers, cut.cache = count, (), None
        cut.model = cut._body = shortened(self._body, count)
        cut._cache_settings = dict(self._cache_settings, types=layer_types(self.config)[:count])
        cut._step = self.engine.wrap(cut._run_nodes)
        return cut

    def embed(self, token_T: torch.Tensor) -> torch.Tensor:
        return self.embed_tokens(token_T.to(self.embed_tokens.weight.device)).to(self.device)

    def start(self, capacity: int) -> None:
        """Begin a new sequence with a cache of `capacity` rows (prompt + answer + one tree)."""
        if self.is_stale:
            raise BadInput(
                "the target's weights are no longer those that it was loaded with, of which copies "
                "are kept: load it again, or make another Target of the model"
            )
        self.cache = self.new_cache(capacity)

    def close(self) -> None:
        self.cache: TreeCache | None = None
        self.last_logits_NV: torch.Tensor | None = None

    @contextmanager
    def turn(self, cache: TreeCache | None = None) -> Iterator[None]:
        """Around a round's work, or around that of beginning a sequence: threads take turns, and
        of two sequences the second ends the first."""
        with self._lock:
            if cache is not None and cache is not self.cache:
                raise BadInput(
                    "another answer was begun on this model before this one had ended, and a model "
                    "decodes one at a time: finish or close the first, or load a second model"
                )
            yield

    @torch.inference_mode()
    def prefill(self, prompt_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the prompt; returns the logits of the token after it [V], and features [L, F]."""
        L = prompt_L.shape[0]
        row_L = self.cache.next_rows(L, self.device)
        hidden_LD, features_LF = self.run(self.cache, prompt_L, row_L)
        self.cache.length = self.cache.committed = L
        logits_V = self.logits(hidden_LD[-1:])[0]
        if not math.isfinite(logits_V.amax().item()):
            raise no_numbers("in prefill")
        return logits_V, features_LF

    @torch.inference_mode()
    def verify(self, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
        """Run every node of the tree at once, each seeing the prefix and its ancestors only.

        Returns logits [N, V], row i of the token AFTER node i, and features [N, F].
        """
        N, prefix = tree.size, self.cache.committed
        # 1. Nodes are written right behind the committed rows, in their order, over what an earlier
        #    tree has left there; they stand where their depth says.
        self.cache.length = prefix
        row_N = self.cache.next_rows(N, self.device)
        position_N = prefix + tree.depth_N
        # 2. Each sees the committed rows, its ancestors and itself. A single token gets what
        #    `generate` gets, transformers' own masks.
        visible_NK = key_position_K = None
        if N > 1 or self.engine.compiles:
            visible_NK = torch.ones(N, prefix + N, dtype=torch.bool, device=self.device)
            visible_NK[:, prefix:] = tree.ancestor_NN
            key_position_K = torch.cat([torch.arange(prefix, device=self.device), position_N])
        # 3. One forward. Recurrent layers are given the tree; a single token is transformers' own
        #    step there too, which changes their states for good.
        tensors = tree.token_N, row_N, position_N, visible_NK, key_position_K
        if self.has_states and N > 1:
            with exchanged_functions(self._body):
                step = self._step(self.cache, tree.parent_N, tree.ancestor_NN, *tensors)
            check_called(self.cache.layers, self.config.model_type)
        else:
            step = self._step(self.cache, None, None, *tensors)
        logits_NV, features_NF = step
        self.cache.length = prefix + N
        self.last_logits_NV = logits_NV
        return logits_NV, features_NF

    def _run_nodes(
        self,
        cache: TreeCache,
        parent_N: torch.Tensor | None,
        ancestor_NN: torch.Tensor | None,
        *tensors: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What an engine may compile: from a tree and tensors of `run` to logits and features."""
        nodes = None if parent_N is None else TreeForward(parent_N, ancestor_NN)
        hidden_ND, features_NF = self.run(cache, *tensors, nodes)
        return self.logits(hidden_ND), features_NF

    def run(
        self,
        cache: TreeCache,
        token_N: torch.Tensor,
        row_N: torch.Tensor,
        position_N: torch.Tensor | None = None,
        visible_NK: torch.Tensor | None = None,
        key_position_K: torch.Tensor | None = None,
        nodes: TreeForward | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [N, D] and features [N, F] of tokens behind the cache's valid rows.

        Args:
            row_N: the cache rows that they are written to.
            position_N: where they stand in the text; None: one behind the other.
            visible_NK: which of the first K cache rows each sees; None: all before it, and itself.
            key_position_K: where those rows stand.
            nodes: the tree, for recurrent layers.
        """
        if visible_NK is None:
            mask, cache.end = None, cache.length + token_N.shape[0]
        else:
            mask = self.masks(visible_NK, key_position_K, position_N)
            cache.end = visible_NK.shape[1]
        if position_N is not None:
            # Drafts beyond the last position lie beyond the budget and are never emitted; clamped,
            # they do not run off a table of learned positions.
            position_N = position_N.clamp_max(self.max_positions - 1)
        cache.row_N, cache.forward = row_N, nodes
        cache.positions = position_N if self._asks_positions else None
        try:
            hidden_BND, features_BNF = self.hidden_and_features(
                token_N[None],
                attention_mask=mask,
                position_ids=None if position_N is None else position_N[None],
                cache=cache,
                **({} if nodes is None else {ARGUMENT: nodes}),
            )
        finally:
            cache.forward = None
        return hidden_BND[0], features_BNF[0]

    def commit(self, node_A: torch.Tensor) -> None:
        """Keep the cache rows of the accepted path, root first; drop the rest. See keep_path."""
        self.cache.keep_path(node_A)

    def hidden_and_features(
        self, token_BN: torch.Tensor, *, cache: TreeCache | None = None, **forward
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward of the model, which takes `forward` beside token ids and cache: hidden states
        after the final norm [B, N, D] and features [B, N, F], on `device`."""
        fused = bool(self.feature_layers)
        token_BN = token_BN.to(self.embed_tokens.weight.device)
        forward |= {self._cache_name: cache, "use_cache": cache is not None}
        output = self._body(input_ids=token_BN, output_hidden_states=fused, **forward)
        hidden_BND = output.last_hidden_state.to(self.device)
        if not fused:
            return hidden_BND, hidden_BND
        states = output.hidden_states
        complete = len(states) == self.num_layers + 1 and states[0].shape == hidden_BND.shape
        last_is_normed = states[-1] is output.last_hidden_state
        if not complete or (last_is_normed and self.num_layers in self.feature_layers):
            raise BadInput(
                f"targets of type {self.config.model_type!r} do not give the hidden states "
                f"{self.feature_layers} before the final norm, which the head reads: take an "
                "EAGLE-1 or EAGLE-2 head"
            )
        chosen = [states[layer].to(self.device) for layer in self.feature_layers]
        return hidden_BND, torch.cat(chosen, dim=-1)

    def logits(
        self,
        hidden_ND: torch.Tensor,
        read: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Of hidden states after the final norm, [N, V]; `read` stands in the lm_head's place."""
        logits_NV = (read or self._read)(hidden_ND)
        if self._factor != 1:
            logits_NV = logits_NV * self._factor
        if self._cap is not None:
            logits_NV = torch.tanh(logits_NV / self._cap) * self._cap
        return logits_NV

    def readout(
        self, token_R: torch.Tensor | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """`logits` for some tokens only, whose rows are copied: from [N, D] to [N, R]."""
        if token_R is None:
            return self.logits
        token_R = token_R.to(self.device)
        weight_RD, bias = self.lm_head.weight[token_R].to(self.dtype), self.lm_head.bias
        read = self.engine.linear(weight_RD, None if bias is None else bias[token_R])
        return partial(self.logits, read=read)

    def readout_rows(self, token_R: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the lm_head times the family's factor, [R, D]; see readout_is_linear."""
        weight_VD = self.lm_head.weight.detach()
        rows_RD = weight_VD if token_R is None else weight_VD[token_R.to(self.device)]
        rows_RD = rows_RD.to(self.dtype)
        return rows_RD if self._factor == 1 else rows_RD * self._factor

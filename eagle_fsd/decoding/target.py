"""The target: a stock transformers causal language model behind prefill / verify / commit.

No modeling file is forked. A tree is verified in one forward of the unmodified model: a 4-D
additive float mask lets each node see the committed prefix and its own ancestors, and explicit
position_ids place it by its depth (a boolean mask would be silently wrong with eager attention).
Loading lives in loading.py; text and chat templates in chat.py.

Axes: L prompt tokens, N tree nodes, A accepted path with its root, V vocabulary, D hidden size,
F features: what a draft head reads of the target (D, or several layers' D side by side).
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.masks import LayerMasks, Masks
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.engine import attention
from eagle_fsd.engine.families import TESTED_FAMILIES, check_supported, check_tree_attention
from eagle_fsd.engine.graphs import Recorder, bucket_of, fixed_rows, visible_rows
from eagle_fsd.engine.packed import PackedLinear, pack, sharing_copy


class Target:
    """A target model and the cache of the one sequence that it is decoding.

    Invariant after prefill and after every commit: cache length == committed tokens - 1, since the
    last committed token (the root of the next tree) has not been run yet.

    Args:
        model: a causal language model.
        feature_layers: see below.
        engine: how `prefill` and `verify` run it, a name in eagle_fsd.engine.select.ENGINES.
        keep_stock: with an engine that rebuilds the model's layers, rebuild those of a copy, so
            that `model` can still be run as transformers made it; costs the linear weights twice.

    Attributes:
        model: the transformers model, in eval mode; stock unless keep_stock is False.
        vocab_size: width V of its logits.
        hidden_size: width D.
        num_layers: decoder layers.
        readout_is_linear: logits are lm_head.weight times the hidden state and nothing else.
        feature_layers: which hidden states are the features, as indices into transformers'
            `hidden_states` (i is what enters layer i); empty: the last, after the final norm.
        max_positions: longest sequence it was made for.
        one_device: all layers lie on the same device.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        feature_layers: tuple[int, ...] = (),
        engine: str = "stock",
        keep_stock: bool = True,
    ):
        check_supported(model.config)
        self.model = model.eval().requires_grad_(False)
        eos = model.generation_config.eos_token_id
        self.eos_token_ids: tuple[int, ...] = tuple(
            [] if eos is None else eos if isinstance(eos, list) else [eos]
        )
        # `generate` fills what a call leaves open from here: penalties, filters, cache kinds
        model.generation_config = GenerationConfig()
        self.lm_head = model.get_output_embeddings()
        self.embed_tokens: nn.Module = model.get_input_embeddings()
        self.hidden_size: int = model.config.hidden_size
        self.num_layers: int = model.config.num_hidden_layers
        if any(not 0 <= layer <= self.num_layers for layer in feature_layers):
            raise BadInput(
                f"feature layers {feature_layers} do not all exist: the target has "
                f"{self.num_layers} layers"
            )
        self.feature_layers = tuple(feature_layers)
        self.vocab_size: int = self.lm_head.weight.shape[0]
        self.max_positions: int = getattr(model.config, "max_position_embeddings", None) or 2**31
        # Gemma 2 squashes its logits; any other treatment of them is caught by check_tree_attention
        self._softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.readout_is_linear = self._softcap is None and self.lm_head.bias is None
        self._cache: TreeCache | None = None
        self._prefix_length = 0
        self.engine = engine
        self.has_stock = keep_stock or engine == "stock"
        self._run_model = model
        self._read: Callable[[torch.Tensor], torch.Tensor] = self.lm_head
        self.one_device = len(set((getattr(model, "hf_device_map", None) or {}).values())) < 2
        self._recorder: Recorder | None = None
        self._masks = LayerMasks(model.config, self.dtype, 1)
        if engine != "stock":
            self._rebuild()
        if model.config.model_type not in TESTED_FAMILIES:
            check_tree_attention(self)

    def _rebuild(self) -> None:
        if self.has_stock:
            self._run_model = sharing_copy(self.model)
        if self.engine == "packed":
            pack(self._run_model.base_model)
            self._read = PackedLinear.of(self.lm_head)
        if self.engine == "graphs":
            self._recorder = Recorder(self.device)
        config = self._run_model.config
        if config._attn_implementation == "sdpa":
            self._run_model.set_attn_implementation(attention.NAME)
            heads = config.num_attention_heads
            groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
            self._masks = LayerMasks(config, self.dtype, groups)

    @property
    def device(self) -> torch.device:
        """Where logits and features are (the embedding may lie elsewhere, on several devices)."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def cache_length(self) -> int:
        """Rows in the cache that belong to committed tokens."""
        return self._prefix_length

    def embed(self, token_T: torch.Tensor) -> torch.Tensor:
        """The target's token embedding, on `device`, [T, D]."""
        return self.embed_tokens(token_T.to(self.embed_tokens.weight.device)).to(self.device)

    def close(self) -> None:
        """Forget the sequence and its cache."""
        self._cache, self._prefix_length = None, 0

    def start(self, capacity: int) -> None:
        """Begin a new sequence with a cache of `capacity` rows (prompt + answer + one tree).

        With recorded graphs, which know its address, the largest cache so far is kept.
        """
        self._prefix_length = 0
        if self._recorder is None:
            self._cache = TreeCache(self.num_layers, capacity, pooled=self.one_device)
            return
        self._prefix = torch.zeros((), dtype=torch.int64, device=self.device)
        if self._cache is None or self._cache.capacity < capacity:  # graphs know its address
            self._cache = TreeCache(self.num_layers, bucket_of(capacity), zeroed=True)
            self._recorder.forget()
        self._cache.clear()

    @torch.inference_mode()
    def prefill(self, prompt_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the prompt.

        Args:
            prompt_L: token ids, int64 [L].

        Returns:
            logits_V: logits of the token after the prompt, model dtype [V].
            features_LF: see feature_layers, [L, F].
        """
        hidden_LD, features_LF = self._run(prompt_L, mask=None, position_N=None)
        self._advance(prompt_L.shape[0])
        return self.logits(hidden_LD[-1:])[0], features_LF

    @torch.inference_mode()
    def verify(self, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
        """Run every node of the tree at once, each seeing the prefix and its ancestors only.

        Returns:
            logits_NV: row i is the distribution of the token AFTER node i, model dtype [N, V].
            features_NF: see feature_layers, [N, F].
        """
        if self._recorder is not None:
            return self._verify_fixed(tree)
        position_N = self._prefix_length + tree.depth_N
        hidden_ND, features_NF = self._run(
            tree.token_N, self._tree_masks(tree, position_N), self._placed(position_N)
        )
        return self.logits(hidden_ND), features_NF

    def _tree_masks(self, tree: DraftTree, position_N: torch.Tensor) -> Masks | None:
        N, prefix = tree.size, self._prefix_length
        if N == 1:  # plain decoding gets what `generate` gets: transformers' own masks
            return None
        visible_NK = torch.ones(N, prefix + N, dtype=torch.bool, device=self.device)
        visible_NK[:, prefix:] = tree.ancestor_NN
        key_position_K = torch.cat([torch.arange(prefix, device=self.device), position_N])
        return self._masks.of(visible_NK, key_position_K, position_N)

    def _verify_fixed(self, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
        """`verify` as a function of fixed shapes; see engine/graphs.py."""
        N = tree.size
        bucket = min(bucket_of(self._prefix_length + N), self._cache.capacity)

        def run(token_N, depth_N, ancestor_NN, prefix):
            position_N = prefix + depth_N
            row_K = torch.arange(bucket, device=prefix.device)
            tree_K = (row_K - prefix).clamp(0, N - 1)
            key_position_K = torch.where(row_K < prefix, row_K, position_N[tree_K])
            visible_NK = visible_rows(ancestor_NN, prefix, bucket)
            masks = self._masks.of(visible_NK, key_position_K, position_N)
            with fixed_rows(self._cache, prefix, N, bucket):
                hidden_ND, features_NF = self._run(token_N, masks, self._placed(position_N))
            return self.logits(hidden_ND), features_NF

        inputs = (tree.token_N, tree.depth_N, tree.ancestor_NN, self._prefix)
        output = self._recorder.run((N, bucket), run, *inputs)
        self._cache.extend(self._prefix_length + N)
        return output

    def _placed(self, position_N: torch.Tensor) -> torch.Tensor:
        """Drafts beyond the last position lie beyond the budget and are never emitted; clamped,
        they do not run off a table of learned positions."""
        return position_N.clamp_max(self.max_positions - 1)

    def commit(self, node_A: torch.Tensor) -> None:
        """Keep the cache rows of the accepted path (root first, int64 [A]); drop the rest."""
        self._cache.keep_path(self._prefix_length, node_A)
        self._advance(node_A.shape[0])

    def _advance(self, rows: int) -> None:
        self._prefix_length += rows
        if self._recorder is not None:
            self._prefix += rows

    @torch.inference_mode()
    def rescore(self, prompt: list[int], answer: list[int]) -> tuple[float, float]:
        """One plain forward over prompt and answer; leaves the sequence being decoded alone.

        Returns:
            The share of answer tokens that are the argmax there, and the answer's mean
            log-probability at temperature 1, nats per token.
        """
        ids = torch.tensor([prompt + answer], device=self.device)
        features_LD = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        hits, logp = 0, 0.0
        rows_AD = features_LD[len(prompt) - 1 : -1]
        for feature_CD, token_C in zip(
            rows_AD.split(256), ids[0, len(prompt) :].split(256), strict=True
        ):
            logp_CV = torch.log_softmax(self.logits(feature_CD), dim=-1, dtype=torch.float32)
            hits += (logp_CV.argmax(-1) == token_C).sum().item()
            logp += logp_CV.gather(1, token_C[:, None]).sum().item()
        return hits / len(answer), logp / len(answer)

    def _run(
        self,
        token_N: torch.Tensor,
        mask: Masks | None,
        position_N: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_BND, features_BNF = self.hidden_and_features(
            token_N[None],
            attention_mask=mask,
            position_ids=None if position_N is None else position_N[None],
            past_key_values=self._cache,
            use_cache=True,
        )
        return hidden_BND[0], features_BNF[0]

    def hidden_and_features(
        self, token_BN: torch.Tensor, **forward
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward of the model, by the engine.

        Args:
            token_BN: token ids.
            forward: what the model's forward takes beside them (masks, positions, cache).

        Returns:
            Hidden states after the final norm, [B, N, D], and the features, [B, N, F], on `device`.
        """
        fused = bool(self.feature_layers)
        token_BN = token_BN.to(self.embed_tokens.weight.device)
        base_model = self._run_model.base_model
        output = base_model(input_ids=token_BN, output_hidden_states=fused, **forward)
        hidden_BND = output.last_hidden_state.to(self.device)
        if not fused:
            return hidden_BND, hidden_BND
        chosen = [output.hidden_states[layer].to(self.device) for layer in self.feature_layers]
        return hidden_BND, torch.cat(chosen, dim=-1)

    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """The lm_head applied to hidden states after the final norm, [N, V]."""
        return self._capped(self._read(hidden_ND))

    def readout(
        self, token_R: torch.Tensor | None = None
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """`logits` for some tokens only: a function from [N, D] to [N, R]; None: for all.

        The rows of the lm_head that it needs are copied now.
        """
        if token_R is None:
            return self.logits
        token_R = token_R.to(self.device)
        weight_RD, bias = self.lm_head.weight[token_R].contiguous(), self.lm_head.bias
        bias_R = None if bias is None else bias[token_R]
        if self.engine == "packed":
            read = PackedLinear(weight_RD, bias_R)
            return lambda hidden_ND: self._capped(read(hidden_ND))
        return lambda hidden_ND: self._capped(nn.functional.linear(hidden_ND, weight_RD, bias_R))

    def _capped(self, logits_NV: torch.Tensor) -> torch.Tensor:
        if self._softcap is not None:
            logits_NV = torch.tanh(logits_NV / self._softcap) * self._softcap
        return logits_NV

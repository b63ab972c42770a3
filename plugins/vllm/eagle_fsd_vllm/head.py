"""Heads of EAGLE-1/2 as they are trained here: a bias in fc, a draft vocabulary (d2t) or both.

vLLM's own class has neither. `train/convert_head.py --to vllm` writes a config.json that names this
class; EAGLE-3 heads need none, vLLM's own has all of theirs.
"""

from collections.abc import Iterable

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.models.llama_eagle import EagleLlamaForCausalLM
from vllm.model_executor.models.utils import maybe_prefix

from eagle_fsd_vllm import check_version

check_version()


class EagleFsdLlamaForCausalLM(EagleLlamaForCausalLM):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        # --to vllm never writes true: vLLM's attention reads the same name
        if getattr(self.config, "bias", True):
            hidden = self.config.hidden_size
            self.model.fc = ReplicatedLinear(
                2 * hidden,
                hidden,
                bias=True,
                params_dtype=vllm_config.model_config.dtype,
                quant_config=self.model.quant_config,
                prefix=maybe_prefix(prefix, "model.fc"),
                return_bias=False,
            )
        self.undrafted_V: torch.Tensor | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        kept = dict(weights)
        offset_R = kept.pop("d2t", None)
        kept.pop("t2d", None)  # what d2t implies
        has_bias = self.model.fc.bias is not None
        if ("fc.bias" in kept) != has_bias:  # else what stands in memory would be the bias
            raise ValueError("config.json and fc.bias disagree: convert the head with --to vllm")
        if offset_R is not None:
            undrafted_V = torch.ones(self.config.vocab_size, dtype=torch.bool)
            undrafted_V[torch.arange(len(offset_R)) + offset_R.cpu()] = False
            self.undrafted_V = undrafted_V.to(self.model.fc.weight.device)
        super().load_weights(kept.items())

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        logits = super().compute_logits(hidden_states)
        if logits is None or self.undrafted_V is None:  # None: of a rank that gathers no logits
            return logits
        return logits.masked_fill(self.undrafted_V, -torch.inf)

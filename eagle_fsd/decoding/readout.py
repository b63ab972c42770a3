"""From a target's hidden states to its logits, of all tokens or of some.

Axes: N positions, D hidden size, V vocabulary, R chosen tokens.
"""

from collections.abc import Callable
from functools import partial

import torch
from transformers import PretrainedConfig, PreTrainedModel

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.engine import Engine
from eagle_fsd.families import logit_factor


class Readout:
    """The lm_head of a model, with what its family does to the logits behind it.

    Attributes:
        lm_head: the model's own.
        is_linear: logits are `rows` times the hidden state and nothing else.
    """

    def __init__(self, model: PreTrainedModel, config: PretrainedConfig):
        self.lm_head = model.get_output_embeddings()
        if not isinstance(getattr(self.lm_head, "weight", None), torch.Tensor):
            raise BadInput(
                f"a {type(model).__name__} has no readout, a linear layer that makes logits of its "
                "hidden states: give a causal language model"
            )
        self.dtype: torch.dtype = self.lm_head.weight.dtype  # of hidden states and logits
        self._factor = logit_factor(config)
        # Gemma 2 and others squash logits to within plus or minus this number
        self._cap = getattr(config, "final_logit_softcapping", None)
        self.is_linear = self._cap is None and self.lm_head.bias is None

    def run_by(self, engine: Engine) -> None:
        """From now on the products are those of the engine."""
        self._engine = engine
        self.read = engine.linear(self.lm_head.weight, self.lm_head.bias)

    def __call__(
        self,
        hidden_ND: torch.Tensor,
        read: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Logits [N, V] of hidden states after the final norm; `read` stands in the place of the
        lm_head."""
        logits_NV = (read or self.read)(hidden_ND)
        if self._factor != 1:
            logits_NV = logits_NV * self._factor
        if self._cap is not None:
            logits_NV = torch.tanh(logits_NV / self._cap) * self._cap
        return logits_NV

    def of_tokens(self, token_R: torch.Tensor | None) -> Callable[[torch.Tensor], torch.Tensor]:
        """The same of some tokens (None: all), whose rows are copied: from [N, D] to [N, R]."""
        if token_R is None:
            return self
        token_R = token_R.to(self.lm_head.weight.device)
        weight_RD, bias = self.lm_head.weight[token_R].to(self.dtype), self.lm_head.bias
        read = self._engine.linear(weight_RD, None if bias is None else bias[token_R])
        return partial(self, read=read)

    def rows(self, token_R: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the lm_head times the family's factor, [R, D]; see is_linear."""
        rows_RD = self.lm_head.weight.detach()
        if token_R is not None:
            rows_RD = rows_RD[token_R.to(rows_RD.device)]
        rows_RD = rows_RD.to(self.dtype)
        return rows_RD if self._factor == 1 else rows_RD * self._factor

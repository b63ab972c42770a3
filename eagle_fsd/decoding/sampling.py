"""From logits to the target's next-token distribution P, and draws from it. The only copy. Filters
are transformers' own, so that P is what `generate` would sample from.

Axes: R rows, V vocabulary, C draws.
"""

import math

import numpy as np
import torch

from eagle_fsd.config import BadInput, SamplingConfig


def uniforms(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """The next numbers in [0, 1) of a generator of the CPU, float32 there, whatever dtype and
    device a program has made torch's defaults."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")


def no_numbers(where: str, model: str = "the target") -> BadInput:
    """The error of a model that cannot say a next token."""
    return BadInput(
        f"{model}'s logits are NaN or infinite {where}: load it in float32 or bfloat16, and "
        "check its weights"
    )


def filter_logits(logits_RV: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """Logits after temperature, top-k and top-p, float32 [R, V]; removed tokens are -inf."""
    # here, so that rules can be imported where there is another transformers, or none
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    assert sampling.temperature > 0, "temperature 0 has no filtered logits: P is the argmax"
    logits_RV = logits_RV.float()
    if sampling.temperature != 1:
        logits_RV = TemperatureLogitsWarper(float(sampling.temperature))(None, logits_RV)
    if sampling.top_k:
        logits_RV = TopKLogitsWarper(min(sampling.top_k, logits_RV.shape[-1]))(None, logits_RV)
    if sampling.top_p < 1:
        logits_RV = TopPLogitsWarper(float(sampling.top_p))(None, logits_RV)
    return logits_RV


def argmax(logits_RV: torch.Tensor) -> torch.Tensor:
    """The first of the largest in every row, int64 [R]; a NaN is larger than any number."""
    if logits_RV.device.type != "cpu":
        return logits_RV.argmax(-1)
    # on a CPU torch's own takes longer than numpy's: 6 times for one row of 49,152, 2.7 for 128
    return torch.from_numpy(np.from_dlpack(logits_RV.detach().float()).argmax(-1))


def draw(
    logits_RV: torch.Tensor, uniform_R: torch.Tensor, sampling: SamplingConfig
) -> torch.Tensor:
    """x ~ P in every row of raw logits, int64 [R], by numbers in [0, 1)."""
    if sampling.temperature == 0:
        return argmax(logits_RV)
    return inverse_cdf(next_token_probs(logits_RV, sampling), uniform_R)


def next_token_probs(logits_RV: torch.Tensor, sampling: SamplingConfig) -> torch.Tensor:
    """P, float32 [R, V]; one-hot at temperature 0."""
    if sampling.temperature == 0:
        return torch.zeros_like(logits_RV, dtype=torch.float32).scatter_(
            1, logits_RV.argmax(-1, keepdim=True), 1.0
        )
    return torch.softmax(filter_logits(logits_RV, sampling), dim=-1)


def inverse_cdf(weight_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """Index drawn in proportion to the weights (they need not sum to 1), int64 [R].

    The sum runs in float64: over 100 K float32 terms its error would be visible. An index of
    weight zero is never drawn.
    """
    cdf_RV = weight_RV.double().cumsum(-1)
    point_R1 = (uniform_R.double() * cdf_RV[:, -1])[:, None]
    index_R = torch.searchsorted(cdf_RV, point_R1, right=True)[:, 0]
    return index_R.clamp_(max=weight_RV.shape[-1] - 1)


def draw_distinct(
    logits_RV: torch.Tensor, uniform_RC: torch.Tensor, sampling: SamplingConfig
) -> torch.Tensor:
    """Tokens of every row, drawn one after the other without replacement, int64 [R, C].

    Where the filters leave fewer (at temperature 0 one), the most probable others follow.
    """
    weight_RV, rest_RV = next_token_probs(logits_RV, sampling), logits_RV.float()
    drawn = []
    for uniform_R in uniform_RC.T:
        is_left_R = weight_RV.sum(-1) > 0
        token_R = torch.where(is_left_R, inverse_cdf(weight_RV, uniform_R), rest_RV.argmax(-1))
        drawn.append(token_R)
        weight_RV = weight_RV.scatter(1, token_R[:, None], 0.0)
        rest_RV = rest_RV.scatter(1, token_R[:, None], -math.inf)
    return torch.stack(drawn, dim=1)

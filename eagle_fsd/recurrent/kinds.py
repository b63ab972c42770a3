"""Which layers' functions of transformers have a form for trees, and whose layers call them."""

import math
from collections.abc import Callable

from transformers import PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.recurrent.scans import delta_rule, mamba2

CONVOLUTION = "causal_conv1d_fn"
GATED_DELTA_NET = "torch_chunk_gated_delta_rule"
KIMI_DELTA_ATTENTION = "chunk_kimi_delta_attention"
MAMBA2 = "mamba2_chunk_scan"
CONVOLUTION_ALONE = ""
# By transformers' name of a layer's function for many tokens; which state each begins from is in
# its keyword.
SCANS: dict[str, tuple[Callable, str]] = {
    GATED_DELTA_NET: (delta_rule, "initial_state"),
    KIMI_DELTA_ATTENTION: (delta_rule, "initial_state"),
    MAMBA2: (mamba2, "initial_states"),
}
# By the model type of a text model's config, what its recurrent layers call beside CONVOLUTION.
FAMILIES = {
    "bamba": MAMBA2,
    "falcon_h1": MAMBA2,
    "granitemoehybrid": MAMBA2,
    "kimi_linear": KIMI_DELTA_ATTENTION,
    "lfm2": CONVOLUTION_ALONE,
    "lfm2_moe": CONVOLUTION_ALONE,
    "nemotron_h": MAMBA2,
    "olmo_hybrid": GATED_DELTA_NET,
    "qwen3_5_moe_text": GATED_DELTA_NET,
    "qwen3_5_text": GATED_DELTA_NET,
    "qwen3_next": GATED_DELTA_NET,
    "zamba2": MAMBA2,
}
# Layer types of configs. A hybrid layer has attention beside the recurrence; a layer without either
# keeps nothing.
RECURRENT, HYBRID, NOTHING = ("conv", "linear_attention"), ("hybrid",), ("dummy", "mlp", "moe")


def layer_types(config: PretrainedConfig) -> list[str]:
    return list(getattr(config, "layer_types", None) or [])


def has_states(config: PretrainedConfig) -> bool:
    """Whether layers of a text model carry a state from token to token."""
    return bool({*RECURRENT, *HYBRID} & set(layer_types(config)))


def check_states(config: PretrainedConfig) -> None:
    if not has_states(config):
        return
    kind = config.model_type
    if kind not in FAMILIES:
        types = sorted({*RECURRENT, *HYBRID} & set(layer_types(config)))
        raise BadInput(
            f"target of type {kind!r} has layers of type {types} with functions that no draft tree "
            f"can be run through. Supported with recurrent layers: {', '.join(FAMILIES)}"
        )
    # States in half precision, folded round by round, drift from plain decoding; a limit of time
    # steps transformers itself applies to prompts and not to single tokens.
    needed = dict.fromkeys(("mamba_ssm_cache_dtype", "mamba_ssm_dtype"), "float32")
    needed["time_step_limit"] = (0.0, math.inf)
    for name, wanted in needed.items():
        value = getattr(config, name, None)
        given = str(value).removeprefix("torch.") if isinstance(wanted, str) else tuple(value or ())
        if value is not None and given != wanted:
            raise BadInput(
                f"the target's config has {name} {value}, with which no draft tree equals plain "
                f"decoding: set it to {wanted}"
            )


def check_no_states(config: PretrainedConfig) -> None:
    if has_states(config):
        raise BadInput(
            f"a draft model of type {config.model_type!r} has recurrent layers: a tree grows level "
            "by level, and each level would begin from states of its nodes, which are not kept; "
            "give a draft model of attention layers, or another drafter"
        )

"""config.json of a head: keys, defaults, and rope scalings against transformers' own.

Axes: F rotary frequencies.
"""

import pytest
import torch
from head_files import SIZES
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import build_head


def test_absent_keys_take_upstream_defaults():
    """Vicuna's head names neither kv heads nor bias nor rope_theta; unknown keys are ignored."""
    values = {k: SIZES[k] for k in SIZES if k != "num_key_value_heads"}
    config = HeadConfig.from_json(values | {"pretraining_tp": 1, "use_cache": True})
    assert config.num_key_value_heads == 6 and config.bias is True and config.qkv_bias is False
    assert config.rope_theta == 10000.0 and config.rope_scaling is None
    assert config.num_hidden_layers == 1 and config.hidden_act == "silu"
    assert config.max_position_embeddings == 2048 and config.rms_norm_eps == 1e-6


def test_rope_theta_as_transformers_saves_it():
    """transformers 5 moves rope_theta into rope_parameters; a top-level one has precedence."""
    values = SIZES | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert HeadConfig.from_json(values).rope_theta == 500000.0
    assert HeadConfig.from_json(values | {"rope_theta": 7.0}).rope_theta == 7.0


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0} | LLAMA3,
}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaling_in_rope_parameters_is_not_dropped(kind):
    """Bug held down: a scaling that transformers 5 saved was read as no scaling at all."""
    rope = {"rope_type": kind, "rope_theta": 500000.0, **SCALINGS[kind]}
    config = HeadConfig.from_json(SIZES | {"rope_parameters": rope})
    assert config.rope_theta == 500000.0
    assert config.rope_scaling == {"type": kind, **SCALINGS[kind]}


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
def test_scaled_frequencies_are_transformers(kind, head_type):
    """The head's inverse frequencies == ROPE_INIT_FUNCTIONS of a Llama of the same shape."""
    config = HeadConfig(
        **SIZES,
        rope_theta=3000.0,
        rope_scaling={"type": kind, **SCALINGS[kind]},
        head_type=head_type,
        head_dim=12 if head_type == "eagle3" else None,
    )
    llama = LlamaConfig(
        hidden_size=24,
        num_attention_heads=6,
        head_dim=12 if head_type == "eagle3" else 4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": kind, "rope_theta": 3000.0, **SCALINGS[kind]},
    )
    want_F, scale = ROPE_INIT_FUNCTIONS[kind](llama)
    assert torch.equal(build_head(config)._rotary[0].inv_freq, want_F) and scale == 1
    plain_F = 3000.0 ** (-torch.arange(0, llama.head_dim, 2) / llama.head_dim)
    ratio_F = want_F / plain_F
    if kind == "linear":
        assert torch.allclose(ratio_F, torch.full_like(ratio_F, 1 / 4))
    if kind == "llama3":  # waves longer than 16 positions are slowed 8 times, shorter than 4 kept
        wave_F = 2 * torch.pi / plain_F
        assert torch.allclose(ratio_F[wave_F > 16], torch.tensor(1 / 8))
        assert torch.allclose(ratio_F[wave_F < 4], torch.tensor(1.0))
        assert (wave_F > 16).any()

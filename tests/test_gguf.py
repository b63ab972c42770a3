"""What a .gguf file says beyond what transformers' reader takes: taken, or refused by its key."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from tiny import random_model
from transformers import AutoConfig

from eagle_fsd.config import BadInput
from eagle_fsd.models.load import load_target_config, source_of
from eagle_fsd.models.weights import stored_model

D, HEAD, ROTARY = 64, 16, 8  # channels, of an attention head, frequencies
FREQUENCIES = 10000.0 ** (-np.arange(ROTARY) / ROTARY)


def llama3_factors(factor: float) -> np.ndarray:
    """By what llama.cpp divides the frequencies of Llama 3.1, as its converter writes them."""
    length = 2 * np.pi / FREQUENCIES
    smooth = (8192 / length - 1) / (4 - 1)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(length < 8192 / 4, 1, np.where(length > 8192, factor, between))


def write_gguf(path: Path, kind: str = "llama", *, tensors: dict | None = None, **said) -> str:
    """Of two layers, with further tensors and keys ("__" is a dot)."""
    writer, generator = GGUFWriter(path, kind), np.random.default_rng(0)
    writer.add_context_length(512)
    writer.add_embedding_length(D)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(80)
    for key, value in ({"rope__dimension_count": HEAD} | said).items():
        key = f"{kind}.{key.replace('__', '.')}"
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key, value)
    shapes = {"token_embd": (80, D), "output": (80, D), "output_norm": (D,)}
    for i in range(2):
        shapes |= {f"blk.{i}.{name}": (D,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{i}.attn_{name}": (D, D) for name in ("q", "output")}
        shapes |= {f"blk.{i}.attn_{name}": (D // 2, D) for name in "kv"}
        shapes |= {f"blk.{i}.ffn_{name}": (96, D) for name in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down": (D, 96)}
    weights = {f"{name}.weight": generator.standard_normal(s) / 8 for name, s in shapes.items()}
    for name, values in (weights | (tensors or {})).items():
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def frequencies(path: str) -> np.ndarray:
    """Of the model that is loaded."""
    name, options = source_of(path)
    config = load_target_config(path)
    model = stored_model(path, name, config, dtype=torch.float32, device="cpu", **options)
    return model.model.rotary_emb.inv_freq.numpy()


def test_a_plain_file_is_as_it_was(tmp_path):
    path = write_gguf(tmp_path / "plain.gguf", rope__freq_base=10000.0)
    assert np.allclose(frequencies(path), FREQUENCIES)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_frequencies_of_llama_3_are_scaled(tmp_path, factor):
    """Bug held down: rope_freqs.weight was left out, and logits were 3 to 5 off."""
    factors = llama3_factors(factor)
    tensors = {"rope_freqs.weight": factors}
    path = write_gguf(tmp_path / "31.gguf", tensors=tensors, rope__freq_base=10000.0)
    assert np.allclose(frequencies(path), FREQUENCIES / factors, rtol=1e-3)
    tensors = {"rope_freqs.weight": factors + 0.5}
    with pytest.raises(BadInput, match="rope_freqs.weight.*give the checkpoint"):
        load_target_config(write_gguf(tmp_path / "other.gguf", tensors=tensors))


def test_scaled_rotary_positions_are_taken(tmp_path):
    """Bug held down: they were loaded unscaled."""
    scaled = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}
    assert np.allclose(frequencies(write_gguf(tmp_path / "l.gguf", **scaled)), FREQUENCIES / 4)
    scaled |= {"rope__scaling__type": "yarn", "rope__scaling__original_context_length": 64}
    scaled |= {"rope__freq_base": 10000.0}
    path = write_gguf(tmp_path / "y.gguf", **scaled)
    wanted = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = AutoConfig.for_model("llama", rope_parameters=wanted | {"rope_theta": 10000.0})
    config.head_dim, config.max_position_embeddings = HEAD, 512
    config.num_hidden_layers, config.vocab_size, config.hidden_size = 1, 8, D
    other = random_model(config, seed=0)
    assert np.allclose(frequencies(path), other.model.rotary_emb.inv_freq.numpy())


@pytest.mark.parametrize(
    ("kind", "said", "setting"),
    [
        ("llama", {"attention__key_length": 32}, ("head_dim", 32)),
        ("phi3", {"attention__sliding_window": 9}, ("sliding_window", 9)),
        ("gemma2", {"attn_logit_softcapping": 7.0}, ("attn_logit_softcapping", 7.0)),
        ("gemma2", {"final_logit_softcapping": 7.0}, ("final_logit_softcapping", 7.0)),
        ("qwen3moe", {"expert_feed_forward_length": 24}, ("moe_intermediate_size", 24)),
        ("qwen3", {}, ("head_dim", HEAD)),
        ("llama", {"rope__dimension_count": HEAD}, ("head_dim", HEAD)),
        ("starcoder2", {"rope__freq_base": 999.0}, ("rope_parameters", 999.0)),
    ],
)
def test_what_the_config_has_a_setting_for_is_taken(tmp_path, kind, said, setting):
    said = {"rope__dimension_count": 32} | said if "attention__key_length" in said else said
    config = load_target_config(write_gguf(tmp_path / "a.gguf", kind, **said))
    name, wanted = setting
    value = getattr(config, name)
    assert (value["rope_theta"] if name == "rope_parameters" else value) == wanted


def test_layers_that_slide_have_their_own_rotary_positions(tmp_path):
    """Gemma 3's, of which llama.cpp scales those of the other layers alone."""
    said = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    said |= {"rope__freq_base": 1e6, "rope__freq_base_swa": 1e4, "attention__key_length": HEAD}
    said |= {"attention__sliding_window": 9}
    config = load_target_config(write_gguf(tmp_path / "a.gguf", "gemma3", **said))
    full, local = (config.rope_parameters[f"{k}_attention"] for k in ("full", "sliding"))
    assert (full["rope_type"], full["factor"], full["rope_theta"]) == ("linear", 8.0, 1e6)
    assert (local["rope_type"], local["rope_theta"]) == ("default", 1e4)


@pytest.mark.parametrize(
    "said",
    [
        {"expert_count": 8},
        {"attention__sliding_window": 4096},
        {"rope__scaling__type": "longrope"},
        {"rope__scaling__type": "yarn", "rope__scaling__yarn_log_multiplier": 0.1},
        {"residual_scale": 0.5},
        {"attention__scale": 0.5},
        {"final_logit_softcapping": 30.0},
    ],
)
def test_what_it_has_no_setting_for_is_refused_by_key(tmp_path, said):
    key = f"llama.{list(said)[-1].replace('__', '.')}"
    with pytest.raises(BadInput, match=f"{key}.*give the checkpoint that it was made from"):
        load_target_config(write_gguf(tmp_path / "a.gguf", **said))

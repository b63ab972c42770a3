"""Head checkpoints: written and read back bit by bit; every broken one refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_fsd.checkpoint import (
    HeadConfig,
    read_head_config,
    read_head_weights,
    resolve_folder,
    write_head,
)

CONFIG = {
    "hidden_size": 28,
    "intermediate_size": 37,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 41,
    "bias": True,
}


def shapes(*, bias: bool = True, qkv_bias: bool = False) -> dict[str, tuple[int, ...]]:
    """Upstream's keys for CONFIG, written out: D 28, MLP 37, key/value width 14."""
    attention = "layers.0.self_attn"
    table = {
        "fc.weight": (28, 56),
        f"{attention}.q_proj.weight": (28, 28),
        f"{attention}.k_proj.weight": (14, 28),
        f"{attention}.v_proj.weight": (14, 28),
        f"{attention}.o_proj.weight": (28, 28),
        "layers.0.mlp.gate_proj.weight": (37, 28),
        "layers.0.mlp.up_proj.weight": (37, 28),
        "layers.0.mlp.down_proj.weight": (28, 37),
        "layers.0.post_attention_layernorm.weight": (28,),
    }
    if bias:
        table["fc.bias"] = (28,)
    if qkv_bias:
        table[f"{attention}.q_proj.bias"] = (28,)
        table[f"{attention}.k_proj.bias"] = table[f"{attention}.v_proj.bias"] = (14,)
    return table


def random_tensors(table: dict[str, tuple[int, ...]], *, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {key: torch.randn(shape, generator=generator) for key, shape in table.items()}


def save(folder: Path, tensors: dict, config: dict | None = None) -> Path:
    """A head in upstream's layout."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def read(folder: Path) -> dict[str, torch.Tensor]:
    return read_head_weights(folder, read_head_config(folder))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_key_table(bias, qkv_bias):
    """HeadConfig.shapes() == upstream's key table written out by hand."""
    config = HeadConfig(**CONFIG | {"bias": bias, "qkv_bias": qkv_bias})
    assert config.shapes() == shapes(bias=bias, qkv_bias=qkv_bias)


def test_later_layers_have_an_input_norm():
    """Only the first layer goes without one."""
    extra = set(HeadConfig(**CONFIG, num_hidden_layers=2).shapes()) - set(shapes())
    assert {key.replace("layers.1.", "layers.0.") for key in extra} == {
        key for key in shapes() if key.startswith("layers.")
    } | {"layers.0.input_layernorm.weight"}


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_round_trip_is_bit_exact_in_bfloat16(tmp_path, qkv_bias):
    """write_head then read: the same config and the same bits; nothing else in the folder."""
    config = HeadConfig(
        **CONFIG | {"bias": False},
        qkv_bias=qkv_bias,
        rope_theta=500000.0,
        rope_scaling={"type": "linear", "factor": 4.0},
        rms_norm_eps=1e-5,
    )
    tensors = {k: v.bfloat16() for k, v in random_tensors(config.shapes()).items()}
    write_head(
        tmp_path / "a" / "head", config, tensors | {"embed_tokens.weight": torch.ones(41, 28)}
    )
    folder = tmp_path / "a" / "head"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert read_head_config(folder) == config
    back = read(folder)
    assert back.keys() == tensors.keys() == load_file(folder / "model.safetensors").keys()
    for key, tensor in tensors.items():
        assert back[key].dtype == torch.bfloat16
        assert torch.equal(back[key].view(torch.int16), tensor.view(torch.int16)), key


def test_written_config_is_upstreams(tmp_path):
    """config.json says bias and rope_theta at its top level, where upstream looks for them."""
    config = HeadConfig(**CONFIG | {"bias": False}, rope_theta=500000.0)
    write_head(tmp_path, config, random_tensors(config.shapes()))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["bias"] is False and written["rope_theta"] == 500000.0
    assert written["rope_scaling"] is None and written["num_key_value_heads"] == 1
    assert written["model_type"] == "llama" and "draft_vocab_size" not in written


def test_absent_keys_take_upstream_defaults():
    """Vicuna's head names neither kv heads nor bias nor rope_theta; unknown keys are ignored."""
    values = {k: CONFIG[k] for k in CONFIG if k not in ("bias", "num_key_value_heads")}
    config = HeadConfig.from_json(values | {"pretraining_tp": 1, "use_cache": True}, source="x")
    assert config.num_key_value_heads == 2 and config.bias is True and config.qkv_bias is False
    assert config.rope_theta == 10000.0 and config.rope_scaling is None
    assert config.num_hidden_layers == 1 and config.hidden_act == "silu"
    assert config.max_position_embeddings == 2048 and config.rms_norm_eps == 1e-6


def test_embedding_in_the_file_is_checked_and_left_out(tmp_path):
    """Published heads carry the target's embedding: accepted with its right shape only."""
    tensors = random_tensors(shapes())
    folder = save(tmp_path, tensors | {"embed_tokens.weight": torch.zeros(41, 28)})
    assert read(folder).keys() == tensors.keys()
    save(tmp_path, tensors | {"embed_tokens.weight": torch.zeros(43, 28)})
    with pytest.raises(ValueError, match=r"embed_tokens.weight has shape \(43, 28\).*\(41, 28\)"):
        read(folder)


# --- broken weights: what is done to a good set, and what the error must say ---------------------
Q = "layers.0.self_attn.q_proj.weight"
DOWN = "layers.0.mlp.down_proj.weight"
BROKEN_WEIGHTS = {
    "extra key": (lambda t: t | {"lm_head.weight": torch.zeros(3, 2)}, r"unexpected lm_head.*3, 2"),
    "input norm": (
        lambda t: t | {"layers.0.input_layernorm.weight": torch.zeros(28)},
        "unexpected layers.0.input_layernorm",
    ),
    "EAGLE-3 key": (lambda t: t | {"d2t": torch.zeros(5)}, "unexpected d2t"),
    "missing key": (lambda t: {k: t[k] for k in t if k != Q}, rf"missing {Q} \(28, 28\)"),
    "missing bias": (lambda t: {k: t[k] for k in t if k != "fc.bias"}, r"missing fc.bias \(28,\)"),
    "transposed": (
        lambda t: t | {DOWN: t[DOWN].T.contiguous()},
        rf"{DOWN} has shape \(37, 28\), config.json says \(28, 37\)",
    ),
    "prefix": (lambda t: {f"model.{k}": v for k, v in t.items()}, "missing fc.weight.*unexpected"),
    "MHA weights": (
        lambda t: t | {Q.replace("q_proj", "k_proj"): torch.zeros(28, 28)},
        r"k_proj.weight has shape \(28, 28\), config.json says \(14, 28\)",
    ),
}


@pytest.mark.parametrize("fault", BROKEN_WEIGHTS)
def test_weights_that_do_not_fit_are_refused(tmp_path, fault):
    """Each fault is named with its key and both shapes; never ignored, never broadcast."""
    breaking, message = BROKEN_WEIGHTS[fault]
    folder = save(tmp_path, breaking(random_tensors(shapes())))
    with pytest.raises(ValueError, match=message):
        read(folder)


def test_all_faults_are_named_at_once(tmp_path):
    """A checkpoint with three faults is told of three."""
    tensors = random_tensors(shapes())
    del tensors["fc.weight"]
    folder = save(tmp_path, tensors | {"one": torch.zeros(1), "two": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"missing fc.weight.*one \(1,\).*two \(2,\)"):
        read(folder)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"draft_vocab_size": 17}, "EAGLE-3 head"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 3}, "hidden_size 28 is not divisible by num_attention_heads 3"),
        (
            {"hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 2},
            "num_attention_heads 5 is not divisible by num_key_value_heads 2",
        ),
        ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling.*yarn.*linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.*llama3"),
    ],
)
def test_configs_that_cannot_be_a_head_are_refused(tmp_path, changes, message):
    """EAGLE-3 heads, sizes that do not divide, rope scalings that the head does not have."""
    values = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        read_head_config(tmp_path)


def test_rope_theta_as_transformers_saves_it():
    """transformers 5 moves rope_theta into rope_parameters; a top-level one has precedence."""
    values = CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert HeadConfig.from_json(values, source="x").rope_theta == 500000.0
    assert HeadConfig.from_json(values | {"rope_theta": 7.0}, source="x").rope_theta == 7.0


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_scaling_in_rope_parameters_is_not_dropped(kind):
    """Bug held down: a scaling that transformers 5 saved was read as no scaling at all."""
    rope = {"rope_type": kind, "rope_theta": 500000.0, "factor": 4.0}
    try:
        config = HeadConfig.from_json(CONFIG | {"rope_parameters": rope}, source="x")
    except ValueError as error:
        assert kind in str(error)
        return
    assert config.rope_scaling["type"] == kind and config.rope_scaling["factor"] == 4.0


@pytest.mark.parametrize("text, message", [("{", "broken JSON"), ("[1, 2]", "config.json")])
def test_config_files_that_are_no_json_object_are_refused(tmp_path, text, message):
    """The error names the file."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_head_config(tmp_path)


def test_absent_files_are_named(tmp_path):
    """No config.json, no weights, no folder."""
    with pytest.raises(ValueError, match="no config.json"):
        read_head_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ValueError, match="no weights: expected model.safetensors or pytorch_model"):
        read(tmp_path)
    with pytest.raises(ValueError, match="no draft head at '.*nowhere'"):
        resolve_folder(str(tmp_path / "nowhere"))


def test_missing_shard_is_named(tmp_path):
    """An index whose shard is absent."""
    save(tmp_path, {})
    (tmp_path / "model.safetensors").unlink()
    table = {"fc.weight": "model-00001-of-00002.safetensors", "fc.bias": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    save_file({"fc.bias": torch.zeros(28)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="absent: model-00001-of-00002.safetensors"):
        read(tmp_path)


@pytest.mark.parametrize(
    "name, content",
    [
        ("model.safetensors", b"\x09\x00\x00\x00\x00\x00\x00\x00not json"),
        ("model.safetensors", b""),
        ("pytorch_model.bin", b"not a pickle"),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b'{"metadata": {}}'),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path, name, content):
    """A cut-off download ends in a ValueError that names the file, not in a library's own error."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        read(tmp_path)


class Touch:
    """Unpickling it makes a file: the code that a hostile checkpoint would run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickles_that_would_run_code_are_refused(tmp_path, legacy):
    """Reading a hostile pytorch_model.bin fails and does not run its code."""
    mark, file = save_hostile(tmp_path, legacy=legacy)
    with pytest.raises(Exception, match="weights_only|hostile|pickle"):
        read(tmp_path)
    assert not mark.exists()
    torch.load(file, weights_only=False)  # the trap was real
    assert mark.exists()


def test_a_refused_pickle_is_a_clear_error(tmp_path):
    """A ValueError that names the file, and does not advise to load it with weights_only=False."""
    save_hostile(tmp_path, legacy=False)
    with pytest.raises(ValueError, match="pytorch_model.bin"):
        read(tmp_path)


def save_hostile(folder: Path, *, legacy: bool) -> tuple[Path, Path]:
    """A head whose pickle makes a file when it is run; that file and the pickle."""
    mark, file = folder / "ran", folder / "pytorch_model.bin"
    (folder / "config.json").write_text(json.dumps(CONFIG))
    hostile = random_tensors(shapes()) | {"fc.bias": Touch(mark)}
    torch.save(hostile, file, _use_new_zipfile_serialization=not legacy)
    return mark, file

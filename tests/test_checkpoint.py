"""Head checkpoints: written and read back bit by bit; every broken one refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_fsd.heads.files import resolve_folder, write_head
from eagle_fsd.heads.foreign import read_stored_config, read_stored_head
from eagle_fsd.heads.head_config import HeadConfig

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
    return read_stored_head(folder).tensors


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
    assert read_stored_config(folder).config == config
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


def test_embedding_in_the_file_is_checked_and_left_out(tmp_path):
    """Published heads carry the target's embedding: accepted with its right shape only."""
    tensors = random_tensors(shapes())
    folder = save(tmp_path, tensors | {"embed_tokens.weight": torch.zeros(41, 28)})
    assert read(folder).keys() == tensors.keys()
    save(tmp_path, tensors | {"embed_tokens.weight": torch.zeros(43, 28)})
    with pytest.raises(ValueError, match=r"embed_tokens.weight has shape \(43, 28\).*\(41, 28\)"):
        read(folder)


# --- broken weights: what is done to a good set, and what the error must say. More of them are in
# test_broken_heads.py
Q = "layers.0.self_attn.q_proj.weight"
BROKEN_WEIGHTS = {
    "input norm": (
        lambda t: t | {"layers.0.input_layernorm.weight": torch.zeros(28)},
        "unexpected layers.0.input_layernorm",
    ),
    "EAGLE-3 key": (lambda t: t | {"d2t": torch.zeros(5)}, "unexpected d2t"),
    "missing bias": (lambda t: {k: t[k] for k in t if k != "fc.bias"}, r"missing fc.bias \(28,\)"),
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


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"draft_vocab_size": 42}, "draft_vocab_size 42 is more than vocab_size 41"),
        ({"head_type": "medusa"}, "head_type 'medusa' is not eagle or eagle3"),
        ({"draft_vocab_size": 17, "num_hidden_layers": 2}, "EAGLE-3 head has one layer, not 2"),
        ({"feature_layers": [1, 2, 3]}, "settings of EAGLE-3 heads"),
        ({"draft_vocab_size": 17, "feature_layers": [1, 2]}, r"fuses three layers, got \(1, 2\)"),
        ({"draft_vocab_size": 17, "feature_layers": "abc"}, "feature_layers must be whole numbers"),
        ({"head_type": "eagle3", "draft_vocab_size": "17"}, "value of a wrong type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 3}, "hidden_size 28 is not divisible by num_attention_heads 3"),
        (
            {"hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 2},
            "num_attention_heads 5 is not divisible by num_key_value_heads 2",
        ),
        ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling.*yarn.*linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3 lacks low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor is no number: '4'"),
    ],
)
def test_configs_that_cannot_be_a_head_are_refused(tmp_path, changes, message):
    """Settings of the other kind, sizes that do not divide, unknown rope scalings."""
    values = {k: v for k, v in (CONFIG | changes).items() if v is not None}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        read_stored_config(tmp_path)


@pytest.mark.parametrize("text, message", [("{", "broken JSON"), ("[1, 2]", "config.json")])
def test_config_files_that_are_no_json_object_are_refused(tmp_path, text, message):
    """The error names the file."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_stored_config(tmp_path)


def test_absent_files_are_named(tmp_path):
    """No config.json, no weights, no folder."""
    with pytest.raises(ValueError, match="no config.json"):
        read_stored_config(tmp_path)
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
        ("pytorch_model.bin", b"\x80\x02}q\x00X\x09"),
        ("pytorch_model.bin", b"h\x07."),
        ("pytorch_model.bin", b""),
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
    with pytest.raises(ValueError, match="cannot read .*pytorch_model.bin.*pickle"):
        read(tmp_path)
    assert not mark.exists()
    torch.load(file, weights_only=False)  # the trap was real
    assert mark.exists()


def test_a_refused_pickle_is_a_clear_error(tmp_path):
    """It names the file and what was refused, and does not advise to load it all the same."""
    save_hostile(tmp_path, legacy=False)
    with pytest.raises(
        ValueError, match="pytorch_model.bin: the pickle holds more than.*getattr"
    ) as error:
        read(tmp_path)
    assert "weights_only" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content, message",
    [
        ({"fc.weight": 1.0}, "'fc.weight': float"),
        ({7: torch.zeros(2)}, "names to tensors, it has 7: Tensor"),
        ([torch.zeros(2)], "dictionary of tensors, not a list"),
    ],
)
def test_pickles_of_something_else_are_refused(tmp_path, content, message):
    """Whole numbers as keys, values that are no tensors, no dictionary at all."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=message):
        read(tmp_path)


def save_hostile(folder: Path, *, legacy: bool) -> tuple[Path, Path]:
    """A head whose pickle makes a file when it is run; that file and the pickle."""
    mark, file = folder / "ran", folder / "pytorch_model.bin"
    (folder / "config.json").write_text(json.dumps(CONFIG))
    hostile = random_tensors(shapes()) | {"fc.bias": Touch(mark)}
    torch.save(hostile, file, _use_new_zipfile_serialization=not legacy)
    return mark, file

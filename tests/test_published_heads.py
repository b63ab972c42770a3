"""Draft heads in every layout (head_files.py): each loads, runs as the slow reference says, is
written as upstream's and read back; what of them is refused; and how weights may be stored.

Axes: T positions, D hidden size, F features or rotary frequencies.
"""

import json
from pathlib import Path

import pytest
import torch
from commands import full_disk
from head_files import (
    AUX,
    D2T,
    LINEAR,
    LLAMA3,
    SIZES,
    SPECFORGE,
    THREE,
    WIDE,
    YARN,
    D,
    R,
    TargetShape,
    V,
    published,
    save,
    weights,
)
from safetensors.torch import load_file, save_file
from tiny_folder import Touch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle_fsd.config import BadInput
from eagle_fsd.heads.draft_head import DraftHead, build_head
from eagle_fsd.heads.files import read_head, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import read_config
from eagle_fsd.models.load import head_digests, load_head


def assert_same_tensors(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for key, tensor in want.items():
        assert got[key].dtype == tensor.dtype and torch.equal(got[key], tensor), key


@pytest.mark.parametrize("name", published())
def test_published_heads_load_and_are_read_back(tmp_path, name):
    """Config and tensors are ours (how such heads run: test_head.py); what is written in bfloat16
    is read back, in our layout, nothing assumed, and names no setting that is off."""
    values, fields, of_theirs = published()[name]
    ours = weights(**fields)
    target = TargetShape(WIDE if "width" in name else D)
    head, notes = read_head(save(tmp_path / "theirs", values, of_theirs(ours)), target)
    assert notes[0] == f"layout: {name.partition(',')[0]}"
    assert head.config == HeadConfig(**SIZES | fields) and not head.training
    assert_same_tensors(head.state_dict(), ours)
    folder = tmp_path / "a" / "b"
    write_head(folder, head.bfloat16())
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    read, notes = read_head(folder, target)
    assert read.config == head.config and notes == ["layout: upstream"]
    rounded = {k: t.bfloat16() if t.is_floating_point() else t for k, t in ours.items()}
    assert_same_tensors(read.state_dict(), rounded)
    written = json.loads((folder / "config.json").read_text())
    said = {"norm_output", "fc_norm", "norm_before_fc", "target_hidden_size", "qk_norm"}
    assert all(written[key] for key in said & written.keys())


def test_settings_that_are_not_known_are_named(tmp_path, capsys):
    """Wherever a head is loaded, and none that is off."""
    values = SPECFORGE | {"novel_gate": 0.5, "novel_norm": False, "sliding_window": 8}
    load_head(save(tmp_path, values, weights(**THREE)), TargetShape())
    told = "novel_gate 0.5 in config.json is not read; sliding_window 8 in config.json is not read"
    assert capsys.readouterr().err == f"eagle_fsd: head {tmp_path}: {told}\n"


@pytest.mark.parametrize(
    "ids, target_layers, layers",
    [
        ([1, 15, 28], 32, (2, 16, 29)),
        ([2, 16, 29], 32, (2, 16, 29)),  # by what enters a layer
        ([24, 30, 36], 36, (24, 30, 36)),  # a number that no layer has (sglang pull request 32334)
        ([24, 30, 36], 0, (25, 31, 37)),
    ],
)
def test_layers_of_nvidia_are_told_apart_by_the_target(ids, target_layers, layers):
    _, config, notes = read_config(SPECFORGE | {"eagle_config": {AUX: ids}}, target_layers)
    assert config.feature_layers == layers
    assert f"so hidden states {[*layers]}; if others are meant" in notes[0]


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA3, YARN], ids=["linear", "llama3", "yarn"])
def test_scaled_frequencies_are_transformers(scaling):
    """The head's inverse frequencies == ROPE_INIT_FUNCTIONS of a Llama of the same shape. Bug held
    down: a scaling that transformers 5 saved was read as no scaling at all."""
    rope = {"rope_theta": 3000.0, **scaling["rope_scaling"]}
    llama = LlamaConfig(**SIZES, head_dim=12, rope_parameters=rope)
    want_F, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](llama)
    older = {"rope_theta": 3000.0, "rope_scaling": {"type": rope["rope_type"], **rope}}
    for values in (older, {"rope_parameters": rope}):
        _, config, _ = read_config(SIZES | {"head_dim": 12, "head_type": "eagle3"} | values)
        rotary = build_head(config)._rotary[0]
        assert torch.equal(rotary.inv_freq, want_F) and rotary.attention_scaling == scale
    plain_F = 3000.0 ** (-torch.arange(0, llama.head_dim, 2) / llama.head_dim)
    assert (scale > 1) == (scaling is YARN) and (want_F / plain_F < 0.9).any()


# --- what is written ------------------------------------------------------------------------------


def written_config(folder: Path, reader: str = "", **fields) -> tuple[dict, DraftHead]:
    head = build_head(HeadConfig(**SIZES, **fields))
    write_head(folder, head, reader=reader)
    return json.loads((folder / "config.json").read_text()), head


def test_our_heads_are_upstreams(tmp_path):
    """config.json says things where upstream, SGLang and vLLM look (docs/serve.md); the weights'
    names are those that the reference reads. Bug held down: of an EAGLE-3 head it claimed a bias,
    which SGLang then draws at random and vLLM leaves unset; no EAGLE-1/2 head was one to SGLang."""
    written, _ = written_config(tmp_path, **LINEAR, rope_theta=500000.0)
    assert written["bias"] is True and written["rope_theta"] == 500000.0
    assert written["architectures"] == ["LlamaForCausalLMEagle"]
    assert written["rope_scaling"] == {"type": "linear", "rope_type": "linear", "factor": 4.0}
    assert "rope_parameters" not in written and "draft_vocab_size" not in written
    written, _ = written_config(tmp_path, bias=False)
    assert written["bias"] is False and written["architectures"] == ["LlamaForCausalLM"]
    written, _ = written_config(tmp_path, head_type="eagle3", feature_layers=(2, 16, 29))
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == weights(head_type="eagle3").keys() > {"midlayer.hidden_norm.weight"}
    assert written["architectures"] == ["LlamaForCausalLMEagle3"] and written["bias"] is False
    assert written["draft_vocab_size"] == V
    assert written[AUX] == [2, 16, 29] and written["eagle_config"][AUX] == [1, 15, 28]


@pytest.mark.parametrize(
    "fields, architecture, left",
    [
        ({"qkv_bias": True}, "EagleFsdLlamaForCausalLM", {"qkv_bias"}),
        ({"draft_vocab_size": R}, "EagleFsdLlamaForCausalLM", {"attention_bias", "qkv_bias"}),
        ({"bias": False}, "LlamaForCausalLM", {"bias", "attention_bias", "qkv_bias"}),
    ],
)
def test_what_vllm_reads_names_its_class_and_no_bias_of_o(tmp_path, fields, architecture, left):
    """Bug held down: vLLM takes `bias` and `attention_bias` for biases of the whole attention and
    leaves that of o_proj unset, so that no draft was ever accepted."""
    written, head = written_config(tmp_path, "vllm", **fields)
    assert written["architectures"] == [architecture]
    assert {key for key in written if key.endswith("bias") and key != "mlp_bias"} == left
    assert not any(written[key] for key in left) or left == {"qkv_bias"}
    assert read_config(written)[1] == head.config


def test_half_a_head_is_none(tmp_path):
    """Bug held down: its config.json was there first, and the same command was refused for it."""
    with full_disk(5000), pytest.raises(BadInput, match="model.safetensors"):
        write_head(tmp_path, build_head(HeadConfig(**SIZES)))
    assert not (tmp_path / "config.json").exists()


# --- what is refused ------------------------------------------------------------------------------


DOWN = "midlayer.mlp.down_proj.weight"


@pytest.mark.parametrize(
    "said, tensors, told",
    [
        # bug held down: it loaded without a word, and drafted with one layer
        ({"num_hidden_layers": 2}, {}, 'missing "layers.1.'),
        # bugs held down: these loaded and changed nothing, or were Llama-7B's sizes, or a KeyError
        ({"layer_types": ["chunked_attention"]}, {}, "chunked_attention in layer_types"),
        (
            {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            {},
            "partial_rotary_factor 0.5 is not supported",
        ),
        ({"rope_scaling": {"type": "mrope"}}, {}, "rope_type 'mrope'; it can be one of default"),
        ({"vocab_size": None}, {}, "no vocab_size: write into it what the head was"),
        ({"draft_vocab_size": V + 1}, {}, f"must be less than vocab_size {V}"),
        (
            {},
            {"layers.0.hidden_norm.weight": torch.ones(D)},
            'unexpected "midlayer.hidden_norm.weight, a second time"',
        ),
        ({}, {DOWN: torch.ones(D, 37, dtype=torch.int8)}, f"{DOWN} has dtype"),
        ({}, {"lm_head.weight": torch.zeros(R, D)}, "lm_head.weight is all zeros"),
        ({}, {"d2t": D2T + 1}, "d2t does not lead to ascending"),
        ({}, {"t2d": torch.arange(V) < R}, "t2d marks 11 tokens"),
        # bugs held down: these loaded, and drafted the first tokens or none
        ({}, {"d2t": 0 * D2T, "t2d": None}, "d2t is all zeros, and was never filled in"),
        (
            {"draft_vocab_size": V},
            {"d2t": None, "lm_head.weight": torch.ones(V, D)},
            f"t2d marks 11 tokens, and not the {V}",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path, said, tensors, told):
    """Changes of a sound head's config and tensors; None takes one out."""
    tensors = {k: t for k, t in (weights(**THREE) | tensors).items() if t is not None}
    with pytest.raises(BadInput) as error:
        read_head(save(tmp_path, SPECFORGE | said, tensors), TargetShape())
    assert str(tmp_path) in str(error.value) and told in str(error.value)


# --- how weights are stored -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_that_an_index_names_are_one_head(tmp_path, kind):
    """Bug held down: such a head was called absent, cut off or broken. Its digests are of all its
    files."""
    tensors, name = weights(**THREE), "model" if kind == "safetensors" else "pytorch_model"
    (save(tmp_path, SPECFORGE, {}) / "model.safetensors").unlink()
    files = {}
    for number in (0, 1):
        part = dict([*tensors.items()][number::2])
        file = tmp_path / f"{name}-0000{number + 1}-of-00002.{kind}"
        torch.save(part, file) if kind == "bin" else save_file(part, file)
        files |= dict.fromkeys(part, file.name)
    index = tmp_path / f"{name}.{kind}.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert_same_tensors(read_head(tmp_path, TargetShape())[0].state_dict(), tensors)
    held = {"config.json", index.name, *files.values()}
    assert head_digests(str(tmp_path)).keys() == {f"head/{name}" for name in held}
    index.write_text(json.dumps({"weight_map": files | {"fc.weight": files["norm.weight"]}}))
    with pytest.raises(BadInput, match=f"cannot read .*{files['norm.weight']}"):
        read_head(tmp_path)
    (tmp_path / files["norm.weight"]).unlink()
    with pytest.raises(BadInput, match=f"{files['norm.weight']}: it is absent"):
        read_head(tmp_path)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    """Reading a hostile pytorch_model.bin fails and does not run its code; the error does not
    advise to load it all the same."""
    mark, file = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    torch.save(weights() | {"fc.bias": Touch(mark)}, file)
    with pytest.raises(BadInput, match="pickle") as error:
        load_head(tmp_path, TargetShape())
    assert "weights_only" not in str(error.value) and not mark.exists()
    torch.load(file, weights_only=False)  # the trap was real
    assert mark.exists()

"""Draft heads in every layout: hand-written files load, what we write is upstream's and ours, and
broken ones are refused by every fault (of config.json: bad_input.txt).

Axes: F rotary frequencies.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import full_disk
from head_files import (
    EMBEDDING,
    SIZES,
    SPECFORGE,
    SPECULATORS,
    SPECULATORS3,
    D,
    R,
    TargetShape,
    V,
    draw,
    eagle3_tensors,
    eagle_tensors,
    renamed,
    save,
    vocabulary,
    with_layer,
)
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eagle_fsd.config import BadInput
from eagle_fsd.heads.draft_head import build_head
from eagle_fsd.heads.files import read_head, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.layouts import read_config
from eagle_fsd.models.digests import head_digests
from eagle_fsd.models.load import load_head

AUX = "eagle_aux_hidden_state_layer_ids"


# layout -> config.json, tensors, what they are in ours, and the fields of HeadConfig that differ
def foreign() -> dict[str, tuple[dict, dict, dict, dict]]:
    eagle, eagle3, full = eagle_tensors(), eagle3_tensors(), eagle3_tensors(rows=V)
    biased = eagle3_tensors(qkv_bias=True)
    three = {"head_type": "eagle3", "draft_vocab_size": R}
    theta, own = {"rope_theta": 500000.0}, {"own_embedding": True}
    readout = {"lm_head.weight": torch.ones(V, D)}
    identity = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    spec1 = SPECULATORS | {"speculators_model_type": "eagle", "architectures": ["EagleSpeculator"]}
    return {
        "upstream": (SIZES, eagle | EMBEDDING, eagle | EMBEDDING, own),
        "upstream 3": (
            SIZES | {"draft_vocab_size": R},
            eagle3 | EMBEDDING,
            eagle3 | EMBEDDING,
            three | own,
        ),
        "upstream 3 full": (
            SIZES | {"draft_vocab_size": V},
            full | identity | {"t2d": torch.zeros(V, dtype=torch.bool)},
            full,
            {"head_type": "eagle3"},
        ),
        "specforge, own layers": (
            SPECFORGE | {"eagle_config": {AUX: [1, 15, 28]}},
            eagle3,
            eagle3,
            three | {"feature_layers": (2, 16, 29)},
        ),
        "speculators": (
            spec1 | {"fusion_bias": True, "layernorms": False},
            renamed(eagle, {"fc.": "fusion_fc.", "layers.0.": "transformer."}) | readout,
            eagle | readout,
            theta | {"own_lm_head": True},
        ),
        "speculators 3": (
            SPECULATORS3 | {AUX: [2, 16, 29], "norm_before_residual": True},
            renamed(eagle3, {"midlayer.": "layers.0."})
            | EMBEDDING
            | {"verifier_norm.weight": torch.ones(D)},
            eagle3 | EMBEDDING,
            three | theta | own | {"feature_layers": (2, 16, 29), "norm_before_residual": True},
        ),
        "speculators 3, biases": (
            with_layer(SPECULATORS3, attention_bias=True),
            renamed(biased, {"midlayer.": "layers.0."})
            | {"layers.0.self_attn.o_proj.bias": torch.zeros(D), "fc.bias": torch.zeros(D)},
            biased,
            three | theta | {"qkv_bias": True},
        ),
    }


def assert_same_tensors(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for key, tensor in want.items():
        assert got[key].dtype == tensor.dtype and torch.equal(got[key], tensor), key


@pytest.mark.parametrize("name", foreign())
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_foreign_files_are_our_heads(tmp_path, name, kind):
    """A hand-written file of each layout: the config and every tensor are ours."""
    values, tensors, ours, fields = foreign()[name]
    head, notes = read_head(save(tmp_path, values, tensors, kind), TargetShape())
    assert notes[0] == f"layout: {name.split(',')[0].split()[0]}"
    assert head.config == HeadConfig(**SIZES | fields) and not head.training
    assert_same_tensors(head.state_dict(), ours)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_that_an_index_names_are_one_head(tmp_path, kind):
    """Bug held down: such a head was called absent, cut off or broken. Its digests are of all its
    files."""
    tensors, name = eagle3_tensors(), "model" if kind == "safetensors" else "pytorch_model"
    whole = save(tmp_path / "whole", SPECFORGE, tensors)
    folder, files = save(tmp_path / "shards", SPECFORGE, {}), {}
    (folder / "model.safetensors").unlink()
    for number in (0, 1):
        part = dict([*tensors.items()][number::2])
        file = folder / f"{name}-0000{number + 1}-of-00002.{kind}"
        torch.save(part, file) if kind == "bin" else save_file(part, file)
        files |= dict.fromkeys(part, file.name)
    index = folder / f"{name}.{kind}.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    head, _ = read_head(folder, TargetShape())
    assert_same_tensors(head.state_dict(), read_head(whole, TargetShape())[0].state_dict())
    held = {"config.json", index.name, *files.values()}
    assert head_digests(str(folder)).keys() == {f"head/{name}" for name in held}
    (folder / files["fc.weight"]).unlink()
    with pytest.raises(BadInput, match=f"{files['fc.weight']}: it is absent"):
        read_head(folder)
    index.unlink()
    with pytest.raises(BadInput, match=rf"no model\.safetensors in .* holds {name}-0000"):
        read_head(folder)


def test_a_file_of_another_form_is_called_what_it_is(tmp_path):
    save(tmp_path, SIZES, eagle_tensors())
    safe, pickled = tmp_path / "model.safetensors", tmp_path / "pytorch_model.bin"
    shutil.copy(safe, pickled)
    torch.save(eagle_tensors(), safe)
    with pytest.raises(BadInput, match="a pickle of torch.save: call it pytorch_model.bin"):
        read_head(tmp_path)
    safe.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(BadInput, match="a pointer of Git LFS"):
        read_head(tmp_path)
    safe.unlink()
    with pytest.raises(BadInput, match="a safetensors file: call it model.safetensors"):
        read_head(tmp_path)


ROUND_TRIPS = {
    "eagle": {},
    "eagle, no bias": {"bias": False, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    "eagle, qkv bias": {"qkv_bias": True, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "eagle, 11 tokens": {"draft_vocab_size": R},
    "eagle3, 11 tokens": {"head_type": "eagle3", "draft_vocab_size": R, "head_dim": 10},
    "eagle3, own layers": {"head_type": "eagle3", "feature_layers": (3, 20, 2)},
    "eagle3, the rest": {"head_type": "eagle3", "qkv_bias": True, "norm_before_residual": True},
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_read_back(tmp_path, name, dtype):
    """The config and every bit; nothing else is left in the folder."""
    config = HeadConfig(**SIZES | ROUND_TRIPS[name])
    head = build_head(config)
    weights = draw({key: tuple(tensor.shape) for key, tensor in head.named_parameters()})
    indices = {key: vocabulary()[key] for key, _ in head.named_buffers()}
    head.load_state_dict(weights | indices)
    write_head(tmp_path / "a" / "b", head.to(dtype))
    names = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert names == ["config.json", "model.safetensors"]
    read, notes = read_head(tmp_path / "a" / "b")
    assert notes == ["layout: upstream"] and read.config == config
    want = {key: tensor.to(dtype) for key, tensor in weights.items()}
    assert_same_tensors(read.state_dict(), want | indices)


def test_half_a_head_is_none(tmp_path):
    """Bug held down: its config.json was there first, and the same command was refused for it."""
    with full_disk(5000), pytest.raises(BadInput, match="model.safetensors"):
        write_head(tmp_path, build_head(HeadConfig(**SIZES)))
    assert not (tmp_path / "config.json").exists()


def test_our_heads_are_upstreams(tmp_path):
    """Exactly upstream's keys; config.json says things where upstream, SGLang and vLLM look
    (docs/serve.md). Bug held down: of an EAGLE-3 head it claimed a bias, which SGLang then draws at
    random and vLLM leaves unset; no EAGLE-1/2 head was one to SGLang."""
    rope = {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    head = build_head(HeadConfig(**SIZES, **rope))
    write_head(tmp_path, head)
    assert load_file(tmp_path / "model.safetensors").keys() == eagle_tensors().keys()
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["bias"] is True and written["rope_theta"] == 500000.0
    assert written["architectures"] == ["LlamaForCausalLMEagle"]
    assert written["rope_scaling"] == {"type": "linear", "rope_type": "linear", "factor": 4.0}
    assert "rope_parameters" not in written and "draft_vocab_size" not in written
    write_head(tmp_path, build_head(HeadConfig(**SIZES, bias=False)))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["bias"] is False and written["architectures"] == ["LlamaForCausalLM"]
    three = {"head_type": "eagle3", "feature_layers": (2, 16, 29)}
    write_head(tmp_path, build_head(HeadConfig(**SIZES, **three)))
    assert load_file(tmp_path / "model.safetensors").keys() == eagle3_tensors(rows=V).keys()
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLMEagle3"] and written["bias"] is False
    assert written["draft_vocab_size"] == V
    assert written[AUX] == [2, 16, 29] and written["eagle_config"][AUX] == [1, 15, 28]


VLLM = "EagleFsdLlamaForCausalLM"
FOR_VLLM = {  # fields -> architecture, and what is left of the three biases
    "qwen2": ({"qkv_bias": True}, VLLM, {"qkv_bias": True}),
    "shipped": ({"draft_vocab_size": R}, VLLM, {"attention_bias": False, "qkv_bias": False}),
    "no bias": (
        {"bias": False},
        "LlamaForCausalLM",
        {"bias": False, "attention_bias": False, "qkv_bias": False},
    ),
}


@pytest.mark.parametrize("name", FOR_VLLM)
def test_what_vllm_reads_names_its_class_and_no_bias_of_o(tmp_path, name):
    """Bug held down: vLLM takes `bias` and `attention_bias` for biases of the whole attention and
    leaves that of o_proj unset, so that no draft was ever accepted."""
    fields, architecture, biases = FOR_VLLM[name]
    config = HeadConfig(**SIZES, **fields)
    write_head(tmp_path, build_head(config), reader="vllm")
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["architectures"] == [architecture]
    keys = {"bias", "attention_bias", "qkv_bias"} & written.keys()
    assert {key: written[key] for key in keys if written[key] is not None} == biases
    _, read, _ = read_config(written)
    assert read == config


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 16}
SCALINGS = {"linear": {"factor": 4.0}, "llama3": {"factor": 8.0} | LLAMA3, "yarn": YARN}


@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_frequencies_are_transformers(kind):
    """The head's inverse frequencies == ROPE_INIT_FUNCTIONS of a Llama of the same shape.

    Bug held down: a scaling that transformers 5 saved was read as no scaling at all.
    """
    rope = {"rope_type": kind, "rope_theta": 3000.0, **SCALINGS[kind]}
    llama = LlamaConfig(**SIZES, head_dim=12, rope_parameters=rope)
    want_F, scale = ROPE_INIT_FUNCTIONS[kind](llama)
    older = {"rope_theta": 3000.0, "rope_scaling": {"type": kind, **SCALINGS[kind]}}
    for values in (older, {"rope_parameters": rope}):
        _, config, _ = read_config(SIZES | {"head_dim": 12, "head_type": "eagle3"} | values)
        rotary = build_head(config)._rotary[0]
        assert torch.equal(rotary.inv_freq, want_F) and rotary.attention_scaling == scale
    plain_F = 3000.0 ** (-torch.arange(0, llama.head_dim, 2) / llama.head_dim)
    assert (scale > 1) == (kind == "yarn") and (want_F / plain_F < 0.9).any()


FREQUENCIES = "layers.0.self_attn.rotary_emb.inv_freq"


def test_frequencies_that_older_files_hold_are_the_config_s(tmp_path):
    """Of 4 channels: 1 and 0.01, here rounded to 16 bits. Bug held down: they were refused."""
    held = {FREQUENCIES: torch.tensor([1.0, 0.01]).half()}
    head, _ = read_head(save(tmp_path, SIZES, eagle_tensors() | held))
    assert FREQUENCIES not in head.state_dict()


# --- what is refused ------------------------------------------------------------------------------


def faults() -> dict[str, tuple[dict, dict, str]]:
    """What is wrong with weights -> config.json, tensors, the key that is named."""
    eagle, eagle3, three = eagle_tensors(), eagle3_tensors(), SIZES | {"draft_vocab_size": R}
    d2t, down = eagle3["d2t"], "layers.0.mlp.down_proj.weight"
    biased = renamed(eagle3_tensors(qkv_bias=True), {"midlayer.": "layers.0."})
    o_bias = "layers.0.self_attn.o_proj.bias"
    return {
        "extra keys": (SIZES, eagle | {"d2t": torch.ones(5)}, "d2t"),
        "whole numbers": (SIZES, eagle | {down: eagle[down].char()}, down),
        "d2t too far": (three, eagle3 | {"d2t": d2t + 1}, "d2t"),
        "t2d of other tokens": (three, eagle3 | {"t2d": eagle3["t2d"].roll(1)}, "t2d marks"),
        "d2t out of order": (three, eagle3 | {"d2t": d2t.flip(0)}, "d2t"),
        # bugs held down: these loaded, and drafted the first tokens or none
        "d2t never filled in": (
            three,
            {k: t for k, t in eagle3.items() if k != "t2d"} | {"d2t": torch.zeros_like(d2t)},
            "d2t is all zeros, and was never filled in",
        ),
        "t2d of a head without d2t": (
            SIZES,
            eagle | {"d2t": torch.zeros_like(d2t), "t2d": eagle3["t2d"]},
            "t2d marks 11 of 41 tokens, and no d2t leads to them",
        ),
        "zeros": (three, eagle3 | {"lm_head.weight": torch.zeros(R, D)}, "lm_head.weight is all"),
        "frequencies of another base": (
            SIZES,
            eagle | {FREQUENCIES: 1e5 ** -torch.tensor([0.0, 0.5])},
            f"{FREQUENCIES} is not what config.json says",
        ),
        "a bias of o_proj": (
            with_layer(SPECULATORS3, attention_bias=True),
            biased | {o_bias: torch.ones(D)},
            "o_proj.bias",
        ),
    }


@pytest.mark.parametrize("fault", faults())
def test_weights_that_are_no_heads_are_refused_by_name(tmp_path, fault):
    """Extra keys, numbers of another kind, broken vocabularies; further faults:
    test_published_heads.py."""
    values, tensors, key = faults()[fault]
    with pytest.raises(BadInput, match=f"{tmp_path} .*{key}"):
        load_head(save(tmp_path, values, tensors), TargetShape())


class Touch:
    """Unpickling it makes a file: the code that a hostile checkpoint would run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    """Reading a hostile pytorch_model.bin fails and does not run its code; the error does not
    advise to load it all the same."""
    mark, file = tmp_path / "ran", tmp_path / "pytorch_model.bin"
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    torch.save(eagle_tensors() | {"fc.bias": Touch(mark)}, file)
    with pytest.raises(BadInput, match="pickle") as error:
        load_head(tmp_path, TargetShape())
    assert "weights_only" not in str(error.value) and not mark.exists()
    torch.load(file, weights_only=False)  # the trap was real
    assert mark.exists()

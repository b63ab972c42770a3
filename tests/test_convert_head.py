"""The command that converts draft heads, end to end on folders."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_folder import write_random_head, write_target

from eagle_fsd.checkpoint import write_head
from eagle_fsd.drafters.heads import Eagle3Head
from eagle_fsd.formats import read_stored_head
from eagle_fsd.head_config import HeadConfig
from eagle_fsd.loading import load_head, load_target_config

COMMAND = Path(__file__).parent.parent / "train" / "convert_head.py"


def convert(monkeypatch, **options) -> None:
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", [str(COMMAND), *arguments])
    runpy.run_path(str(COMMAND), run_name="__main__")


def write_eagle3_head(folder: Path, **changes) -> Path:
    """A random EAGLE-3 head for write_target's model, 19 tokens."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_attention_heads": 4}
    kind = {"vocab_size": 258, "head_type": "eagle3", "draft_vocab_size": 19}
    head = Eagle3Head(HeadConfig(**sizes | kind | {"feature_layers": (0, 1, 1)} | changes))
    head.set_draft_tokens(torch.arange(3, 60, 3))
    write_head(folder, head.config, head.state_dict())
    return folder


def test_there_and_back(tmp_path, monkeypatch, capsys):
    """eagle_fsd -> speculators with the embedding -> eagle_fsd: every bit; the report says all."""
    target = write_target(tmp_path / "target")
    head = write_eagle3_head(tmp_path / "head")
    there, back = tmp_path / "there", tmp_path / "back"
    convert(monkeypatch, head=head, output=there, format="speculators", target=target)
    said = capsys.readouterr().out
    assert f"read {head}: EAGLE-3 head in the layout of eagle_fsd" in said
    assert "renamed midlayer.mlp.up_proj.weight to layers.0.mlp.up_proj.weight" in said
    assert "added embed_tokens.weight (258, 32)" in said
    assert "fuses hidden states (0, 1, 1) of the target" in said
    count = sum(t.numel() for t in load_file(head / "model.safetensors").values())
    assert f"{count - 258 - 19:,} parameters, bfloat16" in said
    assert "  layers.0.self_attn.q_proj.weight (32, 64)" in said
    values = json.loads((there / "config.json").read_text())
    assert values["speculators_config"]["verifier"]["name_or_path"] == str(target)
    assert values["speculators_config"]["verifier"]["architectures"] == ["LlamaForCausalLM"]
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    written = load_file(there / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, embedding.bfloat16())

    convert(monkeypatch, head=there, output=back)
    said = capsys.readouterr().out
    assert "in the layout of speculators" in said and "dropped embed_tokens.weight" in said
    first, second = read_stored_head(head), read_stored_head(back)
    assert first.config == second.config and second.layout == "eagle_fsd"
    for key, tensor in first.tensors.items():
        assert torch.equal(second.tensors[key], tensor), key
    load_head(there, load_target_config(str(target)))


@pytest.mark.parametrize("layout", ["eagle_fsd", "upstream", "speculators"])
def test_dtype_and_eagle_heads(tmp_path, monkeypatch, capsys, layout):
    """--dtype changes the weights and is said; an EAGLE-1/2 head goes to each layout it has."""
    head, output = write_random_head(tmp_path / "head"), tmp_path / "out"
    write_target(tmp_path / "target")
    head = tmp_path / "head"
    convert(monkeypatch, head=head, output=output, format=layout, dtype="float32")
    assert "bfloat16 became float32" in capsys.readouterr().out
    got, want = read_stored_head(output), read_stored_head(head)
    assert got.layout == layout and got.config == want.config
    for key, tensor in want.tensors.items():
        assert torch.equal(got.tensors[key], tensor.float()), key
    load_head(output, load_target_config(str(tmp_path / "target")))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"format": "onnx"}, "error: unknown --format 'onnx': eagle_fsd, upstream, speculators"),
        ({"dtype": "int4"}, "error: unknown --dtype 'int4': bfloat16"),
        ({"output": "head"}, "error: --output head holds a config.json already"),
        ({"format": "specforge"}, "error: specforge has no heads with head_type_eagle"),
        ({"head": "target"}, "error: the draft head in target does not fit: missing fc.weight"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, options, message):
    """What cannot be done ends in `error: ...` and writes nothing."""
    monkeypatch.chdir(tmp_path)
    write_target(Path("target"))
    write_random_head(Path("head"))
    with pytest.raises(SystemExit) as error:
        convert(monkeypatch, **{"head": "head", "output": "out"} | options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert not Path("out").exists()


def test_a_head_of_another_target_is_refused(tmp_path, monkeypatch):
    """--target checks the sizes and the fused layers before anything is written."""
    target = write_target(tmp_path / "target")
    head = write_eagle3_head(tmp_path / "head", feature_layers=(2, 16, 29))
    with pytest.raises(
        SystemExit, match=r"fuses hidden states \(2, 16, 29\).*target with 4 layers"
    ):
        convert(monkeypatch, head=head, output=tmp_path / "out", target=target)
    assert not (tmp_path / "out").exists()

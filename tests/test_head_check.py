"""`convert_head.py --check HEAD TARGET`: the page of a sound head and every fault by its tensor.
The target is a config.json and nothing else."""

import json
import math
from pathlib import Path

import pytest
import torch
from head_files import SIZES, SPECFORGE, D, save
from published_heads import AUX, MODELOPT, tensors_of
from tiny_mtp import write_mtp_target
from training_runs import convert

FC, DOWN = "fc.weight", "midlayer.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def write_config(tmp_path_factory):
    """Writes a target's config with these changes; gives its folder."""

    def write(**changes) -> Path:
        folder = tmp_path_factory.mktemp("target")
        values = SIZES | {"model_type": "llama", "num_hidden_layers": 32} | changes
        (folder / "config.json").write_text(json.dumps(values))
        return folder

    return write


def check(capsys, head: Path | str, target: Path, *options) -> tuple[dict[str, list[str]], int]:
    """The lines by their label, and the number of faults that the command ends with."""
    faults = 0
    try:
        convert("--check", head, target, *options)
    except SystemExit as end:
        faults = int(str(end).partition("for ")[2].partition(": ")[2].partition(",")[0])
    lines: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        lines.setdefault(line[:10].strip(), []).append(line[10:])
    return lines, faults


def test_a_sound_head_is_described(tmp_path, capsys, write_config):
    head = save(tmp_path / "head", MODELOPT, tensors_of())
    lines, faults = check(capsys, head, write_config())
    assert lines["wrong"] == ["nothing found"] and not faults
    assert lines["head"] == ["EAGLE-3 in the layout specforge"]
    assert lines["layers"] == ["1 of 24 channels"] and lines["drafts"] == ["11 of 41 tokens"]
    assert lines["reads"] == ["hidden states 2, 16, 29"]
    assert "fused layers [1, 15, 28]: counted by what leaves a layer" in lines["assumed"][0]
    lines, faults = check(capsys, head, write_config(), "--feature_layers", "3, 20,30")
    assert lines["reads"] == ["hidden states 3, 20, 30"] and not faults


def test_what_is_wrong_with_a_tensor_is_named(tmp_path, capsys, write_config):
    """Each of them, and nothing else."""
    tensors = tensors_of()
    tensors |= {DOWN: tensors[DOWN].T.contiguous(), "norm.weight": torch.full((D,), math.nan)}
    del tensors[FC]
    # which was a traceback: the number of a layer was looked for in it
    tensors["layers.norm.weight"] = torch.rand(D)
    lines, faults = check(capsys, save(tmp_path / "head", SPECFORGE, tensors), write_config())
    assert lines["wrong"] == [
        f'missing "{FC}"',
        'unexpected "layers.norm.weight"',
        f"the shape for {DOWN}: is (37, 24), transposed, must be (24, 37)",
        "norm.weight is NaN or infinite at 24 of 24 places",
    ]
    assert faults == 4


def test_another_target_and_other_layers(tmp_path, capsys, write_config):
    """Of another width, vocabulary and depth, all at once."""
    head = save(tmp_path / "head", SPECFORGE | {"eagle_config": {AUX: [3, 40, 50]}}, tensors_of())
    other = write_config(vocab_size=43, hidden_size=48, num_hidden_layers=12)
    lines, faults = check(capsys, head, other)
    assert faults == 3 and [fault.partition(";")[0] for fault in lines["wrong"]] == [
        "a head for another target: its hidden_size is 24, not 48",
        "a head for another target: its vocab_size is 41, not 43",
        "the head fuses hidden states (4, 41, 51)",
    ]


def test_mtp_layers_have_a_page(tmp_path, capsys):
    """Of a checkpoint's own; no EAGLE layout takes it."""
    folder = write_mtp_target(tmp_path / "target", "glm4_moe").folder
    lines, faults = check(capsys, "mtp,own=raw", folder)
    assert lines["wrong"] == ["nothing found"] and not faults
    assert lines["head"] == ["MTP of a checkpoint of type glm4_moe"]
    assert lines["reads"][0].endswith("after its final norm; then its own, before its final norm")
    with pytest.raises(SystemExit, match="which no EAGLE layout has a place for"):
        convert("--head", f"mtp:{folder}", "--output", tmp_path / "eagle")

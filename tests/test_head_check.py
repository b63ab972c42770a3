"""`convert_head.py --check HEAD TARGET`: the page of a sound head in several layouts, every fault
by its tensor, and weights that are as they were initialised. The target is a config.json and
nothing else."""

import json
import math
from pathlib import Path

import pytest
import torch
from head_files import SIZES, SPECFORGE, SPECULATORS3, D, R, V, renamed, save, vocabulary
from published_heads import AUX, FLAGS, MODELOPT, tensors_of, without
from safetensors.torch import load_file, save_file
from tiny_mtp import write_mtp_target
from training_runs import convert

from eagle_fsd.heads.initial_weights import spread
from eagle_fsd.heads.mtp_files import write_mtp
from eagle_fsd.models.load import load_head, load_target_config


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    config = SIZES | {"model_type": "llama", "num_hidden_layers": 32}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def worn(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As training leaves matrices: rows and columns of their own size."""
    generator = torch.Generator().manual_seed(7)

    def one(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim < 2:
            return tensor
        for axis, size in enumerate(tensor.shape):
            shape = [1, 1]
            shape[axis] = size
            tensor = tensor * torch.randn(shape, generator=generator).exp()
        return tensor

    return {key: one(tensor) for key, tensor in tensors.items()}


def change_tensors(folder: Path, edit) -> None:
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def page(capsys, head: Path | str, target: Path, *options) -> tuple[dict[str, list[str]], int]:
    """The lines by their label, and the status."""
    status = 0
    try:
        convert("--check", head, target, *options)
    except SystemExit as end:
        status = 1 if isinstance(end.code, str) else end.code
    lines: dict[str, list[str]] = {}
    text = capsys.readouterr().out
    assert text.count("\n") <= 24  # a screen
    for line in text.splitlines():
        lines.setdefault(line[:10].strip(), []).append(line[10:])
    return lines, status


SOUND = {
    "upstream": (
        SIZES | {"draft_vocab_size": R},
        tensors_of(),
        {
            "head": "EAGLE-3 in the layout upstream",
            "layers": "1 of 24 channels, inner size 37; 6 attention heads of 4, 2 for keys and",
            "positions": "base 10,000",
            "weights": "13 tensors, float32; the target's embedding besides",
            "drafts": f"{R} of {V} tokens (26.83%), by d2t from 1 to 40",
            "reads": "hidden states 2, 16, 29 of a target with 32 layers: config.json names none, "
            "and these are every publisher's default",
            "made for": "hidden size 24, 41 tokens",
        },
    ),
    "ModelOpt": (
        MODELOPT,
        without(tensors_of(), "t2d"),
        {
            "head": "in the layout specforge (SpecForge, ModelOpt",
            "reads": "hidden states 2, 16, 29 of a target with 32 layers: named in config.json,",
            "assumed": "fused layers [1, 15, 28]: counted by what leaves a layer, as SpecForge and",
            "made for": "more than 29 layers",
        },
    ),
    "speculators": (
        SPECULATORS3
        | FLAGS
        | {"norm_before_fc": True, "norm_output": True, AUX: [1, 15, 30]}
        | {"speculators_config": {"verifier": {"name_or_path": "some/model"}}},
        renamed(tensors_of(norm_before_fc=True), {"midlayer.": "layers.0."}),
        {
            "head": "in the layout speculators",
            "norms": "besides the usual ones before fc, before the next step",
            "assumed": "copied unconverted from SpecForge or ModelOpt they would mean [2, 16, 31]",
            "made for": "config.json names some/model",
        },
    ),
    "last state": (
        MODELOPT | {"draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": False}},
        tensors_of(fused=0, rows=0),
        {
            "weights": "the target's embedding and lm_head besides",
            "drafts": f"all {V} tokens",
            "reads": "the target's last hidden state, after its norm",
        },
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_head_is_described(tmp_path, capsys, target, name):
    values, tensors, told = SOUND[name]
    lines, status = page(capsys, save(tmp_path / "head", values, worn(tensors)), target)
    assert lines["wrong"] == ["nothing found"] and status == 0
    for label, text in told.items():
        assert text in lines[label][0], lines
    assert lines["fits"] == [f"{target} (llama, 32 layers of 24 channels, 41 tokens)"]


def spoilt(**changes) -> dict[str, torch.Tensor]:
    """Tensors of a sound head, some of them exchanged; None leaves one out."""
    tensors = worn(tensors_of()) | changes
    return {key: tensor for key, tensor in tensors.items() if tensor is not None}


FC, DOWN = "fc.weight", "midlayer.mlp.down_proj.weight"
DRAWN = torch.randn(D, 3 * D, generator=torch.Generator().manual_seed(3))
LESS = vocabulary()["t2d"].clone()
LESS[1] = False
WRONG = {
    "missing": (spoilt(**{FC: None}), [f'missing "{FC}"']),
    "extra": (spoilt(**{"fc.bias": torch.ones(D)}), ['unexpected "fc.bias"']),
    # which was a traceback: the number of a layer was looked for in it
    "extra of no layer": (
        spoilt(**{"layers.norm.weight": torch.rand(D)}),
        ['unexpected "layers.norm.weight"'],
    ),
    "transposed": (
        spoilt(**{DOWN: worn(tensors_of())[DOWN].T.contiguous()}),
        [f"the shape for {DOWN}: is (37, 24), transposed, must be (24, 37)"],
    ),
    "two of them": (
        spoilt(**{FC: None, "midlayer.self_attn.q_norm.weight": torch.rand(4)}),
        [f'missing "{FC}", "midlayer.self_attn.k_norm.weight"'],
    ),
    "not finite": (
        spoilt(**{"norm.weight": torch.full((D,), math.nan)}),
        ["norm.weight is NaN or infinite at 24 of 24 places"],
    ),
    "quantised": (spoilt(**{FC: DRAWN.char()}), [f"{FC} has dtype torch.int8"]),
    "normal draws": (spoilt(**{FC: DRAWN}), [f"{FC} cannot be told from its initialisation: sp"]),
    "uniform draws": (
        spoilt(**{FC: torch.rand(D, 3 * D, generator=torch.Generator().manual_seed(1)) - 0.5}),
        [f"{FC} cannot be told from its initialisation: spread of its rows z"],
    ),
    "zeros": (spoilt(**{FC: torch.zeros(D, 3 * D)}), [f"{FC} is 0 throughout"]),
    "a norm of zeros": (spoilt(**{"norm.weight": torch.zeros(D)}), ["norm.weight is 0 throughout"]),
    "t2d": (spoilt(t2d=LESS), ["t2d marks 10 tokens, and not those that d2t leads to"]),
    "d2t": (
        spoilt(d2t=vocabulary()["d2t"] + 1),
        ["d2t leads to 2..41, not to ascending tokens of 0..40"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_tensor_is_named(tmp_path, capsys, target, name):
    """And nothing else is said to be wrong."""
    tensors, told = WRONG[name]
    lines, status = page(capsys, save(tmp_path / "head", SPECFORGE, tensors), target)
    assert status == 1 and len(lines["wrong"]) == len(told)
    for text, found in zip(told, lines["wrong"], strict=True):
        assert found.startswith(text)


def test_a_head_that_was_never_trained_is_named_as_a_whole(tmp_path, capsys, target):
    """As speculators once saved them (its issue 1131): in one sentence."""
    lines, status = page(capsys, save(tmp_path / "head", SPECFORGE, tensors_of()), target)
    assert status == 1 and len(lines["wrong"]) == 1
    assert lines["wrong"][0].startswith("none of its 6 matrices can be told from its initialisat")


def test_another_target_and_other_layers(tmp_path, capsys, target):
    """Of another width, vocabulary and depth, all at once; and --feature_layers."""
    values = SPECFORGE | {"eagle_config": {AUX: [3, 40, 50]}}
    head = save(tmp_path / "head", values, worn(tensors_of()))
    other = tmp_path / "other"
    other.mkdir()
    changed = {"vocab_size": 43, "hidden_size": 48, "num_hidden_layers": 12}
    config = SIZES | changed | {"model_type": "llama"}
    (other / "config.json").write_text(json.dumps(config))
    lines, status = page(capsys, head, other)
    assert status == 1 and lines["fits"][0].startswith(f"not {other}")
    assert [fault.partition(";")[0] for fault in lines["wrong"]] == [
        "a head for another target: its hidden_size is 24, not 48",
        "a head for another target: its vocab_size is 41, not 43",
        "the head fuses hidden states (4, 41, 51)",
    ]
    assert "assumed that hidden states [4, 41, 51] are meant" in lines["assumed"][0]
    lines, status = page(capsys, head, target, "--feature_layers", "3, 20,30")
    assert status == 0 and "assumed" not in lines
    assert lines["reads"] == ["hidden states 3, 20, 30 of a target with 32 layers: as given"]


def test_small_and_odd_matrices_are_left_alone():
    """Nothing can be said of them."""
    assert spread(torch.randn(15, 99)) is None and spread(torch.randn(99)) is None
    assert spread(torch.full((20, 20), -2.0)) is None


@pytest.mark.parametrize("rows, columns", [(16, 16), (64, 512), (512, 64), (300, 4500)])
def test_draws_are_told_from_what_training_left(rows, columns):
    """Normal and uniform draws, in half precision too; and the same with rows of their own size, or
    with one direction added."""
    generator = torch.Generator().manual_seed(rows)
    for seed in range(3):
        normal = torch.randn(rows, columns, generator=generator.manual_seed(seed)) * 0.02
        uniform = (torch.rand(rows, columns, generator=generator) - 0.5) * 0.1
        for drawn in (normal, uniform, normal.bfloat16()):
            assert spread(drawn).drawn, spread(drawn)
        sized = normal * (1 + torch.randn(rows, 1, generator=generator))
        direction = torch.randn(rows, 1, generator=generator) @ torch.randn(
            1, columns, generator=generator
        )
        limit = math.sqrt(rows) + math.sqrt(columns)
        shifted = normal + direction * (0.06 * limit / math.sqrt(rows * columns))
        assert not spread(sized).drawn and not spread(shifted).drawn


def test_mtp_layers_have_a_page(tmp_path, capsys):
    """Of a checkpoint's own, by name and as a folder; random weights are named, experts are not
    judged, faults are as when it is loaded; no EAGLE layout takes it."""
    written = write_mtp_target(tmp_path / "target", "glm4_moe")
    folder, own = written.folder, written.keys
    change_tensors(folder, lambda tensors: tensors | worn({key: tensors[key] for key in own}))
    lines, status = page(capsys, "mtp,own=raw", folder)
    assert status == 0 and lines["wrong"] == ["nothing found"]
    assert lines["head"][0].startswith("mtp,own=raw: MTP of a checkpoint of type glm4_moe")
    assert "1 of 40 channels, run at every level" in lines["layers"][0]
    assert lines["weights"][0].endswith("float32; the target's embedding and lm_head besides")
    assert lines["experts"] == ["18 tensors, which are not judged"]
    assert lines["then"] == ["its own, before its final norm"]
    head = tmp_path / "head"
    head.mkdir()
    write_mtp(head, load_head("mtp", load_target_config(str(folder)), target=str(folder)))
    lines, status = page(capsys, head, folder)
    assert status == 0 and lines["then"] == ["its own, after its final norm"]
    with pytest.raises(SystemExit, match="which no EAGLE layout has a place for"):
        convert("--head", head, "--output", tmp_path / "eagle")
    key = "model.layers.3.eh_proj.weight"
    drawn = torch.randn(40, 80, generator=torch.Generator().manual_seed(1))
    change_tensors(folder, lambda tensors: tensors | {key: drawn})
    lines, status = page(capsys, "mtp", folder)
    assert status == 1 and lines["wrong"][0].startswith(f"{key} cannot be told from its init")
    change_tensors(folder, lambda tensors: {k: t for k, t in tensors.items() if k != key})
    with pytest.raises(SystemExit, match="holds no MTP layer"):
        convert("--check", "mtp", folder)

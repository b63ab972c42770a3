"""train/convert_head.py end to end on folders: another layout becomes ours, a head is confined to
the tokens that the assistant wrote most often, and --check's page, with every fault. The target of
a check is a config.json and nothing else."""

import json
import math
from pathlib import Path

import pytest
import torch
from commands import write_rows
from head_files import (
    AUX,
    MODELOPT,
    SIZES,
    SPECFORGE,
    SPECULATORS3,
    THREE,
    D,
    numbered,
    save,
    weights,
)
from safetensors.torch import load_file
from tiny import tiny_head
from tiny_folder import write_random_head, write_target
from training_runs import convert

from eagle_fsd.config import BadInput
from eagle_fsd.heads.files import read_head, write_head
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.models.load import load_head, load_target_config


def test_another_layout_becomes_ours(tmp_path, capsys):
    """Of speculators' head, pickled: every bit; the report says what was read and assumed."""
    tensors = weights(**THREE)
    save(tmp_path / "theirs", SPECULATORS3 | {AUX: [2, 16, 29]}, numbered(tensors), "bin")
    count = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    convert("--head", tmp_path / "theirs", "--output", tmp_path / "ours")
    said = capsys.readouterr().out
    assert "EAGLE-3 head; layout: speculators; fused layers [2, 16, 29]" in said
    assert f"{count:,} parameters" in said
    assert read_head(tmp_path / "ours")[0].config.feature_layers == (2, 16, 29)
    written = load_file(tmp_path / "ours" / "model.safetensors")
    # bug held down: only the user who wrote it could read it
    assert len({path.stat().st_mode for path in (tmp_path / "ours").iterdir()}) == 1
    assert all(torch.equal(written[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    ("engine", "changes", "told"),
    [
        ("llama.cpp", {"head_type": "eagle"}, "it is of EAGLE-1/2: train one with --head_type"),
        (
            "llama.cpp",
            {"num_hidden_layers": 2, "qk_norm": True},
            "of q and k; it has 2 layers, not one",
        ),
        ("vllm", {"qkv_bias": True}, "it has biases of q, k and v"),
    ],
)
def test_an_engine_that_cannot_run_a_head_is_named(tmp_path, engine, changes, told):
    head = write_random_head(tmp_path / "head", **{"head_type": "eagle3"} | changes)
    with pytest.raises(SystemExit, match=told):
        convert("--head", head, "--output", tmp_path / "out", "--to", engine)
    assert not (tmp_path / "out").exists()


# --- the draft vocabulary -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A target; heads for it, "few" and "eagle3" of 19 tokens, "eagle" and "whole" of all; two
    files of answers, where the assistant wrote 7 three times, 200 twice, 1, 9, 33 once; 5 is only
    in prompts."""
    folder = tmp_path_factory.mktemp("convert")
    write_target(folder / "target")
    write_random_head(folder / "eagle")
    kind = {"head_type": "eagle3", "feature_layers": (1, 2, 3)}
    write_random_head(folder / "whole", **kind)
    for name, changes in ("few", {}), ("eagle3", kind):
        head = tiny_head(hidden_size=32, vocab_size=258, seed=3, draft_vocab_size=19, **changes)
        head.set_draft_tokens(torch.arange(3, 60, 3))
        write_head(folder / name, head.bfloat16())
    rows = [
        {"input_ids": [5, 5, 5, 5, 7, 200, 7, 33], "loss_mask": [0] * 4 + [1] * 4},
        {"input_ids": [5, 5, 9, 7, 200, 1], "loss_mask": [0, 0, 1, 1, 1, 1]},
    ]
    for name, row in zip(("some", "more"), rows, strict=True):
        write_rows(folder / f"{name}.jsonl", row)
    return folder


@pytest.mark.parametrize(
    ("kind", "token_R", "rows", "told"),
    [
        # the most frequent
        ("eagle", [1, 7, 9, 200], [1, 7, 9, 200], ("4 of the 258 tokens", "87.50% of the 8", "0")),
        ("whole", [1, 7, 9, 200], [1, 7, 9, 200], ("4 of the 258 tokens", "87.50% of the 8", "0")),
        # it reads the target's lm_head: any token, whatever it drafted before
        ("few", [1, 7, 9, 200], [1, 7, 9, 200], ("4 of the 258 tokens", "87.50% of the 8", "0")),
        # of 3, 6, .. 57, for which it has rows: 9 and 33 were written, then the lowest
        ("eagle3", [3, 6, 9, 33], [0, 1, 2, 10], ("4 of the 19 tokens", "25.00% of the 8", "2")),
    ],
)
def test_a_draft_vocabulary(folder, tmp_path, capsys, kind, token_R, rows, told):
    """Of several files: ties go to the lower id, the rest is filled up from below, prompts do not
    count; weights as they were, of the lm_head these rows."""
    data, output = [folder / "some.jsonl", folder / "more.jsonl"], tmp_path / "out"
    paths = ("--head", folder / kind, "--output", output, "--data", *data)
    convert(*paths, "--draft_vocab", 4)
    said = capsys.readouterr().out
    assert f"draft vocabulary: {told[0]} that the head can draft, {told[1]}" in said
    assert f"{told[2]} of them do not occur" in said
    config = load_target_config(str(folder / "target"))
    full, cut = (load_head(path, config) for path in (folder / kind, output))
    assert cut.draft_token_R.tolist() == token_R
    for key, tensor in full.named_parameters():
        wanted = tensor[rows] if key == "lm_head.weight" else tensor
        assert torch.equal(cut.state_dict()[key], wanted), key


@pytest.mark.parametrize("kind", ["eagle", "few", "eagle3", "whole"])
@pytest.mark.parametrize("tokens", ["first", "all"])
def test_a_draft_vocabulary_of_the_first_or_of_all_tokens_is_read_again(
    folder, tmp_path, kind, tokens
):
    """Bugs held down: of EAGLE-1/2 what was written was refused as never filled in; of EAGLE-3
    all tokens ended in an AttributeError."""
    config = load_target_config(str(folder / "target"))
    full = load_head(folder / kind, config)
    every = full.draft_token_R.tolist() if kind == "eagle3" else [*range(258)]
    wanted = every if tokens == "all" else every[:4]
    row = {"input_ids": [5, *wanted], "loss_mask": [0] + [1] * len(wanted)}
    data = write_rows(tmp_path / "rows.jsonl", row)
    paths = ("--head", folder / kind, "--output", tmp_path / "out", "--data", data)
    convert(*paths, "--draft_vocab", len(wanted))
    cut = load_head(tmp_path / "out", config)
    if len(wanted) == 258:
        assert cut.draft_token_R is None
    else:
        assert cut.draft_token_R.tolist() == wanted

    convert("--check", tmp_path / "out", folder / "target")


def test_an_eagle3_head_of_another_width_without_fc_is_refused(tmp_path):
    """Bug held down: --check found nothing, and its first forward ended in a RuntimeError."""
    with pytest.raises(BadInput, match="hidden_size 24 .* target_hidden_size 32.*without fc"):
        HeadConfig(
            head_type="eagle3",
            hidden_size=24,
            target_hidden_size=32,
            use_aux_hidden_state=False,
        )


# --- --check --------------------------------------------------------------------------------------


def write_config(folder: Path, **changes) -> Path:
    """A target's config with these changes."""
    values = SIZES | {"model_type": "llama", "num_hidden_layers": 32} | changes
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def check(capsys, head: Path | str, target: Path) -> tuple[dict[str, list[str]], int]:
    """The lines by their label, and the number of faults that the command ends with."""
    faults = 0
    try:
        convert("--check", head, target)
    except SystemExit as end:
        faults = int(str(end).partition("for ")[2].partition(": ")[2].partition(",")[0])
    lines: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        lines.setdefault(line[:10].strip(), []).append(line[10:])
    return lines, faults


def test_a_sound_head_is_described(tmp_path, capsys):
    head, target = save(tmp_path / "head", MODELOPT, weights(**THREE)), tmp_path / "target"
    lines, faults = check(capsys, head, write_config(target))
    assert lines["wrong"] == ["nothing found"] and not faults
    assert lines["head"] == ["EAGLE-3 in the layout specforge"]
    assert lines["layers"] == ["1 of 24 channels"] and lines["drafts"] == ["11 of 41 tokens"]
    assert lines["reads"] == ["hidden states 2, 16, 29"]
    assert "fused layers [1, 15, 28]: counted by what leaves a layer" in lines["assumed"][0]
    named = MODELOPT | {"feature_layers": [3, 20, 30]}
    lines, faults = check(capsys, save(tmp_path / "named", named, weights(**THREE)), target)
    assert lines["reads"] == ["hidden states 3, 20, 30"] and not faults


def test_everything_that_is_wrong_is_named(tmp_path, capsys):
    """Of the tensors, and for a target of another width, vocabulary and depth."""
    down, tensors = "midlayer.mlp.down_proj.weight", weights(**THREE)
    tensors |= {down: tensors[down].T.contiguous(), "norm.weight": torch.full((D,), math.nan)}
    del tensors["fc.weight"]
    # which was a traceback: the number of a layer was looked for in it
    tensors["layers.norm.weight"] = torch.rand(D)
    head = save(tmp_path / "head", SPECFORGE | {"eagle_config": {AUX: [3, 40, 50]}}, tensors)
    other = {"vocab_size": 43, "hidden_size": 48, "num_hidden_layers": 12}
    lines, faults = check(capsys, head, write_config(tmp_path / "target", **other))
    wrong = [fault.removeprefix(f"{head / 'config.json'}: ") for fault in lines["wrong"]]
    assert faults == 7 and [fault.partition(";")[0] for fault in wrong] == [
        "a head for another target: its hidden_size is 24, not 48",
        "a head for another target: its vocab_size is 41, not 43",
        "the head fuses hidden states (4, 41, 51)",
        'unexpected "layers.norm.weight"',
        'missing "fc.weight"',
        f"the shape for {down}: is (37, 24), must be (24, 37)",
        "norm.weight is NaN or infinite",
    ]

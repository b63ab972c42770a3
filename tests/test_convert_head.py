"""The command that converts draft heads, end to end on folders; and the draft vocabulary: what the
assistant wrote most often, and a head confined to it."""

from pathlib import Path

import pytest
import torch
from commands import write_rows
from head_files import SPECULATORS3, eagle3_tensors, renamed, save
from safetensors.torch import load_file
from tiny import tiny_head, tiny_head3
from tiny_folder import write_random_head, write_target
from training_runs import convert

from eagle_fsd.heads.draft_vocabulary import cut_vocabulary
from eagle_fsd.heads.files import read_head, write_head
from eagle_fsd.models.load import load_head, load_target_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A target; heads of both kinds for it, "eagle" and "eagle3" (19 tokens); two files of answers,
    where the assistant wrote 7 three times, 200 twice, 1, 9, 33 once; 5 is only in prompts."""
    folder = tmp_path_factory.mktemp("convert")
    write_target(folder / "target")
    write_random_head(folder / "eagle")
    kind = {"head_type": "eagle3", "draft_vocab_size": 19, "feature_layers": (1, 2, 3)}
    head = tiny_head(hidden_size=32, vocab_size=258, seed=3, **kind)
    head.set_draft_tokens(torch.arange(3, 60, 3))
    write_head(folder / "eagle3", head.bfloat16())
    rows = [
        {"input_ids": [5, 5, 5, 5, 7, 200, 7, 33], "loss_mask": [0] * 4 + [1] * 4},
        {"input_ids": [5, 5, 9, 7, 200, 1], "loss_mask": [0, 0, 1, 1, 1, 1]},
    ]
    for name, row in zip(("some", "more"), rows, strict=True):
        write_rows(folder / f"{name}.jsonl", row)
    return folder


def test_another_layout_becomes_ours(tmp_path, capsys):
    """Of speculators' head, pickled: every bit; the report says what was read and assumed."""
    fused = {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}
    tensors = eagle3_tensors()
    theirs = renamed(tensors, {"midlayer.": "layers.0."})
    save(tmp_path / "theirs", SPECULATORS3 | fused, theirs, "bin")
    count = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    convert("--head", tmp_path / "theirs", "--output", tmp_path / "ours")
    said = capsys.readouterr().out
    assert "EAGLE-3 head; layout: speculators; fused layers [2, 16, 29]" in said
    assert f"{count:,} parameters" in said
    head, _ = read_head(tmp_path / "ours")
    assert head.config.feature_layers == (2, 16, 29)
    written = load_file(tmp_path / "ours" / "model.safetensors")
    # bug held down: only the user who wrote it could read it
    assert len({path.stat().st_mode for path in (tmp_path / "ours").iterdir()}) == 1
    assert written.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(written[key], tensor), key


@pytest.mark.parametrize(
    ("kind", "token_R", "rows", "told"),
    [
        # the most frequent
        ("eagle", [1, 7, 9, 200], [1, 7, 9, 200], ("4 of the 258 tokens", "87.50% of the 8", "0")),
        # of 3, 6, .. 57, for which it has rows: 9 and 33 were written, then the lowest
        ("eagle3", [3, 6, 9, 33], [0, 1, 2, 10], ("4 of the 19 tokens", "25.00% of the 8", "2")),
    ],
)
def test_a_draft_vocabulary(folder, tmp_path, capsys, kind, token_R, rows, told):
    """Of several files: ties go to the lower id, the rest is filled up from below, prompts do not
    count; weights as they were."""
    data, output = [folder / "some.jsonl", folder / "more.jsonl"], tmp_path / "out"
    paths = ("--head", folder / kind, "--output", output, "--data", *data)
    convert(*paths, "--draft_vocab", 4)
    said = capsys.readouterr().out
    assert f"draft vocabulary: {told[0]} that the head drafted, {told[1]}" in said
    assert f"{told[2]} of them do not occur" in said
    config = load_target_config(str(folder / "target"))
    full, cut = (load_head(path, config) for path in (folder / kind, output))
    assert cut.draft_token_R.tolist() == token_R
    for key, tensor in full.named_parameters():
        wanted = tensor[rows] if key == "lm_head.weight" else tensor
        assert torch.equal(cut.state_dict()[key], wanted), key


def test_cutting_a_head_over_all_tokens():
    """d2t appears, and EAGLE-3's lm_head shrinks."""
    head = tiny_head3()
    cut = cut_vocabulary(head, torch.tensor([0, 5, 12]))
    assert cut.d2t.tolist() == [0, 4, 10]
    assert torch.equal(cut.lm_head.weight, head.lm_head.weight[[0, 5, 12]])

"""train/train_head.py refuses what it cannot do: by name, in one line, before it trains."""

import pytest
from commands import write_rows
from tiny import FAMILIES
from training_runs import head_options as options
from training_runs import log_rows, refused, train

from eagle_fsd.heads.head_config import head_shape


def test_an_output_of_another_run(target, data, tmp_path):
    """A slip does not claim it, in --features neither: the corrected command was refused as a run
    with other options. The same tokens with another mask are another run, and states that are not
    rounded."""
    output = tmp_path / "run"
    refused(*options(target, data, output, steps=1, target_dtype="int8"))
    row = {"input_ids": [2, 3, 4, 5, 6, 7], "loss_mask": [0, 0, 1, 1, 1, 1]}
    data, chosen = tmp_path / "data.jsonl", {"steps": 1, "held_out": 1}
    write_rows(data, row, row)
    features = tmp_path / "file"
    features.write_text("mine")
    told = refused(*options(target, data, output, **chosen, features=features))
    assert f"--features in {features}" in told and features.read_text() == "mine"
    train(target, data, output, **chosen, features=tmp_path / "kept")
    assert "features" in refused(*options(target, data, output, **chosen, features="online"))
    write_rows(data, row, row | {"loss_mask": [0, 0, 0, 1, 1, 1]})
    assert "'dialogues'" in refused(*options(target, data, output, **chosen))


def test_answers_shorter_than_the_unrolling_do_no_harm(target, tmp_path):
    """A batch whose positions all lie before the last step's first root has nothing to learn."""
    row = {"input_ids": [2, 4, 5], "loss_mask": [0, 1, 1]}
    path = write_rows(tmp_path / "data.jsonl", *8 * [row])
    output = train(target, path, tmp_path / "head", held_out=1, tokens_per_batch=3, steps=3)
    rows = log_rows(output)
    assert all(row["loss"] == row["gradient_norm"] == 0 for row in rows)
    assert (output / "training.json").is_file()  # no answer is long enough for a tree


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_a_head_config(family, head_type):
    """Of the target's shape, with its rope base (Gemma 3 has one per kind of layer)."""
    config = FAMILIES[family]()
    head = head_shape(config, head_type=head_type)
    assert head.hidden_size == config.hidden_size and head.vocab_size == config.vocab_size
    assert head.rope_parameters["rope_theta"] >= 10_000 and head.head_type == head_type
    assert head.head_dim == (getattr(config, "head_dim", 10) if head_type == "eagle3" else 10)

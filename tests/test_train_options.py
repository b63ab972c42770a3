"""train/train_head.py refuses what it cannot do: by name, in one line, before it trains."""

import json

import pytest
from tiny import FAMILIES
from tiny_folder import write_random_head, write_target
from training_runs import head_options as options
from training_runs import refused, train, write_data

from eagle_fsd.heads.shape import head_shape


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "data.jsonl.gz")


BAD = {
    "no data": ({"data": "gone.jsonl"}, "gone.jsonl"),
    "held_out too large": ({"held_out": 40}, "40"),
    "no held_out": ({"held_out": 0}, "held_out"),
    "negative epochs": ({"epochs": -1}, "epochs"),
    "negative steps": ({"steps": -1}, "steps"),
    "negative minutes": ({"minutes": -1}, "minutes"),
    "negative rate": ({"learning_rate": -1}, "learning_rate"),
    "no unrolled step": ({"unroll_steps": 0}, "unroll_steps"),
    "step_decay": ({"step_decay": 1.5}, "step_decay"),
    "warmup": ({"warmup": 2}, "warmup"),
    "schedule": ({"schedule": "step"}, "step"),
    "recipe": ({"recipe": "eagle9"}, "eagle9"),
    "losses": ({"losses": "l2=1"}, "l2"),
    "nothing fits": ({"max_length": 2}, "2 tokens"),
    "negative max_length": ({"max_length": -3}, "max_length"),
    "negative loss_vocab": ({"loss_vocab": -1}, "loss_vocab"),
    "large loss_vocab": ({"loss_vocab": 259}, "259"),
    "large draft_vocab": ({"draft_vocab": 258}, "draft_vocab"),
    # top 8 of 7 tokens: a trained head was lost at its end
    "small draft_vocab": ({"draft_vocab": 7}, "draft_vocab"),
    "two vocabularies": ({"draft_vocab": 9, "loss_vocab": 9}, "loss_vocab"),
    "no validation": ({"validate_depth": 0}, "validate_depth"),
    "precision": ({"precision": "fp8"}, "fp8"),
    "head_type": ({"head_type": "medusa"}, "medusa"),
    "start": ({"start": "/nowhere/at-all"}, "/nowhere/at-all"),
    "unknown target": ({"target": "/nowhere/at-all"}, "/nowhere/at-all"),
    "output not writable": ({"output": "/proc/head"}, "/proc/head"),
    "data is a folder": ({"data": "/tmp"}, "no file at /tmp"),
    "endless epochs": ({"epochs": "inf"}, "epochs"),
    "negative seed": ({"seed": -1}, "--seed must be 0 to"),
    "never saved": ({"save_minutes": "nan"}, "--save_minutes"),
    "no batch": ({"batches_per_step": -1}, "--batches_per_step must not be negative, got -1"),
    "target_dtype": ({"target_dtype": "int8"}, "int8"),
    "target_device": ({"target_device": "abacus"}, "abacus"),
    "tracker": ({"track": "notebook"}, "notebook"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_clear_line(target, data, tmp_path, fault):
    """It names the option or its value; nothing is trained."""
    changes, told = BAD[fault]
    assert told in refused(*options(target, data, tmp_path / "head", **changes))
    assert not (tmp_path / "head" / "model.safetensors").exists()


def test_a_file_where_the_output_should_be(target, data, tmp_path):
    """It ended in a traceback; so did a damaged options file."""
    output = tmp_path / "head"
    output.write_text("mine")
    assert f"cannot write to --output {output}" in refused(*options(target, data, output))
    assert output.read_text() == "mine"
    run = train(target, data, tmp_path / "run", steps=1)
    (run / "options.json").write_text("{torn")
    assert "options.json is damaged" in refused(*options(target, data, run, steps=1))


@pytest.mark.parametrize(
    "changes",
    [{"target_dtype": "int8"}, {"target_device": "abacus"}, {"track": "notebook"}],
    ids=str,
)
def test_a_slip_does_not_claim_the_output(target, data, tmp_path, changes):
    """The corrected command runs: it was refused as a run with other options."""
    refused(*options(target, data, tmp_path / "head", steps=1, **changes))
    train(target, data, tmp_path / "head", steps=1)


def test_a_start_at_a_head_of_another_target_is_refused(target, data, tmp_path):
    """Both widths are named, before the target's weights load."""
    head = write_random_head(tmp_path / "wide", hidden_size=48)
    told = refused(*options(target, data, tmp_path / "head", start=head))
    assert "48" in told and "32" in told


def test_a_broken_line_is_told_by_its_number(target, tmp_path):
    """Before the target's weights load."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt_ids": [2, 3], "answer_ids": [4, 5, 6]}\n{"prompt_ids": [2,\n')
    assert "line 2" in refused(*options(target, path, tmp_path / "head", held_out=1))


@pytest.mark.parametrize("token", [258, -1])
def test_tokens_of_another_vocabulary_are_told(target, tmp_path, token):
    """Data of another target: told with the token, not an IndexError out of the embedding."""
    path = tmp_path / "data.jsonl"
    row = {"prompt_ids": [2, 3], "answer_ids": [4, token, 5]}
    path.write_text(2 * (json.dumps(row) + "\n"))
    assert str(token) in refused(*options(target, path, tmp_path / "head", held_out=1))


def test_answers_shorter_than_the_unrolling_do_no_harm(target, tmp_path):
    """A batch whose positions all lie before the last step's first root has nothing to learn."""
    path = tmp_path / "data.jsonl"
    path.write_text(8 * (json.dumps({"prompt_ids": [2], "answer_ids": [4, 5]}) + "\n"))
    changes = {"held_out": 1, "unroll_steps": 3, "tokens_per_batch": 3, "steps": 3}
    output = train(target, path, tmp_path / "head", **changes)
    rows = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert all(row["loss"] == row["gradient_norm"] == 0 for row in rows)


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gets_a_head_config(family, head_type):
    """Of the target's shape, with its rope base (Gemma 3 has one per kind of layer)."""
    config = FAMILIES[family]()
    head = head_shape(config, head_type=head_type)
    assert head.hidden_size == config.hidden_size and head.vocab_size == config.vocab_size
    assert head.rope_theta >= 10_000 and head.head_type == head_type
    if head_type == "eagle3":
        assert head.channels == getattr(config, "head_dim", None) or 10

"""train/train_head.py on tiny targets: heads that load, learn, decode, repeat; options refused."""

import json
from pathlib import Path

import pytest
import torch
from tiny import FAMILIES, random_model
from tiny_folder import write_target
from training_runs import head_options as options
from training_runs import log_rows, refused, same, train, weights, write_data

import eagle_fsd
from eagle_fsd.config import TreeConfig
from eagle_fsd.models.load import load_head, load_target_config

pytestmark = pytest.mark.processes  # whole commands


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "data.jsonl.gz")


def assert_near(a: list[dict], b: list[dict], *, rel: float) -> None:
    assert len(a) == len(b)
    for ours, theirs in zip(a, b, strict=True):
        assert ours == pytest.approx(theirs, rel=rel, abs=1e-6)


def assert_decodes_exactly(head: Path, target: Path) -> None:
    """Greedy with the exact rule, whatever the head, is the target's own answer."""
    models = [
        eagle_fsd.load(str(target), head=name, tree=TreeConfig(7, 3, 3), dtype="float32")
        for name in (str(head), None)
    ]
    for prompt in ("What is it?", "b"):
        ours, plain = (
            eagle_fsd.generate(model, prompt, arm="exact", max_new_tokens=40) for model in models
        )
        assert ours.tokens == plain.tokens and len(ours.tokens) > 3


@pytest.fixture(scope="module")
def unbroken(target, data, tmp_path_factory):
    """A finished run."""
    return train(target, data, tmp_path_factory.mktemp("run") / "head")


@pytest.fixture(scope="module")
def features(unbroken):
    """The target's states, computed once for all runs of EAGLE-1/2 heads."""
    return unbroken / "features"


def test_writes_a_head_that_loads_and_has_learnt(unbroken, target):
    """Loads against the target and decodes; both losses fall; the record says what was done."""
    head = load_head(unbroken, load_target_config(str(target)))
    assert all(torch.isfinite(p).all() for p in head.parameters())
    rows = log_rows(unbroken)
    assert [row["step"] for row in rows] == [1, 20, 40, 41]
    assert rows[-1]["feature"] < 0.9 * rows[0]["feature"] and rows[-1]["ce"] < 0.97 * rows[0]["ce"]
    assert all(row["loss"] == pytest.approx(row["feature"] + row["ce"]) for row in rows)
    record = json.loads((unbroken / "training.json").read_text())
    assert record["options"]["learning_rate"] == record["recipe"]["learning_rate"] == 1e-2
    assert record["answer_tokens_seen"] == rows[-1]["tokens"]
    held_out = record["held_out"]
    assert len(held_out["top1"]) == len(held_out["top8"]) == 2
    assert all(0 <= a <= b <= 1 for a, b in zip(held_out["top1"], held_out["top8"], strict=True))
    assert held_out["positions"][0] > held_out["positions"][1] > 0
    assert_decodes_exactly(unbroken, target)


def test_one_seed_gives_one_head(unbroken, features, target, data, tmp_path):
    """Bit for bit, with the features computed anew; another seed gives another."""
    again = train(target, data, tmp_path / "again")
    assert same(weights(again), weights(unbroken)) and log_rows(again) == log_rows(unbroken)
    other = train(target, data, tmp_path / "other", seed=1, features=features)
    assert not same(weights(other), weights(unbroken))


@pytest.mark.parametrize("kind", ["all", "part", "part, float32"])
def test_eagle3(target, data, tmp_path, kind):
    """The preset, three fused layers, own lm_head; cross-entropy falls, and it decodes."""
    changes = {"head_type": "eagle3", "recipe": "eagle3", "noise": None, "unroll_steps": 3}
    changes |= {"draft_vocab": 15} if "part" in kind else {}
    changes |= {"precision": "no"} if "float32" in kind else {}
    output = train(target, data, tmp_path / "head", **changes)
    rows = log_rows(output)
    assert rows[-1]["ce"] < 0.96 * rows[0]["ce"] and "feature" not in rows[0]
    head = load_head(output, load_target_config(str(target)))
    assert head.config.eagle3 and head.lm_head.weight.shape[0] == (15 if "part" in kind else 258)
    if "part" in kind:
        assert head.t2d.nonzero()[:, 0].equal(head.draft_token_R)
        assert head.draft_token_R.min() >= 2 and head.draft_token_R.max() < 20
    assert_decodes_exactly(output, target)


def test_a_part_of_the_vocabulary(features, target, data, tmp_path):
    """draft_vocab is in the head and confines what counts; loss_vocab leaves no trace in it."""
    drafts = train(target, data, tmp_path / "drafts", draft_vocab=15, features=features)
    losses = train(target, data, tmp_path / "losses", loss_vocab=15, features=features)
    heads = [load_head(path, load_target_config(str(target))) for path in (drafts, losses)]
    assert heads[0].draft_token_R.shape == (15,) and heads[1].draft_token_R is None
    assert log_rows(drafts)[0]["tokens"] < log_rows(losses)[0]["tokens"]
    for output in (drafts, losses):
        assert log_rows(output)[-1]["ce"] < 0.97 * log_rows(output)[0]["ce"]
        assert_decodes_exactly(output, target)


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
def test_a_half_precision_target_and_a_float32_head(target, data, tmp_path, head_type):
    """--precision no, bfloat16 target: no product of two dtypes, in training or validation."""
    changes = {"head_type": head_type, "precision": "no", "target_dtype": "bfloat16", "steps": 2}
    for name in ("cached", "online"):
        if name == "online":
            changes["features"] = "online"
        output = train(target, data, tmp_path / name, **changes)
        assert len(log_rows(output)) == 2


@pytest.mark.parametrize("recipe", ["eagle", "unrolled"])
@pytest.mark.parametrize("losses", ["", "tv", "js=2 feature=0.5"])
def test_recipes_and_mixes(features, target, data, tmp_path, recipe, losses):
    """Every loss is logged under its name; the record holds the recipe that was used."""
    changes = {"recipe": recipe, "losses": losses or None, "features": features, "steps": 3}
    output = train(target, data, tmp_path / "head", **changes)
    recipe = json.loads((output / "training.json").read_text())["recipe"]
    row = log_rows(output)[0]
    assert set(recipe["losses"]) <= set(row)
    total = sum(weight * row[name] for name, weight in recipe["losses"].items())
    assert row["loss"] == pytest.approx(total, rel=1e-5)


def test_checkpointing_changes_no_number(unbroken, features, target, data, tmp_path):
    """Less memory, same log, same weights."""
    changes = {"gradient_checkpointing": True, "features": features}
    output = train(target, data, tmp_path / "head", **changes)
    assert log_rows(output) == log_rows(unbroken) and same(weights(output), weights(unbroken))


def test_budgets_end_a_run(features, target, data, tmp_path):
    """By epochs (a part of one too), by steps, by the clock, at the first of them."""
    whole = train(target, data, tmp_path / "a", steps=None, epochs=1, features=features)
    per_epoch = log_rows(whole)[-1]["step"]
    assert 5 < per_epoch < 30
    half = train(target, data, tmp_path / "b", epochs=0.5, features=features)
    assert log_rows(half)[-1]["step"] == -(-per_epoch // 2)
    both = train(target, data, tmp_path / "c", steps=3, epochs=1, minutes=60, features=features)
    assert log_rows(both)[-1]["step"] == 3
    train(target, data, tmp_path / "d", steps=None, minutes=0.02, features=features)
    progress = json.loads((tmp_path / "d" / "state" / "progress.json").read_text())
    assert progress["step"] >= 1 and progress["seconds"] >= 0.02 * 60


def test_a_step_of_two_batches(unbroken, features, target, data, tmp_path):
    """Learns from both: as many positions as two steps of one, half the steps an epoch."""
    changes = {"features": features, "steps": None, "epochs": 1}
    one = train(target, data, tmp_path / "one", **changes)
    two = train(target, data, tmp_path / "two", batches_per_step=2, **changes)
    steps = [log_rows(output)[-1]["step"] for output in (one, two)]
    assert steps[1] == -(-steps[0] // 2)
    pair = train(target, data, tmp_path / "pair", steps=2, features=features)
    assert log_rows(two)[0]["tokens"] == log_rows(pair)[-1]["tokens"]


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
def test_states_online_are_the_cached(target, data, tmp_path, head_type):
    """The cache rounds to bfloat16, and nothing else differs; nothing is written."""
    changes = {"head_type": head_type, "target_dtype": "float32", "steps": 5}
    cached = train(target, data, tmp_path / "cached", **changes)
    online = train(target, data, tmp_path / "online", features="online", **changes)
    assert_near(log_rows(online), log_rows(cached), rel=0.03)
    assert not (online / "features").exists()


def test_starts(unbroken, features, target, data, tmp_path, capsys):
    """At the target's layer and at a head: other first losses than at random; said what was not."""
    changes = {"features": features, "steps": 1}
    layer = train(target, data, tmp_path / "layer", start="target", **changes)
    assert "at random: nothing" in capsys.readouterr().out
    head = train(target, data, tmp_path / "head", start=unbroken, **changes)
    first = [log_rows(output)[0]["loss"] for output in (unbroken, layer, head)]
    assert len(set(first)) == 3 and first[2] < 0.95 * first[0]


def test_tensorboard_gets_the_log(features, target, data, tmp_path):
    """--track tensorboard writes event files below the output."""
    output = train(target, data, tmp_path / "h", track="tensorboard", features=features, steps=2)
    assert list(output.rglob("events.out.tfevents.*"))


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_other_families_by_the_same_command(data, tmp_path, family, head_type):
    """A folder with a Qwen3 or Gemma 3 text model: trained, loaded, decoded exactly."""
    folder = write_target(tmp_path / "target")
    config = FAMILIES[family]()
    config.vocab_size = 258
    random_model(config, seed=0).save_pretrained(folder)
    changes = {"head_type": head_type, "start": "target", "steps": 21}
    output = train(folder, data, tmp_path / "head", **changes)
    rows = log_rows(output)
    assert rows[-1]["ce"] < rows[0]["ce"]
    assert_decodes_exactly(output, folder)


def test_a_training_that_diverges_writes_no_head(features, target, data, tmp_path):
    """A NaN head was written and reported as a success. The step and the remedy are named."""
    changes = {"learning_rate": 1000, "features": features}
    told = refused(*options(target, data, tmp_path / "head", **changes))
    assert "diverged at step" in told and "1000" in told and "--learning_rate" in told
    assert not (tmp_path / "head" / "model.safetensors").exists()


def test_a_held_out_dialogue_shorter_than_the_validation(target, tmp_path):
    """A depth of 7 levels over 4 tokens ended in a traceback, after the training."""
    path = tmp_path / "data.jsonl"
    path.write_text(8 * (json.dumps({"prompt_ids": [2], "answer_ids": [4, 5, 6]}) + "\n"))
    output = train(target, path, tmp_path / "head", held_out=1, validate_depth=7, steps=1)
    record = json.loads((output / "training.json").read_text())
    assert record["held_out"]["positions"] == [2, 1, 0, 0, 0, 0, 0]

"""train/train_head.py --start mtp: the layer of a tiny checkpoint goes on, and is written back.

Axes: B texts, T positions, D hidden size.
"""

import json
import shutil
from functools import cache

import pytest
import torch
from reference_unroll import assert_unrolled
from safetensors.torch import load_file, save_file
from tiny_mtp import write_mtp_target
from training_runs import head_options, log_rows, refused, train, weights

import eagle_fsd
from eagle_fsd.models.load import load_head, load_target_config

FAMILIES = ("deepseek_v3", "qwen3_5_text", "qwen2")
START = {"start": "mtp", "recipe": "mtp,learning_rate=3e-3,unroll_steps=3", "steps": 21}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return cache(lambda name: write_mtp_target(tmp_path_factory.mktemp(name), name))


@pytest.mark.parametrize("switch", ["mtp", "mtp,own=raw"])
@pytest.mark.parametrize("name", FAMILIES)
def test_unrolled_is_one_root_at_a_time(checkpoints, name, switch):
    """Every family's attention over the keys of all steps so far."""
    folder = str(checkpoints(name).folder)
    head = load_head(switch, load_target_config(folder), target=folder)
    generator = torch.Generator().manual_seed(0)
    feature_BTD, embedding_BTD = torch.randn(2, 2, 7, 40, generator=generator)
    assert_unrolled(head, feature_BTD, embedding_BTD, steps=3, tolerance=1e-4)


@pytest.mark.processes  # whole commands
@pytest.mark.parametrize("name", FAMILIES)
def test_goes_on_from_the_layer_and_writes_it_back(checkpoints, data, tmp_path, name):
    """The loss falls; keys and shapes are the checkpoint's; what is written loads, decodes, and is
    trained further."""
    written = checkpoints(name)
    first = train(written.folder, data, tmp_path / "head", **START)
    rows = log_rows(first)
    assert rows[-1]["ce"] < 0.97 * rows[0]["ce"] and "feature" not in rows[0]
    stored = weights(written.folder)
    assert weights(first).keys() == written.keys
    assert all(tensor.shape == stored[key].shape for key, tensor in weights(first).items())
    routers = [key for key in written.keys if key.endswith("e_score_correction_bias")]
    assert all(torch.equal(weights(first)[key], stored[key]) for key in routers)
    assert json.loads((first / "training.json").read_text())["recipe"]["unroll_steps"] == 3
    model = eagle_fsd.load(str(written.folder), head=str(first), dtype="float32", tree="7x3x3")
    arms = ("plain", "exact@mtp")
    said = [eagle_fsd.generate(model, "What is it?", arm=a, max_new_tokens=20) for a in arms]
    assert said[0].tokens == said[1].tokens
    back = shutil.copytree(written.folder, tmp_path / "back")  # the layer in its own checkpoint
    tensors = load_file(back / "model.safetensors") | weights(first)
    save_file(tensors, back / "model.safetensors", metadata={"format": "pt"})
    config = load_target_config(str(back))
    inside, beside = (load_head(k, config, target=str(back)).state_dict() for k in ("mtp", first))
    assert all(torch.equal(inside[key], beside[key]) for key in beside)
    further = train(written.folder, data, tmp_path / "more", **START | {"start": first, "steps": 1})
    assert log_rows(further)[0]["ce"] < 0.99 * rows[0]["ce"]


def test_what_cannot_be_trained_is_told(checkpoints, data, tmp_path):
    folder = checkpoints("qwen2").folder
    changes = START | {"start": "mtp,own=raw", "recipe": "mtp,feature=1"}
    told = refused(*head_options(folder, data, tmp_path / "a", **changes))
    assert "before its norm, is no feature of the target: give feature=0" in told

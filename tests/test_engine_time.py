"""Engine time with random weights: shapes, bytes, the fixed pattern, figures, the command."""

import json
import math
from pathlib import Path

import pytest
import torch
from test_commands import load_command
from tiny import FAMILIES, prompt_tokens, tiny_head, tiny_target
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

from eagle_fsd.config import AcceptConfig, BadInput, TreeConfig
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.head_config import HeadConfig
from eagle_fsd.heads.models import build_head
from eagle_fsd.heads.shape import head_shape
from eagle_fsd.models import random_weights
from eagle_fsd.models.shapes import SHAPES, load_shape
from eagle_fsd.speed import roofline
from eagle_fsd.speed.round_report import LABEL, figures, table
from eagle_fsd.speed.round_times import (
    PatternLoop,
    RoundTimes,
    pattern_path,
    time_rounds,
    tokens_needed,
)

pytestmark = pytest.mark.processes  # minutes together: not in the fast suite

COMMAND = load_command("evaluate/engine_time.py")
TREE = TreeConfig(11, 4, 3)
# V 101, D 40, M 53, 3 layers, 4 query and 2 key heads of 14 channels
LAYER = 2 * 40 * 4 * 14 + 2 * 40 * 2 * 14 + 3 * 40 * 53 + 2 * 40
TABLE = 101 * 40


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-3.1-8b", 8_030_261_248), ("qwen3-32b", 32_762_123_264)]
)
def test_built_in_shapes_have_the_published_number_of_parameters(name, parameters):
    model = random_weights.empty_model(load_shape(name), torch.bfloat16, "meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    rope = model.config.rope_parameters
    assert rope["rope_theta"] == SHAPES[name]["rope_theta"]
    assert rope["rope_type"] == ("llama3" if "llama" in name else "default")


def test_bytes_by_hand():
    """Every weight but the embedding table is read; a tied table is read as the lm_head."""
    config = FAMILIES["llama"]()
    weights = 3 * LAYER + 40 + TABLE  # layers, final norm, lm_head
    assert roofline.weight_bytes_read(config, torch.bfloat16) == 2 * weights
    model = random_weights.empty_model(config, torch.float32, "meta")
    rotary = 4 * 7 * len(list(model.buffers()))  # tables of 7 frequencies
    assert random_weights.module_bytes(model) == 4 * (weights + TABLE) + rotary
    row = 2 * 3 * 2 * 14
    assert random_weights.cache_row_bytes(config, torch.float32) == 4 * row
    read = roofline.forward_bytes(config, torch.bfloat16, context=10.5)
    assert read == 2 * (weights + 10.5 * row)
    config.tie_word_embeddings = True
    assert roofline.weight_bytes_read(config, torch.bfloat16) == 2 * weights


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
@pytest.mark.parametrize("draft_vocab", [0, 31])
def test_head_bytes_are_those_of_the_head(head_type, draft_vocab):
    config = load_config(num_hidden_layers=7)
    shape = head_shape(config, head_type=head_type, draft_vocab=draft_vocab)
    head = build_head(shape)
    expected = sum(t.nbytes for t in [*head.parameters(), *head.buffers()])
    if head_type == "eagle" and draft_vocab:
        expected += 31 * 40 * 4  # rows copied out of the target's lm_head
    assert random_weights.head_bytes(shape, torch.float32) == expected
    assert random_weights.cache_row_bytes(shape, torch.bfloat16) == 2 * 2 * 2 * shape.channels


def load_config(**changes) -> LlamaConfig:
    config = FAMILIES["llama"]()
    config.update(changes)
    return config


def test_what_cannot_fit_is_refused():
    device = torch.device("cpu")
    random_weights.check_memory({"target": 2**20}, device)
    with pytest.raises(BadInput, match=r"target 1.05e\+06, head 2\).* cpu has"):
        random_weights.check_memory({"target": 2**50, "head": 2**31}, device)


@pytest.mark.parametrize("tied", [False, True])
def test_random_target_is_the_stock_model_with_those_weights(tied):
    """Rotary tables and ties are made although initialisation is left out."""
    config = load_config(tie_word_embeddings=tied)
    target = random_weights.random_target(config, dtype=torch.float32, device="cpu", engine="stock")
    stock = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stock.load_state_dict(target.model.state_dict())
    prompt_L = torch.tensor(prompt_tokens(17))
    target.start(17)
    logits_V, _ = target.prefill(prompt_L)
    stock_V = stock(prompt_L[None]).logits[0, -1]
    assert torch.allclose(logits_V, stock_V, atol=1e-4, rtol=1e-4)
    assert len(target.lm_head.weight.unique(dim=0)) == target.vocab_size
    assert (target.embed_tokens.weight is target.lm_head.weight) == tied


def test_weights_are_steep_and_filled_beyond_one_block(monkeypatch):
    """A matrix longer than the block goes on with its start; norms are 1, biases 0."""
    monkeypatch.setattr(random_weights, "BLOCK", 7)
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3))
    random_weights.fill(module, seed=0, readout=module[0].weight)
    weight = module[0].weight.detach().flatten()
    assert torch.equal(weight[:7], weight[7:14]) and torch.equal(weight[0], weight[14])
    block = torch.randn(7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(weight[:7], block * random_weights.STEEPNESS / math.sqrt(5))
    assert (module[1].weight == 1).all() and (module[0].bias == 0).all()


def test_pattern_path_by_hand():
    """Node 5 is the first of the deepest; 2 - 3 - 5 leads there."""
    parents, depths = [0, 0, 0, 2, 2, 3, 4], [0, 1, 1, 2, 2, 3, 3]
    paths = [pattern_path(parents, depths, accepted) for accepted in range(5)]
    assert paths == [[0], [0, 2], [0, 2, 3], [0, 2, 3, 5], [0, 2, 3, 5]]
    assert pattern_path([0], [0], 3) == [0]


def pattern_loop(
    target: Target, drafter: Drafter, pattern: list[int], *, rounds: int
) -> PatternLoop:
    new_tokens = tokens_needed(pattern, rounds, tree_depth=4)
    config = DecodeConfig(AcceptConfig("fsd", threshold=1.0), stop=StopConfig(new_tokens))
    return PatternLoop(target, drafter, prompt_tokens(13), config, pattern)


@pytest.mark.parametrize("clocked", [False, True])
def test_rounds_obey_the_pattern(clocked):
    """Warm-up takes the pattern's first entries; what is committed is what was said."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target, scale=3.0), target, TREE)
    loop = pattern_loop(target, drafter, [2, 0, 1], rounds=7)
    times = time_rounds(loop, 7, warm_up=4, clocked=clocked)
    assert times.accepted == [0, 1, 2, 0, 1, 2, 0]
    assert times.tokens_per_round == 6 / 7 + 1
    assert times.width == 12
    assert target.cache_length == 13 + (2 + 0 + 1 + 2) + 4 + sum(times.accepted) + 7
    # rows at the start of each round: 22, then + 1 + 2 + 3 + 1 + 2 + 3
    assert times.context == (22 + 23 + 25 + 28 + 29 + 31 + 34) / 7
    assert set(times.phase_seconds) == (
        {"propose", "verify", "accept", "commit", "host"} if clocked else set()
    )


def test_pattern_is_clipped_to_the_tree():
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target), target, TreeConfig(2, 2, 1))
    loop = pattern_loop(target, drafter, [9], rounds=3)
    assert time_rounds(loop, 3, warm_up=2, clocked=False).accepted == [2, 2, 2]
    loop = pattern_loop(target, RootDrafter(), [0], rounds=3)
    assert time_rounds(loop, 3, warm_up=2, clocked=False).accepted == [0, 0, 0]


@pytest.mark.parametrize("head_type", ["eagle", "eagle3"])
def test_random_heads_grow_deep_trees(head_type):
    """Flat drafts would fill the first levels only, and no pattern could be obeyed."""
    config = load_config(num_hidden_layers=7, vocab_size=1009, hidden_size=64)
    shape = head_shape(config, head_type=head_type, draft_vocab=499)
    target = random_weights.random_target(
        config, dtype=torch.float32, device="cpu", feature_layers=shape.fused_layers(7)
    )
    drafter = random_weights.random_drafter(shape, target, TREE)
    token_R = drafter.draft_token_R
    assert token_R.shape == (499,) and (token_R.diff() > 0).all() and token_R[-1] < 1009
    loop = pattern_loop(target, drafter, [3], rounds=5)
    assert time_rounds(loop, 5, warm_up=2, clocked=False).accepted == [3] * 5


def test_figures_by_hand():
    """Medians over three repeats; 2 GB at 100 GB/s are 20 ms."""

    def times(width, accepted, seconds, verify=0.0):
        phases = dict.fromkeys(("propose", "accept", "commit", "host"), 0.02)
        phases = phases | {"verify": verify} if verify else {}
        return RoundTimes(len(accepted), width, accepted, 100.0, seconds, phases)

    plain = [
        (times(1, [0, 0], 0, v), times(1, [0, 0], s))
        for v, s in [(0.08, 0.1), (0.05, 0.9), (0.9, 0.08)]
    ]
    tree = [(times(8, [1, 2], 0, 0.16), times(8, [1, 2], 0.2))] * 3
    found = figures(
        {"plain": plain, "tree": tree}, bytes_read=lambda rows: 2e7 * rows, bandwidth=1e11
    )
    assert found["plain"]["ms"]["verify"] == pytest.approx(40)
    assert found["plain"]["round_ms"] == pytest.approx(50)
    assert found["plain"]["roofline_ms"] == pytest.approx(20)
    assert found["plain"]["roofline_share"] == pytest.approx(0.5)
    assert found["plain"]["roofline_share_of_round"] == pytest.approx(0.4)
    assert found["tree"]["clocked_round_ms"] == pytest.approx(120)
    assert found["tree"]["tokens_per_second"] == pytest.approx(25)
    assert found["both"] == pytest.approx(
        {
            "verify_vs_plain_step": 2.0,
            "draft_and_host_vs_verify": 0.5,
            "round_vs_plain_round": 2.0,
            "speed_vs_plain": 1.25,
        }
    )
    text = table(found, bandwidth=1e11)
    cells = "| tree | 8 | 10.000 | 80.000 | 10.000 | 20.000 |"
    assert LABEL in text and cells in " ".join(text.split())


def test_bandwidth_is_measured():
    rate = roofline.measure_bandwidth(torch.device("cpu"), sample_bytes=2**20)
    assert math.isfinite(rate) and rate > 0


def write_config(folder: Path, **changes) -> Path:
    config = load_config(**changes)
    config.save_pretrained(folder)
    return folder / "config.json"


def call(*options: object) -> None:
    COMMAND.main([str(option) for option in options])


@pytest.mark.parametrize(
    "options",
    [[], ["--head_type", "eagle3", "--draft_vocab", 53, "--rule", "exact", "--dtype", "float32"]],
)
def test_command_on_a_tiny_shape(tmp_path, capsys, options):
    shape = write_config(tmp_path, num_hidden_layers=6)
    small = ["--num_draft_tokens", 7, "--tree_depth", 3, "--branch_top_k", 3, "--device", "cpu"]
    small += ["--prompt_tokens", 19, "--rounds", 6, "--repeats", 1, "--accepted", 0, 1, 2]
    call("--random_weights", shape, *small, *options, "--output", tmp_path / "out")
    assert f"{LABEL}" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "engine_time.json").read_text())
    assert record["label"] == LABEL
    assert sorted(record["accepted_drafts"]) == [0, 0, 1, 1, 2, 2]
    assert record["plain"]["width"] == 1 and record["tree"]["width"] == 8
    assert record["tree"]["tokens_per_round"] == 2
    assert {"command", "commit", "versions", "device"} <= set(record)
    assert LABEL in (tmp_path / "out" / "engine_time.md").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--random_weights", "llama-9"], "unknown shape 'llama-9'.*llama-3.1-8b"),
        (["--accepted", -1], "--accepted"),
        (["--rounds", 0], "--rounds"),
        (["--prompt_tokens", 250], "251 positions"),
        (["--dtype", "int8"], "unknown --dtype"),
        (["--device", "auto"], "one device"),
        (["--head_type", "medusa"], "medusa"),
        (["--rule", "best"], "unknown rule"),
        (["--draft_vocab", 102], "draft_vocab_size 102"),
        (["--draft_vocab", -1], "--draft_vocab must be 0"),
        (["--head_type", "eagle3"], "fuses hidden states"),
    ],
)
def test_refused_before_weights_are_made(tmp_path, options, words):
    shape = write_config(tmp_path, num_hidden_layers=2)
    given = ["--random_weights", shape, "--device", "cpu", "--output", tmp_path / "out"]
    with pytest.raises(SystemExit, match=words):
        call(*given, *options)
    assert not (tmp_path / "out").exists()


def test_a_target_with_experts_is_refused(tmp_path):
    MixtralConfig(num_local_experts=4, num_hidden_layers=1).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="4 experts"):
        load_shape(str(tmp_path))


def test_head_shape_of_wide_attention():
    """Qwen3-32B: 64 heads of 128 on a hidden size of 5120; EAGLE-1/2 heads have no such width."""
    config = load_shape("qwen3-32b")
    eagle3 = head_shape(config, head_type="eagle3", draft_vocab=32000)
    assert isinstance(eagle3, HeadConfig) and eagle3.channels == 128
    assert head_shape(config, head_type="eagle", draft_vocab=0).channels == 80

"""Rounds by turns, exact peak memory, the memory bound, and the command."""

import json

import pytest
import torch
from test_commands import load_command
from tiny import prompt_tokens, tiny_head, tiny_target
from tiny_folder import write_random_head, write_target

from eagle_fsd.config import AcceptConfig, TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.random_weights import module_bytes
from eagle_fsd.speed.contexts import (
    AlternatingDrafter,
    bound_parts,
    loop_peak,
    memory_figures,
    time_pairs,
    tokens_needed,
)
from eagle_fsd.speed.device_memory import PeakAllocated

pytestmark = pytest.mark.processes  # minutes together: not in the fast suite

COMMAND = load_command("evaluate/long_context.py")
CPU = torch.device("cpu")
TREE = TreeConfig(11, 4, 3)


def test_peak_memory_by_hand():
    """Two blocks of 4000 bytes at a time, then 8000 more while one of them is gone."""
    before = torch.ones(1000)
    with PeakAllocated(CPU) as memory:
        first = before + 1
        second = first + 1
        del first
        third = torch.empty(2000)
        del second
    assert memory.peak_bytes == 4000 + 8000
    assert memory.held_bytes == 8000
    assert third.shape == (2000,)


def test_peak_memory_counts_what_operators_take_inside():
    """logsumexp returns one number and holds as many as it reads on the way."""
    values = torch.ones(1000)
    with PeakAllocated(CPU) as memory:
        torch.logsumexp(values, 0)
    assert 4000 <= memory.peak_bytes < 12100
    assert memory.held_bytes == 0


def test_alternating_drafters_take_turns_and_decode_plainly():
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target), target, TREE)
    config = DecodeConfig(AcceptConfig("exact"), stop=StopConfig(30))
    prompt = prompt_tokens(13)
    turns = AlternatingDrafter([RootDrafter(), drafter])
    found = decode(target, turns, prompt, config)
    assert found.tokens == decode(target, RootDrafter(), prompt, config).tokens
    assert turns.max_nodes == 12
    assert all(len(r.tokens) == 1 for r in found.rounds[::2])
    assert turns.propose().size == (1 if len(found.rounds) % 2 == 0 else 12)


def test_pairs_are_timed_apart():
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target), target, TREE)
    times = time_pairs(target, drafter, prompt_tokens(13), rounds=5)
    assert len(times.plain_ms) == len(times.exact_ms) == len(times.exact_tokens) == 5
    figures = times.figures()
    assert figures["round_ratio"] == figures["exact_round_ms"] / figures["plain_round_ms"]
    assert 1 <= figures["tokens_per_round"] <= 5


def test_bound_by_hand():
    """Head of two key heads of 10 channels, float32; 50 tokens, 12 nodes, 10 expanded ones."""
    target = tiny_target("llama")
    head = tiny_head(target)
    drafter = EagleDrafter(head, target, TREE)
    parts = bound_parts(drafter, weights=module_bytes(drafter.head), capacity=50)
    assert parts["head"] == 4 * sum(p.numel() for p in head.parameters())
    assert parts["cache"] == (50 + 12 + 10) * 2 * 2 * 10 * 4
    assert parts["logit_rows"] == 10 * 101 * 4


def test_bound_of_a_reduced_vocabulary():
    target = tiny_target("llama")
    head = tiny_head(target, draft_vocab_size=31)
    head.set_draft_tokens(torch.arange(31) * 3)
    parts = bound_parts(EagleDrafter(head, target, TREE), weights=module_bytes(head), capacity=50)
    weights = 4 * sum(p.numel() for p in head.parameters())
    assert parts["head"] == weights + 31 * 8 + 31 * 40 * 4  # d2t, rows of the lm_head
    assert parts["logit_rows"] == 10 * 31 * 4


def test_memory_figures_by_hand():
    parts = {"head": 100, "cache": 60, "logit_rows": 40}
    kept = memory_figures(1000, 1110, 110, parts)
    assert kept["above_plain_bytes"] == 220 and kept["bound_bytes"] == 220
    assert kept["within_bound"]
    assert not memory_figures(1000, 1111, 110, parts)["within_bound"]


def test_loop_peak_holds_the_targets_cache():
    """3 layers, 2 key heads of 14 channels, float32; twice the budget adds that many rows."""
    target = tiny_target("llama")
    prompt = prompt_tokens(23)
    small = loop_peak(target, RootDrafter(), prompt, new_tokens=40, level=0)
    large = loop_peak(target, RootDrafter(), prompt, new_tokens=80, level=0)
    row = 3 * 2 * 2 * 14 * 4
    assert small > (23 + 40 + 1) * row
    assert large - small == 40 * row


def test_tokens_needed_covers_every_pair():
    """(3 + 2 of warm-up) pairs of 1 and 4 + 1 tokens, and the one after the prompt."""
    assert tokens_needed(3, tree_depth=4) == 1 + 5 * 6


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    target = write_target(folder / "target", max_positions=256)
    questions = folder / "question.jsonl"
    rows = [{"question_id": i, "turns": [f"Say {i}.", "And again?"]} for i in range(3)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--target", target, "--head", write_random_head(folder / "head")]
    given += ["--question_file", questions, "--dtype", "float32", "--device", "cpu"]
    given += ["--num_draft_tokens", 7, "--tree_depth", 3, "--branch_top_k", 3]
    return [str(option) for option in given]


def test_command(options, tmp_path, capsys):
    given = [*options, "--contexts", "30", "150", "--rounds", "4", "--output", str(tmp_path)]
    COMMAND.main(given)
    out = capsys.readouterr().out
    assert "exact / plain" in out and "above plain" in out
    record = json.loads((tmp_path / "long_context.json").read_text())
    assert [row["context"] for row in record["rows"]] == [30, 150]
    for row in record["rows"]:
        assert len(row["rounds"]["exact_ms"]) == 4
        assert row["exact_peak_bytes"] > 0
        parts = row["bound_parts_bytes"]
        assert row["bound_bytes"] == int(1.1 * sum(parts.values()))
        # 2 key heads of 8 channels; budget 1 + 6 pairs of 5 tokens, 8 nodes, 7 expanded
        assert parts["cache"] == (row["context"] + 31 + 8 + 7) * 2 * 2 * 8 * 4
    assert {"command", "commit", "versions", "device"} <= set(record)
    words = (tmp_path / "long_context.md").read_text().split()
    assert " ".join(words).count("| 150 |") == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        # 256 positions - (1 + 14 pairs of 5 tokens) - 8 nodes
        (["--contexts", "178"], "--contexts 178 is too long.*leaves 177"),
        (["--contexts", "1"], "2 or above"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_refused_options(options, tmp_path, given, words):
    with pytest.raises(SystemExit, match=words):
        COMMAND.main([*options, "--output", str(tmp_path / "out"), *given])
    assert not (tmp_path / "out").exists()

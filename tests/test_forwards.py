"""What a speed run is made of: peak memory, the fixed pattern, single forwards, rotation."""

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.rules.price import PathRule
from eagle_fsd.speed.forwards import forward_rows, in_turn, rotated, rows_needed, time_forwards
from eagle_fsd.speed.pattern import Pattern, pattern_path
from eagle_fsd.speed.peak_memory import PeakAllocated

CPU = torch.device("cpu")


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
    assert third.shape == (2000,)


def test_peak_memory_counts_what_operators_take_inside():
    """logsumexp returns one number and holds as many as it reads on the way."""
    values = torch.ones(1000)
    with PeakAllocated(CPU) as memory:
        torch.logsumexp(values, 0)
    assert 4000 <= memory.peak_bytes < 12100


def test_pattern_path_by_hand():
    """Node 5 is the first of the deepest; 2 - 3 - 5 leads there."""
    parents, depths = [0, 0, 0, 2, 2, 3, 4], [0, 1, 1, 2, 2, 3, 3]
    paths = [pattern_path(parents, depths, accepted) for accepted in range(5)]
    assert paths == [[0], [0, 2], [0, 2, 3], [0, 2, 3, 5], [0, 2, 3, 5]]
    assert pattern_path([0], [0], 3) == [0]


@pytest.mark.parametrize("rule", [Exact(), Fsd(1.0), PathRule(0.5)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rounds_obey_the_pattern(rule, temperature):
    """Whatever the rule says, and again from its start in the next answer."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target, scale=3.0), target, TreeConfig(11, 4, 3))
    policy = Policy(Pattern(rule, (2, 0, 9)), SamplingConfig(temperature))
    config = DecodeConfig(policy, StopConfig(30))
    for _ in range(2):
        rounds = decode(target, drafter, prompt_tokens(13), config).rounds
        wanted = [3, 1, 5] * 4  # 9 is clipped to the tree's 4 levels
        assert [len(r.tokens) for r in rounds] == wanted[: len(rounds)] and len(rounds) > 8
    rounds = decode(target, RootDrafter(), prompt_tokens(13), config).rounds
    assert all(len(r.tokens) == 1 for r in rounds)


def test_nobody_always_follows_the_same():
    assert rotated("abc", 4) == ["b", "c", "a"]
    called = []
    probes = {name: lambda name=name: called.append(name) or float(ord(name)) for name in "ab"}
    seconds = in_turn(probes, 2, label="")
    assert seconds == {"a": [97.0, 97.0], "b": [98.0, 98.0]}
    assert "".join(called) == "abbaabbaab"


@pytest.mark.parametrize("drafts", [False, True])
def test_forwards_are_timed(drafts):
    """All kinds, as often as asked, within the positions that are announced."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target), target, TreeConfig(7, 3, 4))
    drafter = drafter if drafts else RootDrafter()
    context = prompt_tokens(target.max_positions - rows_needed(2))
    seconds = time_forwards(Model(target, None, drafter), context, 2)
    names = ["stock", *(f"verify {width}" for width in (1, 8, 16, 24, 32, 60))]
    names += ["draft 2", "draft 6", "settle"] if drafts else []
    assert list(seconds) == names
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())


def test_forward_rows_by_hand():
    """A draft level is (6 levels - 2 levels) / 4 of the same turn."""
    seconds = {"stock": [2.0, 4.0], "draft 2": [1.0, 2.0], "draft 6": [3.0, 8.0]}
    rows = {row["forward"]: row for row in forward_rows(seconds)}
    assert rows["stock"]["median_ms"] == 3000 and rows["stock"]["median_vs_first"] == 1
    assert rows["draft level"]["median_ms"] == 1000 and rows["draft level"]["min_ms"] == 500
    assert rows["draft 6"]["min_vs_first"] == 1.5

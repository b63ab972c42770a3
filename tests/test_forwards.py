"""What a speed run is made of: peak memory, the fixed pattern, single forwards, rotation."""

from functools import partial

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import SamplingConfig, TreeConfig
from eagle_fsd.decoding.acceptance import Policy
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.evaluation.bench import rotated
from eagle_fsd.models.loaded import Model
from eagle_fsd.rules.fsd import Exact, Fsd
from eagle_fsd.rules.price import PathRule
from eagle_fsd.speed.forwards import forward_rows, in_turn, rows_needed, time_forwards
from eagle_fsd.speed.profiled import peak_bytes
from eagle_fsd.speed.speed_run import Pattern, pattern_path

CPU = torch.device("cpu")


def test_peak_memory_by_hand():
    """Two blocks of 4000 bytes at a time, then 8000 more while one of them is gone; and what an
    operator takes inside: logsumexp returns one number and holds as many as it reads."""
    before = torch.ones(1000)

    def work() -> None:
        first = before + 1
        second = first + 1
        del first
        third = torch.empty(2000)
        del second, third

    assert peak_bytes(CPU, work) == 4000 + 8000
    assert 4000 <= peak_bytes(CPU, lambda: torch.logsumexp(before, 0)) < 12100


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


def test_forwards_in_turn_and_their_rows_by_hand():
    """Nobody always follows the same. A draft level is (6 levels - 2 levels) / 4 of one turn."""
    assert rotated("abc", 4) == ["b", "c", "a"]
    called = []
    probes = {n: (partial(called.append, n), partial(called.append, ".")) for n in "ab"}
    seconds = in_turn(CPU, probes, 2, label="")
    assert [len(taken) for taken in seconds.values()] == [2, 2]
    assert "".join(called) == "a.b.b.a.a.b.b.a.a.b."
    seconds = {"stock": [2.0, 4.0], "draft 2x3": [1.0, 2.0], "draft 6x3": [3.0, 8.0]}
    rows = {row["forward"]: row for row in forward_rows(seconds)}
    assert rows["stock"]["median_ms"] == 3000 and rows["stock"]["median_vs_first"] == 1
    level = rows["draft level x3"]
    assert (level["median_ms"], level["min_ms"]) == (1000, 500)


@pytest.mark.parametrize(("branches", "drafts"), [(None, ()), ((), (3,)), ((1, 4), (1, 4))])
def test_forwards_are_timed(branches, drafts):
    """All kinds, as often as asked, within the positions that are announced; by default the drafts
    are as wide as the model's own."""
    target = tiny_target("llama")
    drafter = EagleDrafter(tiny_head(target), target, TreeConfig(7, 3, 3))
    model = Model(target, None, RootDrafter() if branches is None else drafter)
    context = prompt_tokens(target.max_positions - rows_needed(2))
    seconds = time_forwards(model, context, 2, branches or ())
    names = ["stock", *(f"verify {width}" for width in (1, 8, 16, 24, 32, 60))]
    assert list(seconds) == names + [f"draft {depth}x{k}" for k in drafts for depth in (2, 6)]
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())

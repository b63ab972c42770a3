"""evaluate/speed.py on a tiny target: rounds by context, resuming; peak memory, single forwards and
prices by hand."""

import json
from functools import partial

import pytest
import torch
from commands import model_options, run_main

from eagle_fsd import timing
from eagle_fsd.speed import forwards, rounds

ARMS = ["plain", "exact", "fsd:0.3@eagle:5x2x3", "exact@ngram:10"]
CPU = torch.device("cpu")


def call(models, folder, *extra) -> dict:
    """Run the command into folder/run; what it writes for programs."""
    options = [*model_options(models), "--output", folder / "run", "--context", 40, *extra]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "NEW_TOKENS", 20)
        patch.setattr(rounds, "MEMORY_ROUNDS", 1)
        patch.setattr(forwards, "REPEATS", 2)
        run_main("evaluate/speed.py", *options)
    return json.loads((folder / "run" / "speed.json").read_text())


def files(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.jsonl")}


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, call(models, folder, "--arms", *ARMS)


@pytest.mark.processes
def test_every_arm_is_in_every_part(finished):
    """Phases of all arms, and all single forwards."""
    folder, found = finished
    assert [row["arm"] for row in found["rounds"]] == ARMS
    for row in found["rounds"]:
        assert row["context"] == 40 and row["peak_mebibytes"] > 0 and row["start"] > 0
        assert all(row[phase] > 0 for phase in ("propose", "verify", "accept", "commit", "host"))
    plain = found["rounds"][0]
    # of 20 tokens prefill's and the first round's are none of the others
    assert plain["round_vs_plain"] == 1 and plain["rounds"] == plain["round_tokens"] == 18
    names = ["stock", *(f"verify {width}" for width in (1, 4, 6, 8, 12, 16, 24, 60))]
    names += ["draft 2x3", "draft 6x3", "text", "draft level x3"]
    assert [row["forward"] for row in found["forwards"]] == names
    assert "break-even" in (folder / "run" / "speed.md").read_text()


@pytest.mark.processes
def test_only_what_is_missing_is_made(models, finished, capsys, monkeypatch):
    """A finished run is reported again without loading the model. Bug held down: it was refused or
    warned of for others at work on the machine. A killed one goes on: with profiles missing and one
    torn, only those are made; a further context adds to them."""
    monkeypatch.setattr(timing, "BUSY", -1)
    folder, found = finished
    before = files(folder)
    again = call(models, folder, "--arms", *ARMS)
    assert files(folder) == before and again["rounds"] == found["rounds"]
    said = capsys.readouterr().err.lower()
    assert "loading" not in said and "busy" not in said
    name = "run/records/profiles.jsonl"
    lines = (folder / name).read_text().splitlines(keepends=True)
    (folder / name).write_text(lines[0] + lines[1][:30])
    before = files(folder)
    found = call(models, folder, "--arms", *ARMS, "--context", 40, 50)
    after = files(folder)
    assert [file for file in after if after[file] != before[file]] == [name]
    rows = [json.loads(line) for line in after[name].splitlines()]
    keys = [(row["arm"], row["context"]) for row in rows]
    assert len(keys) == len(set(keys)) == 2 * (len(ARMS) + 1) and after[name].startswith(lines[0])
    assert [row["context"] for row in found["rounds"]] == [40] * 4 + [50] * 4


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

    assert rounds.peak_bytes(CPU, work) == 4000 + 8000
    assert 4000 <= rounds.peak_bytes(CPU, lambda: torch.logsumexp(before, 0)) < 12100


def test_forwards_in_turn_and_their_rows_by_hand(monkeypatch):
    """Nobody always follows the same. A draft level is (6 levels - 2 levels) / 4 of one turn."""
    monkeypatch.setattr(forwards, "REPEATS", 2)
    called = []
    probes = {n: (partial(called.append, n), partial(called.append, ".")) for n in "ab"}
    seconds = forwards.in_turn(CPU, probes, "")
    assert [len(taken) for taken in seconds.values()] == [2, 2]
    assert "".join(called) == "a.b.b.a.a.b.b.a.a.b."
    seconds = {"stock": [2.0, 4.0], "draft 2x3": [1.0, 2.0], "draft 6x3": [3.0, 8.0]}
    rows = {row["forward"]: row for row in forwards.forward_rows(seconds)}
    assert rows["stock"]["median_ms"] == 3000 and rows["stock"]["median_vs_first"] == 1
    level = rows["draft level x3"]
    assert (level["median_ms"], level["min_ms"]) == (1000, 500)


def test_prices_by_hand():
    """A node of .7 ms and a level of .5 where a token takes 10: keep .07, deepen 1.2 / 10 / .6."""
    single = [
        {"context": 40, "forward": name, "median_ms": ms}
        for name, ms in [("verify 1", 10.0), ("verify 8", 14.9), ("draft level x4", 0.5)]
    ]
    rows = [("plain", 9, 12.0, 9), ("exact", 5, 20.0, 10), ("exact@hybrid", 5, 20.0, 99)]
    rows += [("exact@eagle:7x3x4", 0, None, 0)]
    given = [
        {"context": 40, "arm": arm, "rounds": n, "ms_per_round": ms, "round_tokens": tokens}
        for arm, n, ms, tokens in rows
    ]
    (line,) = rounds.price_lines(given, single)
    assert "a node takes 0.70 ms, a level 0.50, a token 10.00" in line
    assert line.endswith("exact@eagle:12x6x4,keep=0.07,deepen=0.2")
    assert not rounds.price_lines(given, single[:2])
    assert not rounds.price_lines(given[:1], single)

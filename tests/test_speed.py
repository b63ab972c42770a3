"""evaluate/speed.py on a tiny target: a bench, rounds by context, resuming, and what it refuses."""

import json

import pytest
from commands import QUESTIONS, bench_options, change, load_command
from transformers import LlamaConfig

from eagle_fsd import timing
from eagle_fsd.speed import profiled

pytestmark = pytest.mark.processes  # whole commands
MAIN = load_command("evaluate/speed.py").main
ARMS = ["generate", "plain", "exact", "fsd:0.3@eagle:5x2x3", "exact@ngram:10"]


def call(models, folder, *extra) -> dict:
    """Run the command into folder/run; the summary."""
    options = [*bench_options(models, folder, QUESTIONS[:2]), "--device", "cpu"]
    options += ["--num_choices", 2, "--context", 40, "--step_repeats", 2, *extra]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiled, "NEW_TOKENS", 20)
        patch.setattr(profiled, "MEMORY_ROUNDS", 1)
        MAIN(list(map(str, options)))
    return json.loads((folder / "run" / "summary.json").read_text())


def files(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.jsonl")}


@pytest.fixture(scope="module")
def finished(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return folder, call(models, folder, "--arms", *ARMS)


def test_every_arm_is_in_every_part(finished):
    """Answers of the first turns, as many times as asked; phases of all arms with rounds."""
    folder, found = finished
    assert [(row["arm"], row["answers"]) for row in found["rows"]] == [(arm, 4) for arm in ARMS]
    assert [row["arm"] for row in found["rounds"]] == ARMS[1:]
    for row in found["rounds"]:
        assert row["context"] == 40 and row["peak_mebibytes"] > 0 and row["start"] > 0
        assert all(row[phase] > 0 for phase in ("propose", "verify", "accept", "commit", "host"))
    plain = found["rounds"][0]
    # of 20 tokens prefill's and the first round's are none of the others
    assert plain["round_vs_plain"] == 1 and plain["rounds"] == plain["round_tokens"] == 18
    forwards = [row["forward"] for row in found["forwards"]]
    assert forwards[0] == "stock" and forwards[-3:] == ["draft 2x3", "draft 6x3", "draft level x3"]
    assert "break-even" in (folder / "run" / "summary.md").read_text()


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
    name = "run/rounds/records/profiles.jsonl"
    lines = (folder / name).read_text().splitlines(keepends=True)
    (folder / name).write_text(lines[0] + lines[1][:30])
    before = files(folder)
    found = call(models, folder, "--arms", *ARMS, "--context", 40, 50)
    after = files(folder)
    assert [file for file in after if after[file] != before[file]] == [name]
    rows = [json.loads(line) for line in after[name].splitlines()]
    keys = [(row["arm"], row["context"]) for row in rows]
    assert len(keys) == len(set(keys)) == 2 * len(ARMS) and after[name].startswith(lines[0])
    assert [row["context"] for row in found["rounds"]] == [40] * 4 + [50] * 4


def test_a_head_that_changed_under_its_path_is_refused(models, finished):
    """Bug held down: answers and profiles of the old one were reported."""
    held = change(models[1] / "model.safetensors")
    with pytest.raises(SystemExit, match="other settings .*'head/model.safetensors'"):
        call(models, finished[0], "--arms", *ARMS)
    (models[1] / "model.safetensors").write_bytes(held)


def test_random_weights_by_shape_are_timed(tmp_path):
    """A config alone is enough, with a head that reads three layers of the target."""
    LlamaConfig(
        vocab_size=307, hidden_size=32, intermediate_size=44, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2,
    ).save_pretrained(tmp_path)  # fmt: skip
    models = f"random:{tmp_path / 'config.json'}", "random:eagle3:149"
    found = call(models, tmp_path, "--arms", "plain", "exact")
    assert [row["arm"] for row in found["rounds"]] == ["plain", "exact"]
    forwards = [row["forward"] for row in found["forwards"]]
    assert "verify 60" in forwards and "draft level x3" in forwards

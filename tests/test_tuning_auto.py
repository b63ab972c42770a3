"""`auto` end to end with a tiny model: measuring, keeping, broken files, the command."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_commands import load_command
from tiny_folder import write_random_head, write_target

from eagle_fsd.api import Model, load
from eagle_fsd.config import AcceptConfig, BadInput, SamplingConfig, TreeConfig
from eagle_fsd.decoding.loop import DecodeConfig, decode
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.models.load import load_head
from eagle_fsd.speed.tree_choice.auto import choose_tree
from eagle_fsd.speed.tree_choice.calibration import TuningConfig
from eagle_fsd.speed.tree_choice.keys import survey_key
from eagle_fsd.speed.tree_choice.store import kept

pytestmark = pytest.mark.processes  # minutes together: not in the fast suite

COMMAND = load_command("evaluate/choose_tree.py")
TREES = (TreeConfig(1, 1, 1), TreeConfig(7, 3, 3), TreeConfig(15, 4, 6))
TUNING = TuningConfig(prompts=("Say one.", "And two?"), max_new_tokens=9, repeats=1, context=30)
KINDS = ["accept", "acceptance", "costs"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target", layers=2), write_random_head(folder / "head")


@pytest.fixture(scope="module")
def model(folders) -> Model:
    target, head = map(str, folders)
    return load(target, head=head, dtype="float32")


def chosen(model: Model, folder: Path | None, accept: AcceptConfig | None = None, **changes):
    settings = {"tuning": TUNING, "trees": TREES} | changes
    accept = accept or AcceptConfig()
    return choose_tree(model, accept, SamplingConfig(), cache_dir=folder, **settings)


def stored(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_measures_once(model, tmp_path, capsys):
    """Kept under readable keys; the second call reads them, --retune writes them anew."""
    first = chosen(model, tmp_path / "new" / "tuning")
    files = stored(tmp_path / "new" / "tuning")
    assert sorted(name.split("-")[0] for name in files) == KINDS
    for text in files.values():
        key = json.loads(text)["key"]
        assert key["dtype"] == "torch.float32" and key["target"]["vocab_size"] == 258
        assert "tmp" not in json.dumps(key)  # no place of this machine
    assert chosen(model, tmp_path / "new" / "tuning") == first
    assert stored(tmp_path / "new" / "tuning") == files
    chosen(model, tmp_path / "new" / "tuning", retune=True)
    again = stored(tmp_path / "new" / "tuning")
    assert set(again) == set(files)
    cost = next(name for name in files if name.startswith("costs-"))
    assert again[cost] != files[cost]
    assert "warning" not in capsys.readouterr().err


def test_what_depends_on_the_rule_is_kept_by_rule(model, tmp_path):
    """Costs are shared; statistics are of a run with this T; exact ignores T."""
    chosen(model, tmp_path, AcceptConfig(threshold=0.2))
    everything = chosen(model, tmp_path, AcceptConfig(threshold=float("inf")))
    chosen(model, tmp_path, AcceptConfig("exact", threshold=0.1))
    exact = chosen(model, tmp_path, AcceptConfig("exact", threshold=0.3))
    kinds = sorted(name.split("-")[0] for name in stored(tmp_path))
    assert kinds == ["accept"] * 3 + ["acceptance"] * 3 + ["costs"]
    chain = {row.tree: row.tokens_per_round for row in everything.table}
    assert chain[TREES[0]] == 2  # a chain of one draft is always accepted
    assert {row.tree: row.tokens_per_round for row in exact.table}[TREES[0]] < 2


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"key": 1}', "cut"])
def test_a_broken_file_is_measured_again(model, tmp_path, capsys, broken):
    first = chosen(model, tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_text()
        if broken == "cut":  # whole JSON, but figures are missing
            value = json.loads(text)
            value["measured"].popitem()
            path.write_text(json.dumps(value))
        else:
            path.write_text(broken)
    again = chosen(model, tmp_path)
    assert capsys.readouterr().err.count("is broken") == 3
    assert {row.tree: row.tokens_per_round for row in again.table} == {
        row.tree: row.tokens_per_round for row in first.table
    }
    assert chosen(model, tmp_path) == again


def test_an_unwritable_folder_only_warns(model, tmp_path, capsys):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    assert chosen(model, tmp_path / "file").tree in TREES
    assert "cannot keep" in capsys.readouterr().err
    assert chosen(model, None).tree in TREES


def test_a_head_that_accepts_nothing_gets_a_valid_tree(model):
    """The whole grid; drafting goes on working with the choice."""
    choice = chosen(model, None, AcceptConfig("exact"), trees=None)
    assert choice.table[0].tree == choice.tree
    assert choice.speedup == max(row.speedup for row in choice.table)
    drafter = model.drafter.with_tree(choice.tree)
    prompt = model.prompt_ids("Go.")
    config = DecodeConfig(AcceptConfig("exact"), stop=model.stop(12))
    assert decode(model.target, drafter, prompt, config).tokens


def test_a_key_knows_the_head(model, folders):
    """Another head of the same shape has statistics of its own."""
    other = load(str(folders[0]), head=str(folders[1]), dtype="float32")
    args = AcceptConfig(), SamplingConfig(), TREES, TUNING, TREES[0]
    assert survey_key(model, *args) == survey_key(other, *args)
    head = load_head(folders[1], other.target.model.config).to(other.target.dtype)
    head.fc.weight.data.mul_(1.5)
    other = replace(other, drafter=EagleDrafter(head, other.target, other.drafter.tree_config))
    assert survey_key(model, *args) != survey_key(other, *args)


def test_what_cannot_be_tuned_is_refused(model, folders, tmp_path):
    plain = load(str(folders[0]), head=None, dtype="float32")
    with pytest.raises(BadInput, match="without a draft head"):
        chosen(plain, None)
    short = write_target(tmp_path / "short", max_positions=90, layers=2)
    with pytest.raises(BadInput, match="90 positions"):
        chosen(load(str(short), head=str(folders[1]), dtype="float32"), None)
    with pytest.raises(BadInput, match="repeats"):
        replace(TUNING, repeats=0)


def test_kept_without_a_file_measures(tmp_path):
    """The store by itself: one measurement per key."""
    calls = []

    def measure() -> dict:
        calls.append(1)
        return {"n": len(calls)}

    same = {"to_json": dict, "from_json": dict}
    values = [kept(tmp_path, "a", {"x": x}, measure, **same)["n"] for x in (1, 2, 1, 2)]
    assert values == [1, 2, 1, 2] and len(list(tmp_path.iterdir())) == 2


def test_the_command_prints_and_writes(folders, tmp_path, monkeypatch, capsys):
    """choose_tree.py with its own prompts, a second time from what is kept."""
    monkeypatch.setenv("EAGLE_FSD_CACHE", str(tmp_path / "cache"))
    options = ["--target", str(folders[0]), "--head", str(folders[1]), "--dtype", "float32"]
    options += ["--device", "cpu", "--rows", "3", "--max_new_tokens", "4"]
    options += ["--output", str(tmp_path / "choice.json")]
    texts = []
    for _ in range(2):
        COMMAND.main(options)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert "auto tree: " in texts[0] and texts[0].count("\n| ") == 4
    record = json.loads((tmp_path / "choice.json").read_text())
    assert record["choice"]["tree"] == record["choice"]["table"][0]["tree"]
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "cache" / "tuning").iterdir()) == KINDS
    with pytest.raises(SystemExit, match="rows"):
        COMMAND.main([*options, "--rows", "-1"])

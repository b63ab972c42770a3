"""A disk that is full, and two commands at one folder: one plain line, what was there stays as it
was, and the same command goes on. (A kill -9: test_folder.py, test_train_resume.py.)"""

from pathlib import Path

import pytest
from commands import full_disk, model_options, rows
from hand_records import made_run, write_run
from safetensors.torch import load_file
from tiny_folder import write_random_head
from training_runs import convert, head_options, refused, same, train, weights

from eagle_fsd.config import BadInput
from eagle_fsd.runs.folder import Run, lock_folder
from eagle_fsd.runs.jsonl import write_file

REPORT = "evaluate/report.py"


def contents(folder: Path) -> dict[str, bytes]:
    """All but what is hidden."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if name[0] != "."}


def test_a_record_is_whole_or_not_there(tmp_path):
    """Bug held down: a traceback, and half a line, which another thread's record would follow."""
    run = Run(tmp_path, {})
    run.begin_session()
    run.add("plain", {"question_id": 1})
    path = tmp_path / "records/plain.jsonl"
    with full_disk(900), pytest.raises(BadInput, match=r"plain.jsonl .*too large.* make room"):
        run.add("plain", {"question_id": 2, "text": "x" * 1000})
    run.add("plain", {"question_id": 3})
    assert (
        [row["question_id"] for row in rows(path)] == [1, 3] == [i for i, _ in run.records["plain"]]
    )


def test_a_file_is_whole_or_as_it_was(tmp_path):
    """Bug held down: summaries and tables were written over in place."""
    write_file(tmp_path / "new/summary.md", "before")
    with full_disk(900), pytest.raises(BadInput, match="nothing that was there is lost"):
        write_file(tmp_path / "new/summary.md", "x" * 1000)
    assert (tmp_path / "new/summary.md").read_text() == "before"


@pytest.mark.processes  # long
def test_an_old_report_stays_until_the_new_one_is_whole(call, tmp_path):
    """Bug held down: it was deleted first, and a kill left half a page in its place."""
    run, output = write_run(tmp_path / "run", made_run()), tmp_path / "report"
    call(REPORT, run, "--output", output)
    old = contents(output)
    more = write_run(tmp_path / "more", made_run(1))
    with full_disk(len(old["index.html"]) // 2):
        assert "index.html" in call(REPORT, more, "--output", output)
    assert contents(output) == old
    with lock_folder(output):
        assert "another command is writing" in call(REPORT, more, "--output", output)
    call(REPORT, more, "--output", output)
    # all of it: of one question there is no table of categories
    assert old.keys() - contents(output).keys() == {"tables/by_category.csv"}
    assert not (output / ".unfinished").exists()


def test_half_a_head_is_none_and_is_written_again(tmp_path):
    """Bug held down: its config.json was there first, and the same command was refused for it."""
    head, output = write_random_head(tmp_path / "head"), tmp_path / "out"
    paths = ("--head", head, "--output", output)
    with full_disk(5000), pytest.raises(SystemExit, match="out/model.safetensors"):
        convert(*paths)
    with pytest.raises(SystemExit, match="is no draft head's config"):
        convert("--head", output, "--output", "other")
    with lock_folder(output), pytest.raises(SystemExit, match="another command is writing"):
        convert(*paths)
    convert(*paths)
    assert same(load_file(head / "model.safetensors"), load_file(output / "model.safetensors"))


def test_a_training_goes_on_from_the_last_save(target, data, tmp_path):
    """Bug held down: a traceback out of torch."""
    shared = {"steps": 4, "features": "online", "precision": "no"}
    whole = train(target, data, tmp_path / "whole", **shared)
    options = head_options(target, data, tmp_path / "full", **shared)
    with full_disk((whole / "model.safetensors").stat().st_size + 1000):  # the optimizer's is more
        assert "cannot save to" in refused(*options)
    again = train(target, data, tmp_path / "full", **shared)
    assert same(weights(again), weights(whole))


def test_a_measurement_leaves_nothing_before_its_end(call, models, tmp_path):
    """Bug held down: the probe for --output left an empty file where the command did not end."""
    path = tmp_path / "choice.json"
    options = [*model_options((models[0], tmp_path / "gone")), "--output", path]
    assert "no draft head" in call("evaluate/choose_tree.py", *options)
    assert not path.exists()

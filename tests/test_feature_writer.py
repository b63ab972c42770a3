"""Features that generation appends as it goes: what a kill leaves behind, and what a cache reads.

Axes: L tokens of a dialogue, W width of a row.
"""

import pytest
import torch
from test_features import LENGTHS, random_dialogue

from eagle_fsd.training.features import FeatureCache, FeatureWriter

W = 7


@pytest.fixture(scope="module")
def dialogues():
    return [random_dialogue(n, seed=n + 100 * i) for i, n in enumerate(LENGTHS)]


def random_rows(length: int) -> torch.Tensor:
    return torch.randn(length, W, generator=torch.Generator().manual_seed(length))


def writer(folder) -> FeatureWriter:
    return FeatureWriter(folder, width=W, owner={"target": "t"})


def write(folder, dialogues) -> FeatureWriter:
    out = writer(folder)
    for dialogue in dialogues:
        out.append(dialogue.ids, random_rows(len(dialogue.ids)))
    return out


def assert_written(folder, dialogues) -> None:
    cache = FeatureCache(folder, dialogues, width=W, owner={"target": "t"})
    assert cache.complete
    for i, dialogue in enumerate(dialogues):
        assert torch.equal(cache[i], random_rows(len(dialogue.ids)).bfloat16())


def test_what_a_writer_appends_a_cache_reads(tmp_path, dialogues):
    """Bit for bit, after a second writer went on where the first ended."""
    write(tmp_path, dialogues[:4])
    assert write(tmp_path, dialogues[4:]).dialogues == len(dialogues)
    assert_written(tmp_path, dialogues)
    assert_written(tmp_path, dialogues[2:9])


def test_truncate_forgets_the_last(tmp_path, dialogues):
    """As when the journal of a killed generation is behind its features."""
    out = write(tmp_path, dialogues[:5])
    out.truncate(3)
    assert out.dialogues == 3
    with pytest.raises(ValueError, match="lacks dialogue 4"):
        assert_written(tmp_path, dialogues[:5])
    write(tmp_path, dialogues[3:7])
    assert_written(tmp_path, dialogues[:7])


@pytest.mark.parametrize("torn", ["rows", "rows and ids", "part of the length"])
def test_a_kill_in_the_middle_of_an_append(tmp_path, dialogues, torn):
    """Rows, then ids, then the length: wherever it stopped, the dialogue does not count yet."""
    write(tmp_path / "whole", dialogues[:4])
    write(tmp_path / "torn", dialogues[:3])
    took = {"rows": (0.5, 0, 0), "rows and ids": (1, 0.5, 0), "part of the length": (1, 1, 0.5)}
    for name, share in zip(("rows.bin", "ids.bin", "lengths.bin"), took[torn], strict=True):
        path = tmp_path / "torn" / name
        before, after = path.read_bytes(), (tmp_path / "whole" / name).read_bytes()
        path.write_bytes(after[: len(before) + int(share * (len(after) - len(before)))])
    assert writer(tmp_path / "torn").dialogues == 3
    write(tmp_path / "torn", dialogues[3:])
    assert_written(tmp_path / "torn", dialogues)


@pytest.mark.parametrize("file", ["rows.bin", "ids.bin"])
def test_a_writer_goes_on_from_no_damaged_cache(tmp_path, dialogues, file):
    """Files shorter than the lengths say were filled up with zeros without a word."""
    write(tmp_path, dialogues[:4])
    path = tmp_path / file
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"{tmp_path}.*damaged"):
        writer(tmp_path)


def test_a_writer_leaves_an_unfinished_fill_alone(tmp_path, dialogues):
    """It would have called rows complete that were never computed."""
    FeatureCache(tmp_path, dialogues, width=W, owner={"target": "t"})
    with pytest.raises(ValueError, match=f"{tmp_path}.*never filled"):
        writer(tmp_path)

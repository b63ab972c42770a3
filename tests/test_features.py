"""The target's states: right rows, resumed after a kill, refused if of others, from any source.

Axes: B dialogues, T positions, L tokens of a dialogue, W width of a row, D hidden size.
"""

import json

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model, tiny_target

from eagle_fsd.decoding.target import Target
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import (
    FeatureCache,
    FeatureWriter,
    Joined,
    Online,
    identity,
    row_width,
)

LENGTHS = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]
LAYERS = (0, 1, 2)  # of the tiny targets' three, for EAGLE-3


def random_dialogue(length: int, *, seed: int) -> Dialogue:
    return Dialogue(prompt_tokens(length, seed=seed), [False] + [True] * (length - 1))


@pytest.fixture(scope="module")
def dialogues():
    return [random_dialogue(n, seed=n + 100 * i) for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def fused(family: str = "llama") -> Target:
    return Target(random_model(FAMILIES[family](), seed=0), feature_layers=LAYERS)


def open_cache(folder, dialogues, target, *, name="tiny") -> FeatureCache:
    owner = identity(target, name)
    return FeatureCache(folder, dialogues, width=row_width(target), owner=owner)


@torch.no_grad()
def alone(target: Target, dialogue: Dialogue) -> torch.Tensor:
    """What a dialogue's rows are if it is run by itself, [L, W]."""
    seen = []
    hook = target.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    ids_1L = torch.tensor([dialogue.ids])
    output = target.model(ids_1L, use_cache=False, output_hidden_states=True)
    hook.remove()
    layers = [output.hidden_states[layer][0] for layer in target.feature_layers]
    return torch.cat([*layers, seen[0]], dim=-1)


def assert_rows_are_right(source, dialogues, target) -> None:
    rows = source.rows(range(len(dialogues)))
    for rows_LW, dialogue in zip(rows, dialogues, strict=True):
        assert rows_LW.shape == (len(dialogue.ids), row_width(target))
        # rounding to bfloat16 is at most 2**-9 of the value; twice that where batching tips it over
        wanted_LW = alone(target, dialogue)
        torch.testing.assert_close(rows_LW.float(), wanted_LW, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding"])
@pytest.mark.parametrize("tokens_per_batch", [1, 40, 10_000])
def test_rows_are_those_of_each_dialogue_alone(tmp_path, dialogues, family, tokens_per_batch):
    """Right padding and batching change nothing, sliding windows included."""
    target = tiny_target(family)
    cache = open_cache(tmp_path, dialogues, target)
    cache.fill(target, tokens_per_batch=tokens_per_batch)
    assert cache[0].dtype == torch.bfloat16
    assert_rows_are_right(cache, dialogues, target)
    # on disk too, for another process
    assert_rows_are_right(open_cache(tmp_path, dialogues, target), dialogues, target)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_rows_for_eagle3_are_four_hidden_states_wide(tmp_path, dialogues, family):
    """Three layers as the head fuses them, then what the lm_head reads."""
    target = fused(family)
    assert row_width(target) == 4 * target.hidden_size
    cache = open_cache(tmp_path, dialogues, target)
    cache.fill(target)
    assert_rows_are_right(cache, dialogues, target)


@pytest.mark.parametrize("make", [lambda: tiny_target("llama"), fused], ids=["eagle", "eagle3"])
def test_online_states_are_the_caches(tmp_path, dialogues, make):
    """Up to the cache's rounding, in any order; autograd may use them."""
    target = make()
    online, cache = Online(target, dialogues), open_cache(tmp_path, dialogues, target)
    cache.fill(target)
    order = [7, 0, 3]
    for ours_LW, cached_LW in zip(online.rows(order), cache.rows(order), strict=True):
        torch.testing.assert_close(ours_LW, cached_LW.float(), rtol=2**-8, atol=1e-4)
        assert not ours_LW.is_inference()
    assert_rows_are_right(online, dialogues, target)


def test_joined_sources_keep_their_order(tmp_path, dialogues, target):
    """Several files, one cached and one online, asked for across the seam."""
    cache = open_cache(tmp_path, dialogues[:5], target)
    cache.fill(target)
    joined = Joined([cache, Online(target, dialogues[5:])])
    assert joined.dialogues == dialogues
    for i, rows_LW in zip([6, 4, 11, 5], joined.rows([6, 4, 11, 5]), strict=True):
        wanted_LW = alone(target, dialogues[i])
        torch.testing.assert_close(rows_LW.float(), wanted_LW, rtol=2**-8, atol=1e-4)


class KilledError(Exception):
    """Stands for a SIGKILL in the middle of a fill."""


class KillAt:
    """Raises in the k-th forward of the target (from 1); counts them."""

    def __init__(self, target: Target, k: int | None = None):
        self.count, self.k = 0, k
        self.hook = target.model.base_model.register_forward_hook(self)

    def __call__(self, *_):
        self.count += 1
        if self.count == self.k:
            raise KilledError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hook.remove()


@pytest.fixture(scope="module")
def many():
    """50 batches of one dialogue each at tokens_per_batch 1: the index is written after 20, 40."""
    return [random_dialogue(2 + i % 7, seed=i) for i in range(50)]


def kill_fill(folder, dialogues, target, *, at: int) -> None:
    with KillAt(target, at), pytest.raises(KilledError):
        open_cache(folder, dialogues, target).fill(target, tokens_per_batch=1)


@pytest.mark.parametrize(("kill_at", "left"), [(1, 50), (20, 50), (21, 30), (47, 10)])
def test_an_interrupted_fill_is_continued(tmp_path, many, target, kill_at, left):
    """The file is bit for bit that of an unbroken fill; only what was not saved is computed."""
    open_cache(tmp_path / "unbroken", many, target).fill(target, tokens_per_batch=1)
    kill_fill(tmp_path / "broken", many, target, at=kill_at)
    with KillAt(target) as counter:
        open_cache(tmp_path / "broken", many, target).fill(target, tokens_per_batch=1)
    assert counter.count == left
    files = [(tmp_path / name / "rows.bin").read_bytes() for name in ("unbroken", "broken")]
    assert files[0] == files[1]


def test_another_batch_size_on_resume_does_not_corrupt(tmp_path, many, target):
    """Batches are counted, so another size skipped dialogues that were never run, leaving zeros."""
    kill_fill(tmp_path, many, target, at=21)
    cache = open_cache(tmp_path, many, target)
    cache.fill(target, tokens_per_batch=12)
    assert_rows_are_right(cache, many, target)


def test_a_full_cache_needs_no_target(tmp_path, dialogues, target):
    """A second command, or a second process (main_process_first), runs the target not once."""
    cache = open_cache(tmp_path, dialogues, target)
    cache.fill(target)
    before = (tmp_path / "rows.bin").read_bytes()
    with KillAt(target, 1) as counter:
        cache.fill(target)
        open_cache(tmp_path, dialogues, target).fill(target, tokens_per_batch=3)
    assert counter.count == 0 and (tmp_path / "rows.bin").read_bytes() == before


def test_a_part_of_a_full_cache_serves(tmp_path, dialogues, target):
    """Some of its dialogues in their order, cut at a length; equal beginnings do not confuse it."""
    twins = [*dialogues, Dialogue(dialogues[6].ids[:9] + [3, 4], dialogues[6].mask[:11])]
    open_cache(tmp_path, twins, target).fill(target)
    parts = [
        twins[3:7],
        [twins[1], twins[6], twins[10], twins[12]],
        [Dialogue(d.ids[:7], d.mask[:7]) for d in twins],
    ]
    with KillAt(target, 1):
        for part in parts:
            cache = open_cache(tmp_path, part, target)
            cache.fill(target)
            assert cache.complete
    for part in parts:
        assert_rows_are_right(open_cache(tmp_path, part, target), part, target)


@pytest.mark.parametrize("which", ["half of them", "cut"])
def test_an_unfinished_fill_is_of_all_its_dialogues(tmp_path, many, target, which):
    """Batches done were counted in another list: rows never computed passed for features.

    Refused, or computed right; and the first list's cache is not called complete.
    """
    kill_fill(tmp_path, many, target, at=21)
    part = many[::2] if which == "half of them" else [Dialogue(d.ids[:4], d.mask[:4]) for d in many]
    try:
        cache = open_cache(tmp_path, part, target)
        cache.fill(target, tokens_per_batch=1)
    except ValueError as error:
        assert str(tmp_path) in str(error)
    else:
        assert_rows_are_right(cache, part, target)
    cache = open_cache(tmp_path, many, target)
    cache.fill(target, tokens_per_batch=1)
    assert_rows_are_right(cache, many, target)


def test_a_cache_of_others_is_refused(tmp_path, dialogues, target):
    """Other dialogues, another order, longer ones, another target, layer or width: not reused."""
    open_cache(tmp_path, dialogues, target).fill(target)
    longer = [Dialogue([*d.ids, 5], [*d.mask, True]) for d in dialogues]
    changed = [Dialogue([d.ids[0], 9, *d.ids[2:]], d.mask) for d in dialogues]
    for other in (dialogues[::-1], longer, changed, [*dialogues, dialogues[0]]):
        with pytest.raises(ValueError, match=f"{tmp_path}.*other data"):
            open_cache(tmp_path, other, target)
    for other in (tiny_target("llama", seed=1), fused()):
        with pytest.raises(ValueError, match=f"{tmp_path}.*another target"):
            open_cache(tmp_path, dialogues, other)
        with pytest.raises(ValueError, match="another target"):
            FeatureWriter(tmp_path, width=row_width(other), owner=identity(other, "tiny"))
    with pytest.raises(ValueError, match="another target"):
        open_cache(tmp_path, dialogues, target, name="other")
    assert_rows_are_right(open_cache(tmp_path, dialogues, target), dialogues, target)


@pytest.mark.parametrize("file", ["rows.bin", "ids.bin", "lengths.bin"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_cache_is_told(tmp_path, dialogues, target, file, damage):
    """index.json says full, but a file is short (a copy cut off): one line that names the folder.

    (A short file was filled up with zeros, on which a head would have been trained.)
    """
    open_cache(tmp_path, dialogues, target).fill(target)
    path = tmp_path / file
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=str(tmp_path)):
        open_cache(tmp_path, dialogues, target)


def test_the_index_names_what_it_is_of(tmp_path, dialogues, target):
    """Readable by people: the target, its layers and the width."""
    open_cache(tmp_path, dialogues, target, name="some/target").fill(target)
    index = json.loads((tmp_path / "index.json").read_text())
    assert (index["target"], index["width"], index["layers"]) == ("some/target", 40, [])

"""The cache of the target's features: right rows, resumed after a kill, refused if of others."""

import json

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model

from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import FeatureCache

LENGTHS = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]


@pytest.fixture(scope="module")
def dialogues():
    return [Dialogue(prompt_tokens(n, seed=n + i), 1) for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def model():
    return random_model(FAMILIES["llama"](), seed=0)


def open_cache(folder, dialogues, model, *, target_name="tiny") -> FeatureCache:
    return FeatureCache(
        folder, dialogues, hidden_size=model.config.hidden_size, target_name=target_name
    )


def alone(model, dialogue: Dialogue) -> torch.Tensor:
    """What feeds the lm_head when a dialogue is run by itself, [L, D] float32."""
    seen = []
    hook = model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    with torch.no_grad():
        model(torch.tensor([dialogue.ids]), use_cache=False)
    hook.remove()
    return seen[0]


def assert_rows_are_right(cache: FeatureCache, dialogues, model) -> None:
    for i, dialogue in enumerate(dialogues):
        rows_LD = cache[i]
        assert rows_LD.dtype == torch.bfloat16
        assert rows_LD.shape == (len(dialogue.ids), model.config.hidden_size)
        # rounding to bfloat16 is at most 2**-9 of the value; twice that where batching tips it over
        torch.testing.assert_close(rows_LD.float(), alone(model, dialogue), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding"])
@pytest.mark.parametrize("tokens_per_batch", [1, 40, 10_000])
def test_rows_are_those_of_each_dialogue_alone(tmp_path, dialogues, family, tokens_per_batch):
    """Right padding and batching change nothing, sliding windows included."""
    model = random_model(FAMILIES[family](), seed=0)
    cache = open_cache(tmp_path, dialogues, model)
    cache.fill(model, tokens_per_batch=tokens_per_batch)
    assert_rows_are_right(cache, dialogues, model)
    # on disk too, for another process
    assert_rows_are_right(open_cache(tmp_path, dialogues, model), dialogues, model)


class KilledError(Exception):
    """Stands for a SIGKILL in the middle of a fill."""


class KillAt:
    """Raises in the k-th forward of the model (from 1); counts them."""

    def __init__(self, model, k: int | None = None):
        self.count, self.k = 0, k
        self.hook = model.base_model.register_forward_hook(self)

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
    lengths = [2 + i % 7 for i in range(50)]
    return [Dialogue(prompt_tokens(n, seed=i), 1) for i, n in enumerate(lengths)]


@pytest.mark.parametrize(("kill_at", "left"), [(1, 50), (20, 50), (21, 30), (47, 10)])
def test_an_interrupted_fill_is_continued(tmp_path, many, model, kill_at, left):
    """The file is bit for bit that of an unbroken fill; only what was not saved is computed."""
    open_cache(tmp_path / "unbroken", many, model).fill(model, tokens_per_batch=1)
    with KillAt(model, kill_at), pytest.raises(KilledError):
        open_cache(tmp_path / "broken", many, model).fill(model, tokens_per_batch=1)
    with KillAt(model) as counter:
        open_cache(tmp_path / "broken", many, model).fill(model, tokens_per_batch=1)
    assert counter.count == left
    files = [(tmp_path / name / "features.bin").read_bytes() for name in ("unbroken", "broken")]
    assert files[0] == files[1]


def test_a_full_cache_needs_no_model(tmp_path, dialogues, model):
    """A second command runs the target not once, and may even fill with another batch size."""
    open_cache(tmp_path, dialogues, model).fill(model)
    before = (tmp_path / "features.bin").read_bytes()
    with KillAt(model, 1) as counter:
        open_cache(tmp_path, dialogues, model).fill(model)
    assert counter.count == 0
    assert (tmp_path / "features.bin").read_bytes() == before


@pytest.mark.parametrize(("first", "second"), [(1, 12), (4, 1)])
def test_another_batch_size_on_resume_does_not_corrupt(tmp_path, many, model, first, second):
    """Batches are counted, so another size skipped dialogues that were never run, leaving zeros.

    Either refused by name or computed right.
    """
    with KillAt(model, 21), pytest.raises(KilledError):
        open_cache(tmp_path, many, model).fill(model, tokens_per_batch=first)
    cache = open_cache(tmp_path, many, model)
    try:
        cache.fill(model, tokens_per_batch=second)
    except ValueError as error:
        assert "tokens_per_batch" in str(error)
    else:
        assert_rows_are_right(cache, many, model)


def test_two_fills_of_one_cache_run_the_target_once(tmp_path, dialogues, model):
    """Several processes fill after one another (main_process_first); the second has no work."""
    cache = open_cache(tmp_path, dialogues, model)
    cache.fill(model)
    with KillAt(model) as counter:
        cache.fill(model)
    assert counter.count == 0


def test_a_cache_of_other_data_is_refused(tmp_path, dialogues, model):
    """Other dialogues, another order, cut differently, another target or width: not reused."""
    open_cache(tmp_path, dialogues, model).fill(model)
    other_data = [
        dialogues[:-1],
        dialogues[::-1],
        [Dialogue(d.ids[:20], d.answer_start) for d in dialogues],
        [Dialogue([d.ids[0], 9, *d.ids[2:]], d.answer_start) for d in dialogues],
    ]
    for other in other_data:
        with pytest.raises(ValueError, match=str(tmp_path)):
            open_cache(tmp_path, other, model)
    with pytest.raises(ValueError, match="another target"):
        open_cache(tmp_path, dialogues, model, target_name="other")
    with pytest.raises(ValueError, match=str(tmp_path)):
        FeatureCache(tmp_path, dialogues, hidden_size=41, target_name="tiny")
    assert_rows_are_right(open_cache(tmp_path, dialogues, model), dialogues, model)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_file_is_not_taken_for_features(tmp_path, dialogues, model, damage):
    """index.json says full, but rows are missing (a copy cut short): told, or computed anew.

    (A short file was filled up with zeros, on which a head would have been trained.)
    """
    open_cache(tmp_path, dialogues, model).fill(model)
    path = tmp_path / "features.bin"
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    try:
        cache = open_cache(tmp_path, dialogues, model)
    except ValueError as error:
        assert str(tmp_path) in str(error)
    else:
        cache.fill(model)
        assert path.read_bytes() == data


def test_the_index_names_what_it_is_of(tmp_path, dialogues, model):
    """Readable by people: the target and the width."""
    open_cache(tmp_path, dialogues, model, target_name="some/target").fill(model)
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["target"] == "some/target" and index["hidden_size"] == 40

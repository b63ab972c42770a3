"""The target's states: right rows, kept for the next epoch, refused if of others.

Axes: L tokens of a dialogue, W width of a row.
"""

import json

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model, tiny_target

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import TargetStates

LENGTHS = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]
LAYERS = (0, 1, 2)  # of the tiny targets' three, for EAGLE-3


@pytest.fixture(scope="module")
def dialogues():
    return [
        Dialogue(prompt_tokens(n, seed=n + 100 * i), [False] + [True] * (n - 1))
        for i, n in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def fused(family: str = "llama") -> Target:
    return Target(random_model(FAMILIES[family](), seed=0), feature_layers=LAYERS)


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


def assert_right(states: TargetStates, indices: list[int]) -> None:
    for i, rows_LW in zip(indices, states.rows(indices), strict=True):
        # rounding to bfloat16 is at most 2**-9 of the value; twice that where batching tips it over
        wanted_LW = alone(states.target, states.dialogues[i])
        torch.testing.assert_close(rows_LW.float(), wanted_LW, rtol=2**-8, atol=1e-4)
        assert not rows_LW.is_inference()


def forwards(target: Target) -> list:
    """Grows by one with each forward of the target from now on."""
    seen = []
    target.model.base_model.register_forward_hook(lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding", "eagle3"])
def test_rows_are_those_of_each_dialogue_alone(tmp_path, dialogues, family, keep):
    """Right padding and batching change nothing; in any order, in parts, kept or not; autograd may
    use them."""
    target = fused() if family == "eagle3" else tiny_target(family)
    states = TargetStates(target, dialogues, tmp_path / "kept" if keep else None)
    assert_right(states, [7, 0, 3])
    assert_right(states, list(range(len(dialogues))))
    assert states.rows([3])[0].dtype == (torch.bfloat16 if keep else torch.float32)


def test_kept_rows_are_not_computed_again(tmp_path, dialogues):
    """By the same run or another; what a broken run left is all that is missing."""
    target = tiny_target("llama")
    count = forwards(target)
    first = TargetStates(target, dialogues, tmp_path).rows([4, 1])
    assert len(count) == 1
    again = TargetStates(target, dialogues, tmp_path)
    for ours, theirs in zip(again.rows([4, 1]), first, strict=True):
        assert torch.equal(ours, theirs)
    assert len(count) == 1
    again.rows([1, 2, 4])
    assert len(count) == 2
    assert_right(again, list(range(len(dialogues))))


def test_a_row_counts_when_its_dialogue_is_whole(tmp_path, dialogues, target):
    """Rows torn by a kill are computed anew: the byte that says "here" is written last."""
    states = TargetStates(target, dialogues, tmp_path)
    wanted = states.rows([6])[0]
    path = tmp_path / "rows.bin"
    data = bytearray(path.read_bytes())
    data[6] = 0
    offset = len(dialogues) + 2 * states.width * sum(LENGTHS[:6])
    data[offset + 500 : offset + 900] = bytes(400)
    path.write_bytes(data)
    assert torch.equal(TargetStates(target, dialogues, tmp_path).rows([6])[0], wanted)


def test_states_of_others_are_refused(tmp_path, dialogues, target):
    """Other dialogues or order, longer ones, another target, other layers, a file cut short."""
    folder = tmp_path / "kept"
    TargetStates(target, dialogues, folder).rows([0])
    longer = [Dialogue([*d.ids, 5], [*d.mask, True]) for d in dialogues]
    for other in (dialogues[::-1], longer, dialogues[:-1]):
        with pytest.raises(BadInput, match=f"{folder}.*other data"):
            TargetStates(target, other, folder)
    for other in (tiny_target("llama", seed=1), fused()):
        with pytest.raises(BadInput, match=f"{folder}.*another target"):
            TargetStates(other, dialogues, folder)
    assert json.loads((folder / "index.json").read_text())["layers"] == []
    path = folder / "rows.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(BadInput, match=str(folder)):
        TargetStates(target, dialogues, folder)


def test_a_file_where_the_folder_should_be(tmp_path, dialogues, target):
    """It ended in a traceback."""
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(BadInput, match="--features"):
        TargetStates(target, dialogues, tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "mine"

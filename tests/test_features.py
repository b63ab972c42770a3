"""The target's states: right rows, kept for the next epoch, other files for other data.

Axes: L tokens of a dialogue, W width of a row.
"""

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model, tiny_target

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import TargetStates

LENGTHS = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]


@pytest.fixture(scope="module")
def dialogues():
    return [
        Dialogue(prompt_tokens(n, seed=n + 100 * i), [False] + [True] * (n - 1))
        for i, n in enumerate(LENGTHS)
    ]


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


def fused() -> Target:
    return Target(random_model(FAMILIES["llama"](), seed=0), feature_layers=(0, 1, 2))


@torch.no_grad()
def alone(target: Target, dialogue: Dialogue) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and hidden states of a dialogue that is run by itself, by transformers alone."""
    seen = []
    hook = target.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    ids_1L = torch.tensor([dialogue.ids])
    output = target.model(ids_1L, use_cache=False, output_hidden_states=True)
    hook.remove()
    layers = [output.hidden_states[layer][0] for layer in target.feature_layers]
    return torch.cat(layers or seen, dim=-1), seen[0]


def assert_right(states: TargetStates, indices: list[int]) -> None:
    for i, parts in zip(indices, states.of(indices), strict=True):
        # rounding to bfloat16 is at most 2**-9 of the value; twice that where batching tips it over
        for part, wanted in zip(parts, alone(states.target, states.dialogues[i]), strict=True):
            torch.testing.assert_close(part.float(), wanted, rtol=2**-8, atol=1e-4)
            assert not part.is_inference()  # autograd may use it


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding", "eagle3"])
def test_rows_are_those_of_each_dialogue_alone(tmp_path, dialogues, family, keep):
    """Right padding and batching change nothing; in any order, in parts, kept or not."""
    target = fused() if family == "eagle3" else tiny_target(family)
    states = TargetStates(target, dialogues, tmp_path / "kept" if keep else None)
    assert_right(states, [7, 0, 3])
    assert_right(states, list(range(len(dialogues))))


def test_kept_rows_are_not_computed_again(tmp_path, dialogues):
    """By the same run or another; what a broken run left is all that is missing, and rows torn by a
    kill are computed anew, since the byte that says "here" is written last."""
    target, forwards = tiny_target("llama"), []
    first = TargetStates(target, dialogues, tmp_path).of([4, 6])
    target.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    again = TargetStates(target, dialogues, tmp_path)
    for ours, theirs in zip(again.of([4, 6]), first, strict=True):
        assert torch.equal(ours[0], theirs[0])
    assert not forwards
    again.of([1, 4, 6])
    assert len(forwards) == 1
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-len(dialogues) + 6] = 0
    offset = 2 * target.hidden_size * sum(LENGTHS[:6])
    data[offset + 500 : offset + 900] = bytes(400)
    path.write_bytes(data)
    assert_right(TargetStates(target, dialogues, tmp_path), list(range(len(dialogues))))


def test_states_of_others_lie_in_files_of_their_own(tmp_path, dialogues, target):
    """Other dialogues or order, longer ones, another target, other layers share the folder."""
    longer = [Dialogue([*d.ids, 5], [*d.mask, True]) for d in dialogues]
    others = [(target, data) for data in (dialogues, dialogues[::-1], longer, dialogues[:-1])]
    others += [(tiny_target("llama", seed=1), dialogues), (fused(), dialogues)]
    for one, data in others:
        assert_right(TargetStates(one, data, tmp_path), [0, 3])
    assert len(list(tmp_path.iterdir())) == len(others)


def test_a_file_where_the_folder_should_be(tmp_path, dialogues, target):
    """It ended in a traceback."""
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(BadInput, match="--features"):
        TargetStates(target, dialogues, tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "mine"

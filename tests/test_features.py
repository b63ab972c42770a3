"""The target's states: right rows, kept for the next epoch, of each text and target apart.

Axes: L tokens of a dialogue, W width of a row.
"""

import pytest
import torch
from tiny import FAMILIES, prompt_tokens, random_model, tiny_target

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.training.features import TargetStates

LENGTHS = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return [prompt_tokens(n, seed=n + 100 * i) for i, n in enumerate(LENGTHS)]


def fused() -> Target:
    return Target(random_model(FAMILIES["llama"](), seed=0), feature_layers=(0, 1, 2))


@torch.no_grad()
def alone(target: Target, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and hidden states of a text that is run by itself, by transformers alone."""
    seen = []
    hook = target.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
    output = target.model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    hook.remove()
    layers = [output.hidden_states[layer][0] for layer in target.feature_layers]
    return torch.cat(layers or seen, dim=-1), seen[0]


def assert_right(states: TargetStates, texts: list[list[int]]) -> None:
    for text, parts in zip(texts, states.of(texts), strict=True):
        # rounding to bfloat16 is at most 2**-9 of the value; twice that where batching tips it over
        for part, wanted in zip(parts, alone(states.target, text), strict=True):
            torch.testing.assert_close(part.float(), wanted, rtol=2**-8, atol=1e-4)
            assert not part.is_inference()  # autograd may use it


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding", "eagle3"])
def test_rows_are_those_of_each_text_alone(tmp_path, texts, family, keep):
    """Right padding and batching change nothing; in any order, in parts, kept or not."""
    target = fused() if family == "eagle3" else tiny_target(family)
    states = TargetStates(target, tmp_path / "kept" if keep else None)
    assert_right(states, [texts[i] for i in (7, 0, 3)])
    assert_right(states, texts)


def test_kept_rows_are_not_computed_again(tmp_path, texts):
    """By the same run or another, with more data or other data around them; what a killed run left
    half written is not taken for a file."""
    target, forwards = tiny_target("llama"), []
    first = TargetStates(target, tmp_path).of([texts[4], texts[6]])
    (folder,) = tmp_path.iterdir()
    (folder / "torn.123").write_bytes(b"torn")
    target.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    again = TargetStates(target, tmp_path)
    for ours, theirs in zip(again.of([texts[6], texts[4]]), first[::-1], strict=True):
        assert torch.equal(ours[0], theirs[0])
    assert not forwards
    again.of([texts[1], texts[4], texts[6]])
    assert len(forwards) == 1


def test_states_of_other_targets_lie_apart(tmp_path, texts):
    """Other weights, other layers: each finds its own in a folder that they share. (A file in its
    place ended in a traceback.)"""
    for target in (tiny_target("llama"), tiny_target("llama", seed=1), fused()):
        for _ in range(2):
            assert_right(TargetStates(target, tmp_path), texts[:2])
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(BadInput, match="--features"):
        TargetStates(tiny_target("llama"), tmp_path / "kept").of(texts[:1])
    assert (tmp_path / "kept").read_text() == "mine"

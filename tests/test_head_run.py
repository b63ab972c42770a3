"""Around a training: a head's tokens per round on held-out answers, against one tree at a time; and
the target's states: right rows, kept for the next epoch, of each text and target apart.

Axes: L tokens of a dialogue, F features.
"""

from itertools import pairwise

import pytest
import torch
from reference_tree import paths
from tiny import fused_target, prompt_tokens, target_and_head, tiny_target

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.training.data import Dialogue
from eagle_fsd.training.features import TargetStates
from eagle_fsd.training.head_run import expected_tokens_per_round


def answered(target, *lengths: int) -> Dialogue:
    """Prompts by turns with what the target says to them greedily, of these lengths."""
    ids, mask = [], []
    for turn, length in enumerate(lengths):
        if turn % 2 == 0:
            ids += prompt_tokens(length, seed=length)
        else:
            for _ in range(length):
                ids.append(target.model(torch.tensor([ids])).logits[0, -1].argmax().item())
        mask += [turn % 2 == 1] * length
    return Dialogue(ids, mask)


@pytest.mark.parametrize("kind", ["eagle", "eagle, 37 tokens", "eagle3, 37 tokens"])
@pytest.mark.parametrize("tree", [TreeConfig(3, 3, 1), TreeConfig(15, 3, 6)], ids=str)
@torch.no_grad()
def test_tokens_per_round_are_what_decoding_emits(kind, tree):
    """Round by round with a drafter, over the target's own greedy answers, from every root that
    has a whole tree's depth of answer left; None where no answer has."""
    target, head = target_and_head(kind, scale=0.3)
    turns = [(4, 16), (5, 2, 3, 19)]
    dialogues = [answered(target, *lengths) for lengths in turns]
    states = TargetStates(target)
    got = expected_tokens_per_round(head, states, dialogues, tree)
    tokens = rounds = 0
    for dialogue, lengths in zip(dialogues, turns, strict=True):
        ((feature_LF, _),) = states.of([dialogue.ids])
        borders = [sum(lengths[:turn]) for turn in range(1, len(lengths) + 1)]
        for root, end in list(pairwise(borders))[::2]:
            while root < end - tree.tree_depth:
                drafter = EagleDrafter(head, target, tree)
                drafter.reset(64)
                drafter.observe(feature_LF[:root], dialogue.ids[1 : root + 1])
                wanted = dialogue.ids[root + 1 : root + 1 + tree.tree_depth]
                drafts = drafter.propose()
                drafted = paths(drafts.token_N.tolist(), drafts.parent_N.tolist())
                depth = max(n for n in range(tree.tree_depth + 1) if tuple(wanted[:n]) in drafted)
                tokens, rounds, root = tokens + depth + 1, rounds + 1, root + depth + 1
    assert got == pytest.approx(tokens / rounds)
    short = [Dialogue(d.ids[:6], d.mask[:6]) for d in dialogues]
    assert expected_tokens_per_round(head, states, short, tree) is None


# --- the target's states --------------------------------------------------------------------------


LENGTHS = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return [prompt_tokens(n, seed=n + 100 * i) for i, n in enumerate(LENGTHS)]


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
    target = fused_target() if family == "eagle3" else tiny_target(family)
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
    """Other layers, another dtype: each finds its own in a folder that they share."""
    for target in (tiny_target("llama"), fused_target()):
        for _ in range(2):
            assert_right(TargetStates(target, tmp_path), texts[:2])
    narrow = tiny_target("llama")
    narrow.model.bfloat16()
    TargetStates(narrow, tmp_path).of(texts[:1])
    assert len(list(tmp_path.iterdir())) == 3

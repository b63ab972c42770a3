"""Around a training: a head's tokens per round on held-out answers, against one tree at a time; and
the target's states: right rows, kept for the next epoch, of each text and target apart; and
the head on its own predictions at all positions at once, against one root at a time.

Axes: B dialogues, T positions, L tokens of a dialogue, F features.
"""

from itertools import pairwise

import pytest
import torch
from reference_tree import paths
from reference_unroll import assert_unrolled, slow_unroll
from tiny import fused_target, prompt_tokens, target_and_head, tiny_target
from tiny_recurrent import HYBRIDS, hybrid_target

from eagle_fsd.config import BadInput, TreeConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.draft_head import unroll
from eagle_fsd.training import head_run
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
def test_tokens_per_round_are_what_decoding_emits(monkeypatch, kind, tree):
    """Round by round with a drafter, over the target's own greedy answers, from every root that
    has a whole tree's depth of answer left; None where no answer has."""
    target, head = target_and_head(kind, scale=0.3)
    turns = [(4, 16), (5, 2, 3, 19)]
    dialogues = [answered(target, *lengths) for lengths in turns]
    # without a prompt: an answer's first token is no root, since nothing stands before it
    alone = [Dialogue(dialogues[0].ids, [True] * 20)]
    assert expected_tokens_per_round(head, TargetStates(target), alone, tree)[1] > 1
    states = TargetStates(target)
    got, asked = expected_tokens_per_round(head, states, dialogues, tree)
    tokens = rounds = 0
    for dialogue, lengths in zip(dialogues, turns, strict=True):
        ((feature_LF, _),) = states.of([dialogue.ids])
        borders = [sum(lengths[:turn]) for turn in range(1, len(lengths) + 1)]
        for root, end in list(pairwise(borders))[::2]:
            while root < end - tree.tree_depth:
                drafter = EagleDrafter(head, target, tree)
                drafter = drafter.begin(64, 2)
                drafter.observe(feature_LF[:root], dialogue.ids[1 : root + 1])
                wanted = dialogue.ids[root + 1 : root + 1 + tree.tree_depth]
                drafts = drafter.propose()
                drafted = paths(drafts.token_N.tolist(), drafts.parent_N.tolist())
                depth = max(n for n in range(tree.tree_depth + 1) if tuple(wanted[:n]) in drafted)
                tokens, rounds, root = tokens + depth + 1, rounds + 1, root + depth + 1
    assert got == pytest.approx(tokens / rounds) and asked == rounds
    # a clock that has run down ends it after a round, so that there is a figure
    monkeypatch.setattr(head_run, "REPLAY_SECONDS", 0.0)
    first, asked = expected_tokens_per_round(head, states, dialogues, tree)
    assert asked == 1 and first == int(first) >= 1
    short = [Dialogue(d.ids[:6], d.mask[:6]) for d in dialogues]
    assert expected_tokens_per_round(head, states, short, tree) == (None, 0)


# --- the target's states --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    lengths = [5, 23, 11, 2, 17, 11, 31, 3, 8, 13, 29, 7]
    return [prompt_tokens(n, seed=n + 100 * i) for i, n in enumerate(lengths)]


@torch.no_grad()
def alone(target: Target, text: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and hidden states of a text that is run by itself, by transformers alone."""
    seen = []
    lm_head = target.readout.lm_head
    hook = lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0]))
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


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding", "qwen3_5_text", "eagle3"])
def test_rows_are_those_of_each_text_alone(tmp_path, texts, family):
    """Right padding and batching change nothing; in any order, in parts, kept or not."""
    if family == "eagle3":
        target = fused_target()
    else:
        target = hybrid_target(family) if family in HYBRIDS else tiny_target(family)
    for states in TargetStates(target, tmp_path), TargetStates(target):
        assert_right(states, [texts[i] for i in (7, 0, 3)])
        assert_right(states, texts)


@pytest.mark.parametrize("length", [0, -10])
def test_kept_rows_are_not_computed_again(tmp_path, texts, length):
    """By another run, with other data around them. Bug held down: a file that was emptied or cut
    short, by a disk that filled up, say, ended in a traceback of safetensors; once it is deleted
    its states are computed again."""
    target, forwards = tiny_target("llama"), []
    first = [row_LF.clone() for row_LF, _ in TargetStates(target, tmp_path).of(texts[:2])]
    target.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    again = TargetStates(target, tmp_path)
    assert all(map(torch.equal, first[::-1], (row_LF for row_LF, _ in again.of(texts[1::-1]))))
    assert not forwards
    again.of(texts[:3])
    assert len(forwards) == 1
    path = again._path(texts[1])
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(BadInput, match=f"{path} .*: delete it, .*run the command again"):
        again.of(texts[:3])
    path.unlink()
    assert torch.equal(again.of(texts[:3])[1][0], first[1])


def test_states_of_other_targets_lie_apart(tmp_path, texts):
    """Other layers, another dtype: each finds its own in a folder that they share."""
    for target in (tiny_target("llama"), fused_target()):
        assert_right(TargetStates(target, tmp_path), texts[:2])
    narrow = Target(tiny_target("llama").model.bfloat16())
    TargetStates(narrow, tmp_path).of(texts[:1])
    TargetStates(narrow, tmp_path, "other weights").of(texts[:1])
    assert len(list(tmp_path.glob("*/*"))) == 4


# --- the head on its own predictions --------------------------------------------------------------


B, T = 3, 11


UNROLLED = ["eagle", "eagle, two layers", "eagle3, 37 tokens", "eagle3, four states normed"]


@pytest.fixture(scope="module", params=UNROLLED)
def head(request):
    return target_and_head(request.param)[1]


@pytest.fixture(scope="module")
def inputs(head):
    """Features [B, T, F] and embeddings [B, T, D]."""
    generator = torch.Generator().manual_seed(1)
    D = head.config.hidden_size
    F = D * head.config.num_fused
    return tuple(torch.randn(B, T, width, generator=generator) for width in (F, D))


def test_equals_one_root_at_a_time(head, inputs):
    assert_unrolled(head, *inputs, steps=7, tolerance=2e-5)


def test_gradient_flows_through_all_steps(head, inputs):
    """Every weight's gradient is the slow loop's, in which predictions are fed back undetached."""
    steps, root = 3, 5
    behind = ("norm.weight", "lm_head.weight")  # of EAGLE-3, they come behind the hidden states
    weights = {name: p for name, p in head.named_parameters() if name not in behind}
    gradients = []
    for last_BD in (
        unroll(head, *inputs, steps=steps)[-1, :, root + steps - 1],
        slow_unroll(head, *inputs, root, steps)[-1],
    ):
        weighted = (last_BD * torch.linspace(-1, 1, last_BD.shape[1])).sum()
        gradients.append(torch.autograd.grad(weighted, list(weights.values())))
    for name, got, wanted in zip(weights, *gradients, strict=True):
        assert wanted.abs().max() > 1e-3, name
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3, msg=name)

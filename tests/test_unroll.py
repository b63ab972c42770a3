"""The head on its own predictions at all positions at once, against one root at a time."""

import pytest
import torch
from tiny import prompt_tokens, tiny_head, tiny_target

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.training.unroll import unroll

B, T = 3, 11


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


@pytest.fixture(scope="module", params=[1, 2], ids=["1 layer", "2 layers"])
def head(target, request):
    return tiny_head(target, num_hidden_layers=request.param)


@pytest.fixture(scope="module")
def inputs(target):
    generator = torch.Generator().manual_seed(1)
    shape = (2, B, T, target.hidden_size)
    return tuple(torch.randn(shape, generator=generator))


def slow_unroll(head, feature_BTD, embedding_BTD, root: int, steps: int) -> torch.Tensor:
    """[steps, B, D]: true features up to `root`, then the head's own, each time from scratch."""
    feature_BLD, outputs = feature_BTD[:, : root + 1], []
    for _ in range(steps):
        L = feature_BLD.shape[1]
        hidden_BLD = head(feature_BLD, embedding_BTD[:, :L], torch.arange(L))
        outputs.append(hidden_BLD[:, -1])
        feature_BLD = torch.cat([feature_BLD, hidden_BLD[:, -1:]], dim=1)
    return torch.stack(outputs)


@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_equals_one_root_at_a_time(head, inputs, steps):
    """Entry [s-1, :, root+s-1] is the s-th level below `root`, wherever a root exists."""
    with torch.no_grad():
        hidden_SBTD = unroll(head, *inputs, steps=steps)
    assert hidden_SBTD.shape == (steps, B, T, inputs[0].shape[-1])
    for root in range(T):
        levels = min(steps, T - root)
        with torch.no_grad():
            wanted_SBD = slow_unroll(head, *inputs, root, levels)
        for s in range(levels):
            torch.testing.assert_close(
                hidden_SBTD[s, :, root + s], wanted_SBD[s], atol=2e-5, rtol=1e-5
            )


def test_first_step_is_the_plain_head(head, inputs):
    """Whatever the number of steps, the first one is a causal forward over true features."""
    with torch.no_grad():
        plain_BTD = head(*inputs, torch.arange(T))
        for steps in (1, 3):
            got_BTD = unroll(head, *inputs, steps=steps)[0]
            torch.testing.assert_close(got_BTD, plain_BTD, atol=1e-6, rtol=1e-6)


def test_later_text_changes_nothing_before(head, inputs):
    """Right padding needs no mask: entries depend on positions up to their own only."""
    feature_BTD, embedding_BTD = inputs
    cut = 6
    changed = [t.clone() for t in inputs]
    for t in changed:
        t[:, cut:] = 9.0
    with torch.no_grad():
        before = unroll(head, feature_BTD, embedding_BTD, steps=4)
        after = unroll(head, *changed, steps=4)
    torch.testing.assert_close(before[:, :, :cut], after[:, :, :cut], atol=1e-5, rtol=1e-5)
    assert (before[:, :, cut] - after[:, :, cut]).abs().max() > 1e-2


def test_gradient_flows_through_all_steps(head, inputs):
    """Every weight's gradient is the slow loop's, in which predictions are fed back undetached."""
    steps, root = 3, 5
    gradients = []
    for last_BD in (
        unroll(head, *inputs, steps=steps)[-1, :, root + steps - 1],
        slow_unroll(head, *inputs, root, steps)[-1],
    ):
        weighted = (last_BD * torch.linspace(-1, 1, last_BD.shape[1])).sum()
        gradients.append(torch.autograd.grad(weighted, list(head.parameters())))
    for (name, _), got, wanted in zip(head.named_parameters(), *gradients, strict=True):
        assert wanted.abs().max() > 1e-3, name
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3, msg=name)


def test_gradient_flows_into_true_features_up_to_the_root_only(head, inputs):
    """Level 3 at position 6 has root 4: it reads f_0 .. f_4 and never f_5, f_6."""
    feature_BTD = inputs[0].clone().requires_grad_()
    unroll(head, feature_BTD, inputs[1], steps=3)[2, :, 6].sum().backward()
    size_T = feature_BTD.grad.abs().amax(dim=(0, 2))
    assert (size_T[:5] > 1e-6).all() and size_T[5:].eq(0).all()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("length", [2, 9])
def test_equals_what_the_drafter_drafts(family, length):
    """A drafted chain, taken as text: level s of its root has the draft's logits, round by round.

    Training positions, embeddings (Gemma scales its own) and feature shift are those of decoding.
    """
    target, depth = tiny_target(family), 4
    head = tiny_head(target)
    drafter = EagleDrafter(head, target, TreeConfig(depth, depth, 1))
    text = prompt_tokens(length)
    target.start(64)
    drafter.reset(64)
    prompt_L = torch.tensor(text)
    logits_V, features_LD = target.prefill(prompt_L)
    root = logits_V.argmax()
    drafter.observe(features_LD, torch.cat([prompt_L[1:], root[None]]))
    text.append(root.item())
    for accepted in (3, 0, 4):  # drafts taken in this round, whatever the target thinks of them
        tree = drafter.propose()
        logits_NV, features_ND = target.verify(tree)
        check_chain(target, head, text, tree)
        path_A = torch.arange(accepted + 1)
        next_1 = logits_NV[accepted].argmax()[None]
        target.commit(path_A)
        new_A = torch.cat([tree.token_N[1 : accepted + 1], next_1])
        drafter.observe(features_ND[path_A], new_A)
        text += new_A.tolist()


@torch.inference_mode()
def check_chain(target, head, committed: list[int], tree) -> None:
    """Draft logits of the chain below `committed` against unroll over committed + chain."""
    depth = tree.size - 1
    assert tree.parent_N.tolist() == [0, *range(depth)]
    ids_L = torch.tensor(committed + tree.token_N[1:].tolist())
    features_LD = target.model.base_model(ids_L[None], use_cache=False).last_hidden_state[0]
    hidden_STD = unroll(head, features_LD[None, :-1], target.embed(ids_L[1:])[None], steps=depth)[
        :, 0
    ]
    for s in range(depth):  # level s + 1 below the last true feature, that of committed[-2]
        logits_V = target.logits(hidden_STD[s, len(committed) - 2 + s][None])[0]
        drafted_V = tree.draft_logits_EV[tree.draft_row_N[s]]
        torch.testing.assert_close(logits_V, drafted_V, atol=1e-4, rtol=1e-4)

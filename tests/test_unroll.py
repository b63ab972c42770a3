"""The head on its own predictions at all positions at once, against one root at a time."""

import pytest
import torch
from reference_unroll import slow_unroll
from tiny import prompt_tokens, target_and_head

from eagle_fsd.config import TreeConfig
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.unroll import unroll

B, T = 3, 11


@pytest.fixture(scope="module", params=["eagle", "eagle, two layers", "eagle3, 37 tokens"])
def head(request):
    return target_and_head(request.param)[1]


@pytest.fixture(scope="module")
def inputs(head):
    """Features [B, T, F] and embeddings [B, T, D]."""
    generator = torch.Generator().manual_seed(1)
    D = head.config.hidden_size
    F = 3 * D if head.config.eagle3 else D
    return tuple(torch.randn(B, T, width, generator=generator) for width in (F, D))


@torch.no_grad()
def test_equals_one_root_at_a_time(head, inputs):
    """Entry [s-1, :, root+s-1] is the s-th level below `root`, wherever a root exists; so nothing
    depends on later text, and right padding needs no mask."""
    steps = 7
    hidden_SBTD = unroll(head, *inputs, steps=steps)
    assert hidden_SBTD.shape == (steps, B, T, inputs[1].shape[-1])
    for root in range(T):
        levels = range(min(steps, T - root))
        wanted_SBD = slow_unroll(head, *inputs, root, len(levels))
        got_SBD = torch.stack([hidden_SBTD[s, :, root + s] for s in levels])
        torch.testing.assert_close(got_SBD, wanted_SBD, atol=2e-5, rtol=1e-5)


def test_gradient_flows_through_all_steps(head, inputs):
    """Every weight's gradient is the slow loop's, in which predictions are fed back undetached."""
    steps, root = 3, 5
    gradients = []
    for last_BD in (
        unroll(head, *inputs, steps=steps)[-1, :, root + steps - 1],
        slow_unroll(head, *inputs, root, steps)[-1],
    ):
        weighted = (last_BD * torch.linspace(-1, 1, last_BD.shape[1])).sum()
        gradients.append(torch.autograd.grad(weighted, [p for _, p in used(head)]))
    for (name, _), got, wanted in zip(used(head), *gradients, strict=True):
        assert wanted.abs().max() > 1e-3, name
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3, msg=name)


def used(head) -> list[tuple[str, torch.nn.Parameter]]:
    """What the hidden states depend on; norm and lm_head of EAGLE-3 come behind them."""
    behind = ("norm.weight", "lm_head.weight")
    return [(name, p) for name, p in head.named_parameters() if name not in behind]


@pytest.mark.parametrize("kind", ["eagle", "eagle3, 37 tokens", "eagle3, normed residual"])
@pytest.mark.parametrize(("family", "length"), [("llama", 2), ("gemma3", 9)])
def test_equals_what_the_drafter_drafts(kind, family, length):
    """A drafted chain, taken as text: level s of its root has the draft's logits, round by round.
    Positions, embeddings (Gemma scales its own) and feature shift are those of decoding."""
    target, head = target_and_head(kind, family=family)
    drafter = EagleDrafter(head, target, TreeConfig(4, 4, 1))
    text = prompt_tokens(length)
    target.start(64)
    drafter.reset(64)
    logits_V, features_LF = target.prefill(torch.tensor(text))
    text.append(logits_V.argmax().item())
    drafter.observe(features_LF, text[1:])
    for accepted in (3, 0, 4):  # drafts taken in this round, whatever the target thinks of them
        tree = drafter.propose()
        logits_NV, features_NF = target.verify(tree)
        check_chain(target, head, text, tree)
        path_A = torch.arange(accepted + 1)
        target.commit(path_A)
        new = [*tree.token_N[1 : accepted + 1].tolist(), logits_NV[accepted].argmax().item()]
        drafter.observe(features_NF[path_A], new)
        text += new


@torch.inference_mode()
def check_chain(target, head, committed: list[int], tree) -> None:
    """Draft logits of the chain below `committed` against unroll over committed + chain."""
    depth = tree.size - 1
    assert tree.parent_N.tolist() == [0, *range(depth)]
    ids_L = torch.tensor(committed + tree.token_N[1:].tolist())
    _, features_1LF = target.hidden_and_features(ids_L[None], use_cache=False)
    embedding_1LD = target.embed(ids_L[1:])[None]
    hidden_STD = unroll(head, features_1LF[:, :-1], embedding_1LD, steps=depth)[:, 0]
    for s in range(depth):  # level s + 1 below the last true feature, that of committed[-2]
        hidden_1D = hidden_STD[s, len(committed) - 2 + s][None]
        if head.lm_head is None:
            logits_R = target.logits(hidden_1D)[0]
        else:
            logits_R = head.lm_head(head.norm(hidden_1D))[0]
        drafted_R = tree.draft_logits_ER[tree.draft_row_N[s]]
        torch.testing.assert_close(logits_R, drafted_R, atol=1e-4, rtol=1e-4)

"""The EAGLE-3 head and reduced draft vocabularies, against forwards from the key table alone.

Axes: T positions, D hidden size, F = 3 D features, N nodes, E expanded nodes, V vocabulary,
R draft vocabulary.
"""

import math

import pytest
import reference_eagle3 as reference
import reference_head
import torch
from reference_tree import grow, paths
from test_decode import assert_same, by_generate, run
from tiny import prompt_tokens, tiny_head
from tiny_eagle3 import LAYERS, draft_tokens, fused_target, tiny_head3

from eagle_fsd.config import TreeConfig
from eagle_fsd.decoding.drafter import RootDrafter
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.models import DraftHead, Eagle3Head

CONFIGS = {
    "plain": {},
    "wide heads": {"head_dim": 14, "rope_theta": 500000.0, "rms_norm_eps": 0.3},
    "one kv head": {"num_key_value_heads": 1, "draft_vocab_size": 37},
    "biases": {"qkv_bias": True, "head_dim": 6, "draft_vocab_size": 101 - 1},
    "linear rope": {"rope_scaling": {"type": "linear", "factor": 4.0}, "num_key_value_heads": 4},
    "norm before residual": {"norm_before_residual": True, "draft_vocab_size": 11},
}


def settings(head: DraftHead) -> dict:
    return dict(vars(head.config))


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_two_steps_agree_with_the_reference(name):
    """fuse, a step, a second step fed with the un-normed output, and the logits of both."""
    head, T = tiny_head3(seed=3, scale=1.5, **CONFIGS[name]), 31
    tensors, config = head.state_dict(), settings(head)
    generator = torch.Generator().manual_seed(1)
    feature_TF = torch.randn(T, 120, generator=generator)
    embedding_TD, second_TD = torch.randn(2, T, 40, generator=generator)
    ours_TD, theirs_TD = head.fuse(feature_TF), reference.fuse(tensors, feature_TF)
    for step_TD in (embedding_TD, second_TD):
        ours_TD = head(ours_TD[None], step_TD[None], torch.arange(T))[0]
        theirs_TD = reference.forward(tensors, config, step_TD, theirs_TD)
        assert theirs_TD.std() > 0.5
        torch.testing.assert_close(ours_TD, theirs_TD, atol=1e-4, rtol=1e-4)
        want_TV = reference.logits(tensors, config, theirs_TD)
        if head.draft_token_R is not None:
            want_TV = want_TV[:, head.draft_token_R]
        torch.testing.assert_close(head.lm_head(head.normed(ours_TD)), want_TV, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 10000.0},
        {"rms_norm_eps": 1e-6},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"norm_before_residual": True},
    ],
)
def test_the_comparison_would_see_a_wrong_setting(change):
    """Each setting moves the reference's output by far more than the tolerance above."""
    head = tiny_head3(scale=1.5, **CONFIGS["wide heads"])
    tensors, config = head.state_dict(), settings(head)
    embedding_TD, hidden_TD = torch.randn(2, 31, 40, generator=torch.Generator().manual_seed(1))
    one_TD = reference.forward(tensors, config, embedding_TD, hidden_TD)
    other_TD = reference.forward(tensors, config | change, embedding_TD, hidden_TD)
    assert (one_TD - other_TD).abs().max() > 0.01


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding"])
def test_features_are_the_targets_hidden_states(family):
    """prefill and verify give hidden_states[2], [n // 2], [n - 3] of a plain forward on each path.

    The default layers of the head are the target's; hidden states of the embedding come first.
    """
    target = fused_target(family)
    assert tiny_head3().config.fused_layers(LAYERS) == (2, LAYERS // 2, LAYERS - 3) == (2, 3, 4)
    prompt = torch.tensor(prompt_tokens(11))
    target.start(40)
    _, features_LF = target.prefill(prompt)

    def plain(tokens: list[int]) -> torch.Tensor:
        states = target.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return torch.cat([states[i][0] for i in (2, 3, 4)], dim=-1)

    torch.testing.assert_close(features_LF, plain(prompt.tolist()), atol=1e-4, rtol=1e-4)
    tokens, parents = [5, 17, 3, 44, 17, 9], [0, 0, 0, 2, 3, 1]
    tree = DraftTree.from_parents(tokens, parents)
    logits_NV, features_NF = target.verify(tree)
    assert features_NF.shape == (6, 120) and logits_NV.shape == (6, 101)
    for node, path in enumerate(paths(tokens, parents)):
        want_F = plain([*prompt.tolist(), tokens[0], *path])[-1]
        torch.testing.assert_close(features_NF[node], want_F, atol=1e-4, rtol=1e-4)


HEADS = {
    "eagle3": {},
    "eagle3, own layers": {"feature_layers": (0, 6, 1), "head_dim": 14},
    "eagle3, 37 tokens": {"draft_vocab_size": 37, "num_key_value_heads": 1},
    "eagle3, normed residual": {"draft_vocab_size": 37, "norm_before_residual": True},
    "eagle": {},
    "eagle, 37 tokens": {"draft_vocab_size": 37},
}


def build(name: str, *, family: str = "llama", seed: int = 0) -> tuple[Target, DraftHead]:
    """A target and a head of HEADS that reads it."""
    changes = HEADS[name]
    if name.startswith("eagle3"):
        head = tiny_head3(seed=seed, **changes)
        return fused_target(family, seed=seed, layers=head.config.fused_layers(LAYERS)), head
    target = fused_target(family, seed=seed, layers=())
    head = tiny_head(target, seed=seed, **changes)
    if head.d2t is not None:
        head.set_draft_tokens(draft_tokens(37, seed=seed))
    return target, head


def slow_logits(target: Target, head: DraftHead, tokens_T, features_TF, drafts) -> torch.Tensor:
    """Draft logits after a path over the target's whole vocabulary, [V], by the references."""
    tensors, config = dict(head.state_dict()), settings(head)
    embed_VD = target.embed(torch.arange(101))
    if isinstance(head, Eagle3Head):
        output_D = reference.after_path(tensors, config, embed_VD, tokens_T, features_TF, drafts)
        return reference.logits(tensors, config, output_D[None])[0]
    output_D = reference_head.after_path(tensors, config, embed_VD, tokens_T, features_TF, drafts)
    full_V = target.logits(output_D[None])[0]
    if head.d2t is None:
        return full_V
    masked_V = torch.full_like(full_V, -math.inf)
    for token in head.draft_token_R.tolist():
        masked_V[token] = full_V[token]
    return masked_V


@torch.inference_mode()
@pytest.mark.parametrize("name", HEADS)
def test_trees_are_those_of_the_slow_version(name):
    """Over rounds of observe and propose: tokens, parents and draft rows == path by path.

    Rounds commit 1 to 4 tokens; the second sequence starts anew in the same drafter.
    """
    target, head = build(name, seed=4)
    drafter = EagleDrafter(head, target, TreeConfig(12, 3, 4))
    generator = torch.Generator().manual_seed(5)
    width = 40 * (3 if head.config.eagle3 else 1)
    for length in (1, 9):
        drafter.reset(40)
        tokens_T = torch.tensor(prompt_tokens(length + 1, seed=1)[1:])
        features_TF = torch.randn(length, width, generator=generator)
        drafter.observe(features_TF, tokens_T)
        for count in (4, 1):
            tree = drafter.propose()
            memo = {}

            def logits_of(path, at=(tokens_T, features_TF), memo=memo):
                if path not in memo:
                    memo[path] = slow_logits(target, head, *at, list(path))
                return memo[path]

            wanted = grow(logits_of, depth=3, top_k=4, drafts=12)
            node_paths = paths(tree.token_N.tolist(), tree.parent_N.tolist())
            assert set(node_paths[1:]) == set(wanted.kept) and node_paths[0] == ()
            if head.d2t is not None:
                drafted = set(tree.token_N[1:].tolist())
                assert drafted <= set(head.draft_token_R.tolist())
            full_NV = tree.draft_logits(torch.arange(tree.size), 101)
            checked = 0
            for path, row, ours_V in zip(node_paths, tree.draft_row_N, full_NV, strict=True):
                if row >= 0:
                    torch.testing.assert_close(ours_V, memo[path], atol=1e-4, rtol=1e-4)
                    checked += 1
            assert checked >= 3
            new_T = torch.randint(0, 101, (count,), generator=generator)
            new_TF = torch.randn(count, width, generator=generator)
            drafter.observe(new_TF, new_T)
            tokens_T = torch.cat([tokens_T, new_T])
            features_TF = torch.cat([features_TF, new_TF])


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
@pytest.mark.parametrize("name", HEADS)
def test_greedy_tree_is_one_at_a_time_is_generate(name, family):
    """Exact decoding with each head == the plain loop == transformers' generate, float32."""
    target, head = build(name, family=family, seed=6)
    prompt = prompt_tokens(9, seed=2)
    plain = run(Target(target.model), RootDrafter(), prompt)
    assert_same(target, prompt, plain.tokens, by_generate(target, prompt))
    for tree in (TreeConfig(15, 5, 4), TreeConfig(5, 5, 1)):
        got = run(target, EagleDrafter(head, target, tree), prompt)
        assert_same(target, prompt, got.tokens, plain.tokens)
        assert got.fuzzy_share == 0


def test_heads_and_targets_that_do_not_match_are_refused():
    """Features of other layers, and trees wider than the draft vocabulary."""
    with pytest.raises(ValueError, match=r"reads hidden states \(2, 3, 4\).*\(1, 2, 3\)"):
        EagleDrafter(tiny_head3(), fused_target(layers=(1, 2, 3)), TreeConfig(3, 2, 2))
    with pytest.raises(ValueError, match="fc.weight is .40, 120.*|reads hidden states"):
        EagleDrafter(tiny_head3(), fused_target(layers=()), TreeConfig(3, 2, 2))
    head = tiny_head3(draft_vocab_size=3)
    with pytest.raises(ValueError, match="branch_top_k 4 is more than the draft vocabulary 3"):
        EagleDrafter(head, fused_target(), TreeConfig(4, 1, 4))


@torch.inference_mode()
def test_half_precision_keeps_indices_whole():
    """`to(bfloat16)` leaves d2t and t2d as they are, and angles in float32."""
    head = tiny_head3(draft_vocab_size=37, rope_theta=500000.0)
    token_R = head.draft_token_R
    half = tiny_head3(draft_vocab_size=37, rope_theta=500000.0).to(torch.bfloat16)
    assert half.d2t.dtype == torch.int64 and half.t2d.dtype == torch.bool
    assert torch.equal(half.draft_token_R, token_R) and half.t2d.sum() == 37
    assert torch.equal(half.t2d.nonzero()[:, 0], token_R)
    assert half._rotary[0].inv_freq.dtype == torch.float32

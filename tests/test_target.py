"""The target: a tree in one forward == every path alone; the cache after commit == fresh prefill.

Axes: L prompt tokens, N tree nodes, V vocabulary, D hidden size, K keys.
"""

import random

import pytest
import torch
from tiny import (
    EAGER,
    FAMILIES,
    LAYERS,
    SIZES,
    WINDOW,
    fused_target,
    prompt_tokens,
    random_model,
    tiny_head3,
    tiny_target,
)
from transformers import (
    BloomConfig,
    CohereConfig,
    DynamicCache,
    Gemma3TextConfig,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MptConfig,
    Phi3Config,
    PretrainedConfig,
)

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.cache import TreeCache
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.engine.select import ENGINES
from eagle_fsd.engine.trial import check_tree_attention
from eagle_fsd.families.supported import TESTED_FAMILIES
from eagle_fsd.families.text_model import text_body

V = SIZES["vocab_size"]
LONG = 3 * WINDOW + 2  # a prefix longer than the sliding window


def random_tree(seed: int, *, size: int = 13) -> DraftTree:
    """Deep for even seeds (deeper than a window), wide for odd ones."""
    rng = random.Random(seed)
    reach = 2 if seed % 2 == 0 else size
    parents = [0] + [rng.randint(max(0, node - reach), node - 1) for node in range(1, size)]
    return DraftTree.from_parents([rng.randrange(V) for _ in range(size)], parents)


def path_to(tree: DraftTree, node: int) -> list[int]:
    return tree.token_N[tree.ancestor_NN[node]].tolist()


def largest_error(target: Target, prompt: list[int], tree: DraftTree) -> float:
    """Of logits and features, prefill's and the tree's, against each path alone in the model."""
    target.start(len(prompt) + tree.size)
    logits_V, features_LD = target.prefill(torch.tensor(prompt))
    logits_NV, features_ND = target.verify(tree)
    assert logits_NV.std() > 0.1  # a constant would prove nothing
    errors = []
    for node in range(tree.size):
        path = torch.tensor([prompt + path_to(tree, node)])
        alone = target.model(path, output_hidden_states=True)
        layers = target.feature_layers or (-1,)
        features_TD = torch.cat([alone.hidden_states[layer][0] for layer in layers], dim=-1)
        logits_TV = alone.logits[0]
        errors += [logits_NV[node] - logits_TV[-1], features_ND[node] - features_TD[-1]]
    last = len(prompt) - 1
    errors += [logits_V - logits_TV[last], features_LD - features_TD[: last + 1]]
    return max(error.abs().max().item() for error in errors)


@torch.inference_mode()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tree_logits_are_those_of_each_path_alone(family, attention):
    """Every node's logits and features == its root-to-node path alone in the unmodified model, for
    prefixes shorter than the sliding window, of its size and longer, and trees deeper than it."""
    for seed, length in enumerate([1, WINDOW, LONG, LONG + 1]):
        target = tiny_target(family, seed=seed, attention=attention)
        assert largest_error(target, prompt_tokens(length), random_tree(seed)) < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen2_sliding"])
def test_features_of_several_layers_are_the_targets_hidden_states(family):
    """hidden_states[2], [n // 2], [n - 3] for an EAGLE-3 head; the embedding's come first."""
    target = fused_target(family)
    assert target.feature_layers == tiny_head3().config.fused_layers(LAYERS) == (2, 3, 4)
    assert largest_error(target, prompt_tokens(11), random_tree(1)) < 2e-4


@torch.inference_mode()
@pytest.mark.parametrize("engine", EAGER)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_s_state_is_given_as_it_is_before_the_norm(family, engine):
    """Number n of a target with n layers; the user's model goes on giving the normed one."""
    model = random_model(FAMILIES[family](), seed=3)
    n, ids = model.config.num_hidden_layers, torch.tensor([prompt_tokens(7)])
    body = text_body(model)
    (final,) = [c for name, c in body.named_children() if "norm" in name or name == "ln_f"]
    entered = []
    hook = final.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
    plain = model(ids, output_hidden_states=True)
    hook.remove()
    target = Target(model, engine=ENGINES[engine](), feature_layers=(1, n))
    hidden_1TD, features_1TF = target.hidden_and_features(ids)
    want_1TF = torch.cat([plain.hidden_states[1], entered[0]], dim=-1)
    torch.testing.assert_close(features_1TF, want_1TF, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden_1TD, plain.hidden_states[-1], atol=1e-4, rtol=1e-4)
    again = model(ids, output_hidden_states=True).hidden_states[-1]
    assert torch.equal(again, plain.hidden_states[-1]) and not torch.equal(again, entered[0])


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_cache_after_commit_is_a_fresh_prefill(family):
    """After rounds of verify and commit, keys and values of every layer == a plain prefill's, and
    so are the next logits. Paths: a deep one, the root alone, one that skips siblings."""
    target, tokens = tiny_target(family, seed=1), prompt_tokens(LONG, seed=1)
    target.start(LONG + 40)
    target.prefill(torch.tensor(tokens))
    for seed, node in [(2, 12), (3, 0), (5, 11), (4, 10)]:
        tree = random_tree(seed)
        target.verify(tree)
        path_A = tree.ancestor_NN[node].nonzero()[:, 0]
        target.commit(path_A)
        tokens += path_to(tree, node)
        assert target.cache_length == target.cache.length == len(tokens)

        fresh = DynamicCache()  # without a config it keeps the whole rows of sliding layers
        target.model(torch.tensor([tokens]), past_key_values=fresh)
        for ours, theirs in zip(target.cache.layers, fresh.layers, strict=True):
            keys, values = ours.keys[:, :, : ours.length], ours.values[:, :, : ours.length]
            torch.testing.assert_close(keys, theirs.keys, atol=1e-4, rtol=0)
            torch.testing.assert_close(values, theirs.values, atol=1e-4, rtol=0)
        assert len(fresh.layers) == SIZES["num_hidden_layers"]
    root = DraftTree.from_parents([17], [0])
    want_V = target.model(torch.tensor([[*tokens, 17]])).logits[0, -1]
    torch.testing.assert_close(target.verify(root)[0][0], want_V, atol=1e-4, rtol=0)


def test_a_cache_gives_its_valid_rows():
    """Never the unwritten rest of the buffer; a lower length forgets the end; it does not grow."""
    cache, row_11R1 = TreeCache(2, capacity=9), torch.arange(12.0)[None, None, :, None]

    def append(first: int, end: int) -> list[float]:
        keys, values = cache.update(row_11R1[:, :, first:end], -row_11R1[:, :, first:end], 0)
        assert torch.equal(keys, -values)
        return keys.flatten().tolist()

    assert append(0, 4) == [0, 1, 2, 3] and append(4, 6) == [0, 1, 2, 3, 4, 5]
    assert cache.get_seq_length() == 6 and cache.get_mask_sizes(2, 0) == (8, 0)
    cache.length = 2
    assert append(7, 8) == [0, 1, 7]
    with pytest.raises(AssertionError, match="cache of 9 rows"):
        cache.length = 10
    with pytest.raises(RuntimeError, match="exceeds dimension"):
        append(0, 8)


HAND_TREE = ([3, 1, 4, 1, 5], [0, 0, 0, 2, 3])  # root: children 1, 2; 2: child 3; 3: child 4
FULL = [
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0],
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0],
    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1],
]
SLIDING = [  # window 7: the query's own position and six before it
    [0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0],
    [0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 0],
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1],
]


@pytest.mark.parametrize("family", ["llama", "mistral_sliding", "gemma3"])
def test_masks_written_by_hand(family):
    """8 committed rows and a tree of 5: which keys each node sees, and at which position it is. The
    masks are floats (a boolean one is silently wrong with eager attention)."""
    target = tiny_target(family)
    target.start(13)
    target.prefill(torch.tensor(prompt_tokens(8)))
    seen = {}
    target.model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True
    )
    target.verify(DraftTree.from_parents(*HAND_TREE))
    mask = seen["attention_mask"]
    masks = [(mask, FULL if family == "llama" else SLIDING)]
    if family == "gemma3":
        masks = [(mask["full_attention"], FULL), (mask["sliding_attention"], SLIDING)]
    for got, want in masks:
        assert got.shape == (1, 1, 5, 13) and got.dtype == torch.float32
        assert (got[0, 0] == 0).int().tolist() == want
        assert set(got.unique().tolist()) == {0.0, torch.finfo(torch.float32).min}
    assert seen["position_ids"].tolist() == [[8, 9, 9, 10, 11]]


@torch.inference_mode()
def test_logits_follow_a_softcap():
    """Gemma's final_logit_softcapping is applied by Target.logits as by the model."""
    config = Gemma3TextConfig(**SIZES, head_dim=14, final_logit_softcapping=1.5)
    target = Target(random_model(config, seed=0))
    assert largest_error(target, prompt_tokens(5), random_tree(1)) < 1e-5
    logits_1TV = target.model(torch.tensor([prompt_tokens(5)])).logits
    assert 1.0 < logits_1TV.abs().max() < 1.5


# --- families that the tests above do not cover go through trial.check_tree_attention -------------

# name -> config, and whether the check takes it; None: whichever it does must be right
OTHERS: dict[str, tuple[PretrainedConfig, bool | None]] = {
    "gpt_neox": (GPTNeoXConfig(**SIZES), True),
    "phi3": (Phi3Config(**SIZES, sliding_window=WINDOW), True),
    "cohere": (CohereConfig(**SIZES, logit_scale=0.3), True),
    # ALiBi: its bias depends on the row of a key, not on its position
    "mpt": (MptConfig(vocab_size=V, d_model=40, n_layers=2, n_heads=4, max_seq_len=251), False),
    # cannot run a tree at all
    "bloom": (BloomConfig(vocab_size=V, hidden_size=40, n_layer=2, n_head=4), False),
    # its local layers slide over 16 rows by row index, whatever mask and positions are given
    "gpt_neo": (
        GPTNeoConfig(
            vocab_size=V,
            hidden_size=40,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=16,
        ),
        None,
    ),
}
# Rotary positions of every type: name -> its parameters, and whether they are the same at every
# length of the text. The tree reaches over row 25, from which on some change.
HALF = SIZES["hidden_size"] // SIZES["num_attention_heads"] // 2
TURN = {"factor": 4.0, "original_max_position_embeddings": LONG + 2}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG_FACTORS = {"short_factor": [1.0] * HALF, "long_factor": [1.0 + i for i in range(HALF)]}
ROPES: dict[str, tuple[dict, bool]] = {
    "linear": ({"factor": 2.0}, True),
    "llama3": (TURN | BANDS, True),
    "yarn": (TURN, True),
    "proportional": ({"partial_rotary_factor": 0.5}, True),
    "dynamic": ({"factor": 4.0}, False),
}


@torch.inference_mode()
@pytest.mark.parametrize("rope", ROPES)
def test_rotary_positions_that_change_with_the_length_are_refused(rope):
    """Of a tested family too. Bug held down: with dynamic and longrope a tree that reaches over the
    length where they change was verified wrongly, at errors of more than 1 in logits."""
    parameters, taken = ROPES[rope]
    sizes = SIZES | {"max_position_embeddings": LONG + 2 if rope == "dynamic" else 251}
    config = LlamaConfig(**sizes, rope_parameters={"rope_type": rope, **parameters})
    target = Target(random_model(config, seed=0))
    target.max_positions = 251
    error = largest_error(target, prompt_tokens(LONG), random_tree(0))
    assert error < 1e-4 if taken else error > 0.1
    if taken:
        check_tree_attention(target)
    else:
        with pytest.raises(BadInput, match=f"'llama' has rope_type '{rope}'; .* default, linear"):
            check_tree_attention(target)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OTHERS)
def test_another_family_is_refused_by_name_or_right(name, dtype):
    """What the check takes verifies a long tree correctly; what cannot is refused by its name.

    Bugs held down: GPT-Neo's local window lies beyond the check's 11 tokens; MPT's ALiBi error on
    the check's small tree is within the tolerance for bfloat16, in which targets load.
    """
    assert {make().model_type for make in FAMILIES.values()} == set(TESTED_FAMILIES)
    config, taken = OTHERS[name]
    attention = "eager" if name in ("mpt", "bloom", "gpt_neo") else "sdpa"
    model = random_model(config, seed=0, attention=attention)
    try:
        target = Target(model.to(dtype))
        check_tree_attention(target)
    except BadInput as error:
        assert not taken and f"'{config.model_type}' are not supported" in str(error)
        return
    assert taken is not False and target.cache_length == 0
    exact = Target(model.float())  # the tree's own error, apart from rounding
    assert largest_error(exact, prompt_tokens(LONG), random_tree(1)) < 1e-4

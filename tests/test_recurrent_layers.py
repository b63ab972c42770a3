"""Recurrences over a tree == transformers' own functions along every path. Convolutions, which are
a model's whatever its recurrence: test_matrix.py.

Axes: N tree nodes, A nodes of a path, H heads, K size of keys, V size of values.
"""

import random

import pytest
import torch
from transformers.models.falcon_h1 import modeling_falcon_h1
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_next import modeling_qwen3_next

from eagle_fsd.decoding.tree import DraftTree
from eagle_fsd.recurrent.scans import delta_rule, mamba2

H, K, V = 6, 8, 5
SIZES = [2, 3, 7, 20, 41, 60]


def tree_of(size: int) -> DraftTree:
    rng = random.Random(size)
    parents = [0] + [rng.randrange(i) for i in range(1, size)]
    return DraftTree.from_parents([0] * size, parents)


def delta_case(decays: int, key_heads: int, step):
    """Of a recurrence: what it makes of a tree, its state before, and transformers' own function of
    any path, node by node."""

    def case(size: int, dtype: torch.dtype, tree: DraftTree):
        torch.manual_seed(size)
        g = -2 * torch.rand(1, size, H, decays)
        given = {
            "query": torch.randn(1, size, key_heads, K).to(dtype),
            "key": torch.randn(1, size, key_heads, K).to(dtype),
            "value": torch.randn(1, size, H, V).to(dtype),
            "g": g if decays > 1 else g[..., 0],
            "beta": torch.rand(1, size, H).to(dtype),
        }
        more = {"initial_state": torch.randn(1, H, K, V), "use_qk_l2norm_in_kernel": True}
        ours, stash = delta_rule(**given, **more, ancestor_NN=tree.ancestor_NN)

        def stock(node_A):
            part = {key: value[:, node_A] for key, value in given.items()}
            more["initial_state"] = more["initial_state"].clone()
            return step(**part, **more, output_final_state=True)

        return ours, stash, more["initial_state"], stock

    return case


def mamba_case(size: int, dtype: torch.dtype, tree: DraftTree):
    torch.manual_seed(size)
    given = {
        "hidden_states": torch.randn(1, size, H, V).to(dtype),
        "dt": torch.randn(1, size, H).to(dtype),
        "B": torch.randn(1, size, 2, K).to(dtype),
        "C": torch.randn(1, size, 2, K).to(dtype),
    }
    state = torch.randn(1, H, V, K)
    more = {"A": -torch.rand(H) * 3, "D": torch.randn(H), "dt_bias": torch.randn(H).to(dtype)}
    more["dt_softplus"] = True
    ours, stash = mamba2(**given, **more, initial_states=state, ancestor_NN=tree.ancestor_NN)

    def stock(node_A):
        part = {key: value[:, node_A] for key, value in given.items()} | more
        rest = {"chunk_size": 16, "initial_states": state.clone(), "return_final_states": True}
        return modeling_falcon_h1.mamba2_chunk_scan(**part, **rest)

    return ours, stash, state, stock


GATED = modeling_qwen3_next.torch_recurrent_gated_delta_rule
KIMI = modeling_kimi_linear.recurrent_kimi_delta_attention
CASES = {
    "gated delta net": delta_case(1, H, GATED),
    "gated delta net, shared keys": delta_case(1, 2, GATED),
    "kimi delta attention": delta_case(K, H, KIMI),
    "mamba2": mamba_case,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_every_node_of_a_tree_is_its_path_run_alone(name, dtype):
    """And the state after a commit of its path is the one that the path alone leaves. States are in
    float32 whatever the weights; outputs in bfloat16 may part by one unit in the last place."""
    worst = folded = 0.0
    for size in SIZES:
        tree = tree_of(size)
        ours, stash, state, stock = CASES[name](size, dtype, tree)
        for node in range(size):
            node_A = tree.ancestor_NN[node].nonzero()[:, 0]
            want, after = stock(node_A)
            after_ours = stash.folded(state, node_A)
            assert after_ours.dtype == after.dtype == torch.float32 or dtype != torch.float32
            scale = 1 if dtype == torch.float32 else max(1, want[0, -1].abs().max().item())
            worst = max(worst, (ours[0, node] - want[0, -1]).abs().max().item() / scale)
            folded = max(folded, (after_ours - after).abs().max().item())
    assert worst < (2e-5 if dtype == torch.float32 else 2**-7)
    assert folded < 2e-5

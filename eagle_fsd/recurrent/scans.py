"""The recurrences of gated delta nets and of Mamba-2 over the nodes of a draft tree.

A recurrence takes what transformers' own function of the layer takes, and computes every node's
output from the state before the tree, without a state of its own per node: the decay from a node to
one below it is the product over the path between them, and an ancestor's contribution is what the
node would have read of the state. The kept path is then folded into the state (Stash.folded).

Axes: N tree nodes, A nodes of a path, H heads, K size of keys, V size of values, D decays of a
head: one, or one for each channel of its keys (D is K).
"""

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Stash:
    """What a forward over a tree keeps for the fold of a path into the state.

    Attributes:
        decay_HND: logarithm of the decay from before the tree to behind each node.
        key_HNK, value_HNV: node i adds the outer product of its key and its value to the state.
        values_first: the layer's state is [1, H, V, K] and not [1, H, K, V].
    """

    decay_HND: torch.Tensor
    key_HNK: torch.Tensor
    value_HNV: torch.Tensor
    values_first: bool = False

    def folded(self, state: torch.Tensor, node_A: torch.Tensor) -> torch.Tensor:
        """The state behind a path's nodes, root first, from the one before the tree."""
        decay_HAD = self.decay_HND[:, node_A]
        key_HAK = self.key_HNK[:, node_A] * (decay_HAD[:, -1:] - decay_HAD).exp()
        added_HKV = key_HAK.transpose(1, 2) @ self.value_HNV[:, node_A]
        whole_HD1 = decay_HAD[:, -1].exp()[:, :, None]
        if self.values_first:
            return state * whole_HD1.transpose(1, 2) + added_HKV.transpose(1, 2)
        return state * whole_HD1 + added_HKV


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor,
    ancestor_NN: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    chunk_size: int = 0,
    output_final_state: bool = True,
    **_: object,
) -> tuple[torch.Tensor, Stash]:
    """Of gated delta nets, and of Kimi's delta attention with a decay for each channel.

    What a node adds to the state depends on what its ancestors have added: a triangular system,
    solved once for all nodes, since parents come before their children.

    Args:
        query, key: [1, N, heads of keys, K]; each serves as many heads of values.
        value: [1, N, H, V].
        g: logarithm of the decay at a node, [1, N, H] or [1, N, H, K].
        beta: [1, N, H].
        initial_state: [1, H, K, V] in float32.
        chunk_size, output_final_state: a tree is one chunk, and its state is folded later.
    """
    dtype, repeats = query.dtype, value.shape[2] // key.shape[2]
    query_HNK, key_HNK = (
        x[0].repeat_interleave(repeats, dim=1).transpose(0, 1).float() for x in (query, key)
    )
    value_HNV, beta_HN1 = value[0].transpose(0, 1).float(), beta[0].T[..., None].float()
    if use_qk_l2norm_in_kernel:
        query_HNK, key_HNK = (
            x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query_HNK, key_HNK)
        )
    query_HNK = query_HNK * query_HNK.shape[-1] ** -0.5
    step_HND = (g[..., None] if g.ndim == 3 else g)[0].transpose(0, 1).float()
    decay_HND = ancestor_NN.float() @ step_HND
    both_HMNN = torch.cat([key_HNK * beta_HN1, query_HNK], dim=1)
    both_HMNN = _decayed_products(both_HMNN, key_HNK, decay_HND, ancestor_NN)
    system_HNN, attention_HNN = both_HMNN.chunk(2, dim=1)
    state_HKV = initial_state[0].float()
    reach_HND = decay_HND.exp()
    wanted_HNV = beta_HN1 * (value_HNV - (reach_HND * key_HNK) @ state_HKV)
    # unitriangular: the diagonal, a node with itself, is taken as 1
    added_HNV = torch.linalg.solve_triangular(
        system_HNN, wanted_HNV, upper=False, unitriangular=True
    )
    output_HNV = (reach_HND * query_HNK) @ state_HKV + attention_HNN @ added_HNV
    output = output_HNV.transpose(0, 1)[None].to(dtype, memory_format=torch.contiguous_format)
    return output, Stash(decay_HND, key_HNK, added_HNV)


def mamba2(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803  (transformers' names)
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    *,
    initial_states: torch.Tensor,
    ancestor_NN: torch.Tensor,
    D: torch.Tensor | None = None,  # noqa: N803
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    chunk_size: int = 0,
    return_final_states: bool = True,
    **_: object,
) -> tuple[torch.Tensor, Stash]:
    """Of Mamba-2, where a node adds to the state without reading it.

    Args:
        hidden_states: [1, N, H, V].
        dt: [1, N, H].
        A: [H], below 0.
        B, C: [1, N, groups, K], what writes and what reads; each group serves as many heads.
        initial_states: [1, H, V, K] in float32.
        D: [H], a share of the input that goes by the state.
        chunk_size, return_final_states: as delta_rule's chunk_size and output_final_state.
    """
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = functional.softplus(dt)
    dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1])
    dt_HN1 = dt[0].T[..., None].float()
    input_HNV = hidden_states[0].transpose(0, 1).float()
    repeats = input_HNV.shape[0] // B.shape[2]
    key_HNK, query_HNK = (
        x[0].repeat_interleave(repeats, dim=1).transpose(0, 1).float() for x in (B, C)
    )
    decay_HN1 = ancestor_NN.float() @ (A.float()[:, None, None] * dt_HN1)
    value_HNV = dt_HN1 * input_HNV
    attention_HNN = _decayed_products(query_HNK, key_HNK, decay_HN1, ancestor_NN)
    state_HKV = initial_states[0].float().transpose(1, 2)
    output_HNV = decay_HN1.exp() * (query_HNK @ state_HKV) + attention_HNN @ value_HNV
    if D is not None:
        share = D.float()[:, None, None] if D.ndim == 1 else D.float()[:, None]
        output_HNV = output_HNV + share * input_HNV
    output = output_HNV.transpose(0, 1)[None].contiguous()
    return output, Stash(decay_HN1, key_HNK, value_HNV, values_first=True)


def _decayed_products(
    row_HMK: torch.Tensor,
    key_HNK: torch.Tensor,
    decay_HND: torch.Tensor,
    ancestor_NN: torch.Tensor,
) -> torch.Tensor:
    """Of every node's row with its ancestors' keys and its own, times the decay between the two;
    0 elsewhere. Several rows of a node stand one N apart."""
    count = row_HMK.shape[1] // key_HNK.shape[1]
    between_HNND = decay_HND[:, :, None] - decay_HND[:, None]
    # masked before the exponential, which overflows for nodes that are not ancestors
    between_HNND = between_HNND.masked_fill(~ancestor_NN[..., None], -torch.inf).exp()
    if between_HNND.shape[-1] == 1:
        return row_HMK @ key_HNK.transpose(1, 2) * between_HNND[..., 0].repeat(1, count, 1)
    return torch.cat(
        [
            torch.einsum("hik,hjk,hijk->hij", row_HNK, key_HNK, between_HNND)
            for row_HNK in row_HMK.chunk(count, dim=1)
        ],
        dim=1,
    )

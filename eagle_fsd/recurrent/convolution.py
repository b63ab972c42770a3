"""A causal depthwise convolution over the nodes of a draft tree.

Axes: C channels, K taps of the kernel, N tree nodes.
"""

import torch
from transformers.activations import ACT2FN


def node_windows(parent_N: torch.Tensor, taps: int) -> torch.Tensor:
    """For every node the columns that its output reads, oldest first, int64 [N, K]: its own, its
    parent's and so on up to the root, and then the text's before the root.

    A column counts in what RecurrentLayer gives the convolution: the last K inputs of the text,
    then those of the nodes.
    """
    before = torch.arange(-1, taps - 1, device=parent_N.device)  # of the text's columns
    before_C = torch.cat([before, parent_N + taps]).clamp_min(0)
    before_C[taps] = taps - 1  # what stands before the root is the text's last
    columns = [torch.arange(taps, taps + len(parent_N), device=parent_N.device)]
    for _ in range(taps - 1):
        columns.append(before_C[columns[-1]])
    return torch.stack(columns[::-1], dim=1)


def tree_convolution(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    window_NK: torch.Tensor,
) -> torch.Tensor:
    """In the calling convention of transformers' `causal_conv1d_fn`: from [1, C, K + N], which
    begins with the text's last K columns, to the nodes' [1, C, N]."""
    seen_CNK = hidden_states[0].to(weight.dtype)[:, window_NK]
    # in float32, as the kernels of half-precision numbers add up
    output_CN = (seen_CNK.float() * weight.float()[:, None]).sum(-1)
    if bias is not None:
        output_CN = output_CN + bias.float()[:, None]
    output_CN = output_CN.to(weight.dtype)
    if activation is not None:
        output_CN = ACT2FN[activation](output_CN)
    return output_CN[None].to(hidden_states.dtype)

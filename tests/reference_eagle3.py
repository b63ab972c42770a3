"""The EAGLE-3 head from its key table alone: matmuls over a state dict and config.json's dict.

Written from SafeAILab/EAGLE's checkpoint format, without
transformers, cache or masks from outside: one causal sequence at a time.

Axes: T positions, D hidden, F = 3 D features, H heads, G key/value heads, C channels of a head,
R draft vocabulary, V the target's vocabulary.
"""

import torch
from reference_head import rms_norm, rotate


def fuse(tensors: dict[str, torch.Tensor], feature_TF: torch.Tensor) -> torch.Tensor:
    """Three hidden states of the target as one, [T, D]."""
    return feature_TF @ tensors["fc.weight"].T


def forward(
    tensors: dict[str, torch.Tensor],
    config: dict,
    embedding_TD: torch.Tensor,
    hidden_TD: torch.Tensor,
) -> torch.Tensor:
    """The un-normed output at every position, [T, D]; input i is (embed(token i+1), hidden i)."""
    eps = config.get("rms_norm_eps", 1e-6)
    embedding_TD = rms_norm(embedding_TD, tensors["midlayer.input_layernorm.weight"], eps)
    normed_TD = rms_norm(hidden_TD, tensors["midlayer.hidden_norm.weight"], eps)
    residual_TD = normed_TD if config.get("norm_before_residual") else hidden_TD
    both_TX = torch.cat([embedding_TD, normed_TD], dim=-1)
    x_TD = residual_TD + attention(tensors, config, both_TX)
    y_TD = rms_norm(x_TD, tensors["midlayer.post_attention_layernorm.weight"], eps)
    gate_TM = torch.nn.functional.silu(y_TD @ tensors["midlayer.mlp.gate_proj.weight"].T)
    up_TM = y_TD @ tensors["midlayer.mlp.up_proj.weight"].T
    return x_TD + (gate_TM * up_TM) @ tensors["midlayer.mlp.down_proj.weight"].T


def attention(
    tensors: dict[str, torch.Tensor], config: dict, both_TX: torch.Tensor
) -> torch.Tensor:
    """Causal attention over rows of width 2 D, one head at a time; positions are 0, 1, 2, ..."""
    T, H = both_TX.shape[0], config["num_attention_heads"]
    G = config.get("num_key_value_heads") or H
    C = config.get("head_dim") or config["hidden_size"] // H

    def project(name: str) -> torch.Tensor:
        y_TX = both_TX @ tensors[f"midlayer.self_attn.{name}_proj.weight"].T
        if config.get("qkv_bias", False):
            y_TX = y_TX + tensors[f"midlayer.self_attn.{name}_proj.bias"]
        return y_TX

    query_TX, key_TX, value_TX = project("q"), project("k"), project("v")
    future_TT = torch.ones(T, T).triu(1).bool()
    out = []
    for head in range(H):
        group = head // (H // G)
        q_TC = rotate(query_TX[:, head * C : (head + 1) * C], config)
        k_TC = rotate(key_TX[:, group * C : (group + 1) * C], config)
        v_TC = value_TX[:, group * C : (group + 1) * C]
        score_TT = (q_TC @ k_TC.T / C**0.5).masked_fill(future_TT, -torch.inf)
        out.append(torch.softmax(score_TT, dim=-1) @ v_TC)
    return torch.cat(out, dim=-1) @ tensors["midlayer.self_attn.o_proj.weight"].T


def logits(tensors: dict[str, torch.Tensor], config: dict, hidden_ND: torch.Tensor) -> torch.Tensor:
    """Draft logits over the target's vocabulary, [N, V]; -inf for tokens it cannot draft."""
    normed_ND = rms_norm(hidden_ND, tensors["norm.weight"], config.get("rms_norm_eps", 1e-6))
    row_NR = normed_ND @ tensors["lm_head.weight"].T
    if "d2t" not in tensors:
        return row_NR
    full_NV = torch.full((row_NR.shape[0], config["vocab_size"]), -torch.inf)
    for draft, offset in enumerate(tensors["d2t"].tolist()):
        full_NV[:, draft + offset] = row_NR[:, draft]
    return full_NV


def after_path(
    tensors: dict[str, torch.Tensor],
    config: dict,
    embed_VD: torch.Tensor,
    next_token_T: torch.Tensor,
    feature_TF: torch.Tensor,
    drafts: list[int],
) -> torch.Tensor:
    """The un-normed output after the committed sequence and then `drafts`, [D], without any cache.

    Example: features f0 f1, next tokens t1 t2 (t2 the root) and drafts [c, d] run (t1, fc f0)
    (t2, fc f1) (c, g) (d, h): g is the output after (t2, fc f1), h the output after (c, g).
    """
    tokens, hidden_TD = next_token_T.tolist(), fuse(tensors, feature_TF)
    output_TD = forward(tensors, config, embed_VD[tokens], hidden_TD)
    for draft in drafts:
        tokens = [*tokens, draft]
        hidden_TD = torch.cat([hidden_TD, output_TD[-1:]])
        output_TD = forward(tensors, config, embed_VD[tokens], hidden_TD)
    return output_TD[-1]

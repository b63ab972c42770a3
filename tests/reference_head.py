"""The heads from their key tables alone: matmuls over a state dict and config.json's dict.

Written from SafeAILab/EAGLE's checkpoint format (keys, absent config keys, order of embedding and
feature), without transformers, cache or masks from outside: one causal sequence at a time.

Axes: T positions, D hidden, F features (D, or 3 D for EAGLE-3), X what an attention reads, H heads,
G key/value heads, C channels of a head, R draft vocabulary, V the target's vocabulary.
"""

import torch

Tensors = dict[str, torch.Tensor]


def is_eagle3(tensors: Tensors) -> bool:
    return "midlayer.hidden_norm.weight" in tensors


def fuse(tensors: Tensors, config: dict, feature_TF: torch.Tensor) -> torch.Tensor:
    """The target's features as the head's hidden, [T, D]."""
    if not is_eagle3(tensors):
        return feature_TF
    eps = config.get("rms_norm_eps", 1e-6)
    if "input_norm.weight" in tensors:  # norm_before_fc: all states as one vector
        feature_TF = rms_norm(feature_TF, tensors["input_norm.weight"], eps)
    if "fc_norm.0.weight" in tensors:  # each state by itself
        norms, first = inside("fc_norm.", tensors), 0
        for i in range(len(norms)):
            last = first + len(norms[f"{i}.weight"])
            state_TD = rms_norm(feature_TF[:, first:last], norms[f"{i}.weight"], eps)
            feature_TF = torch.cat([feature_TF[:, :first], state_TD, feature_TF[:, last:]], -1)
            first = last
    # without fc: the target's last hidden state as it is
    return feature_TF @ tensors["fc.weight"].T if "fc.weight" in tensors else feature_TF


def forward(
    tensors: Tensors, config: dict, embedding_TD: torch.Tensor, hidden_TD: torch.Tensor
) -> torch.Tensor:
    """What the next step reads, at every position, [T, D]: of EAGLE-3 the un-normed output, unless
    norm_output; input i is (embed(token i+1), hidden i)."""
    eps = config.get("rms_norm_eps", 1e-6)
    if is_eagle3(tensors):
        layer = inside("midlayer.", tensors)
        embedding_TD = rms_norm(embedding_TD, layer["input_layernorm.weight"], eps)
        normed_TD = rms_norm(hidden_TD, layer["hidden_norm.weight"], eps)
        residual_TD = normed_TD if config.get("norm_before_residual") else hidden_TD
        both_TX = torch.cat([embedding_TD, normed_TD], dim=-1)
        x_TD = mlp(layer, config, residual_TD + attention(layer, config, both_TX))
        for i in range(1, config.get("num_hidden_layers", 1)):
            x_TD = further_layer(inside(f"layers.{i}.", tensors), config, x_TD)
        normed = config.get("norm_output")
        return rms_norm(x_TD, tensors["norm.weight"], eps) if normed else x_TD
    x_TD = torch.cat([embedding_TD, hidden_TD], dim=-1) @ tensors["fc.weight"].T
    if config.get("bias", True):
        x_TD = x_TD + tensors["fc.bias"]
    for i in range(config.get("num_hidden_layers", 1)):
        layer = inside(f"layers.{i}.", tensors)
        if i:
            x_TD = further_layer(layer, config, x_TD)
        else:
            x_TD = mlp(layer, config, x_TD + attention(layer, config, x_TD))
    return x_TD


def further_layer(layer: Tensors, config: dict, x_TD: torch.Tensor) -> torch.Tensor:
    """A language model's own kind of layer."""
    y_TD = rms_norm(x_TD, layer["input_layernorm.weight"], config.get("rms_norm_eps", 1e-6))
    return mlp(layer, config, x_TD + attention(layer, config, y_TD))


def inside(prefix: str, tensors: Tensors) -> Tensors:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def mlp(layer: Tensors, config: dict, x_TD: torch.Tensor) -> torch.Tensor:
    eps = config.get("rms_norm_eps", 1e-6)
    y_TD = rms_norm(x_TD, layer["post_attention_layernorm.weight"], eps)
    gate_TM = torch.nn.functional.silu(y_TD @ layer["mlp.gate_proj.weight"].T)
    up_TM = y_TD @ layer["mlp.up_proj.weight"].T
    return x_TD + (gate_TM * up_TM) @ layer["mlp.down_proj.weight"].T


def attention(layer: Tensors, config: dict, x_TX: torch.Tensor) -> torch.Tensor:
    """Causal attention, one head at a time; positions are 0, 1, 2, ..."""
    T, H = x_TX.shape[0], config["num_attention_heads"]
    G = config.get("num_key_value_heads") or H
    C = config.get("head_dim") or config["hidden_size"] // H

    def project(name: str) -> torch.Tensor:
        y_TX = x_TX @ layer[f"self_attn.{name}_proj.weight"].T
        if config.get("qkv_bias", False):
            y_TX = y_TX + layer[f"self_attn.{name}_proj.bias"]
        return y_TX

    query_TX, key_TX, value_TX = project("q"), project("k"), project("v")
    future_TT = torch.ones(T, T).triu(1).bool()
    out = []
    for head in range(H):
        group = head // (H // G)
        q_TC = query_TX[:, head * C : (head + 1) * C]
        k_TC = key_TX[:, group * C : (group + 1) * C]
        if "self_attn.q_norm.weight" in layer:  # every head by itself, the same weights for all
            eps = config.get("rms_norm_eps", 1e-6)
            q_TC = rms_norm(q_TC, layer["self_attn.q_norm.weight"], eps)
            k_TC = rms_norm(k_TC, layer["self_attn.k_norm.weight"], eps)
        q_TC, k_TC = rotate(q_TC, config), rotate(k_TC, config)
        v_TC = value_TX[:, group * C : (group + 1) * C]
        score_TT = (q_TC @ k_TC.T / C**0.5).masked_fill(future_TT, -torch.inf)
        out.append(torch.softmax(score_TT, dim=-1) @ v_TC)
    return torch.cat(out, dim=-1) @ layer["self_attn.o_proj.weight"].T


def rotate(x_TC: torch.Tensor, config: dict) -> torch.Tensor:
    """Rotary embedding: channel c is paired with channel c + C/2."""
    T, C = x_TC.shape
    # as upstream's file says it, or transformers' config
    theta = (config.get("rope_parameters") or config).get("rope_theta", 10000.0)
    angle_TF = torch.arange(T)[:, None] / theta ** (torch.arange(0, C, 2) / C)
    cos_TF, sin_TF = angle_TF.cos(), angle_TF.sin()
    a_TF, b_TF = x_TC[:, : C // 2], x_TC[:, C // 2 :]
    return torch.cat([a_TF * cos_TF - b_TF * sin_TF, b_TF * cos_TF + a_TF * sin_TF], dim=-1)


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    return weight_D * x_TD / (x_TD.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def logits(tensors: Tensors, config: dict, hidden_TD: torch.Tensor) -> torch.Tensor:
    """EAGLE-3's draft logits over the target's vocabulary, [T, V]; -inf outside R."""
    row_TR = normed(tensors, config, hidden_TD) @ tensors["lm_head.weight"].T
    if "d2t" not in tensors:
        return row_TR
    full_TV = torch.full((row_TR.shape[0], config["vocab_size"]), -torch.inf)
    for draft, offset in enumerate(tensors["d2t"].tolist()):
        full_TV[:, draft + offset] = row_TR[:, draft]
    return full_TV


def normed(tensors: Tensors, config: dict, hidden_TD: torch.Tensor) -> torch.Tensor:
    """What EAGLE-3's lm_head reads: with norm_output the norm is behind it already."""
    if config.get("norm_output"):
        return hidden_TD
    return rms_norm(hidden_TD, tensors["norm.weight"], config.get("rms_norm_eps", 1e-6))


def after_path(
    tensors: Tensors,
    config: dict,
    embed_VD: torch.Tensor,
    next_token_T: torch.Tensor,
    feature_TF: torch.Tensor,
    drafts: list[int],
) -> torch.Tensor:
    """The output after the committed sequence and then `drafts`, [D], without any cache.

    Example: features f0 f1, next tokens t1 t2 (t2 the root) and drafts [c, d] run (t1, fuse f0)
    (t2, fuse f1) (c, g) (d, h): g is the output after (t2, fuse f1), h the output after (c, g).
    """
    tokens, hidden_TD = next_token_T.tolist(), fuse(tensors, config, feature_TF)
    output_TD = forward(tensors, config, embed_VD[tokens], hidden_TD)
    for draft in drafts:
        tokens = [*tokens, draft]
        hidden_TD = torch.cat([hidden_TD, output_TD[-1:]])
        output_TD = forward(tensors, config, embed_VD[tokens], hidden_TD)
    return output_TD[-1]

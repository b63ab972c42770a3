"""The EAGLE-1/2 head from its key table alone: matmuls over a state dict and config.json's dict.

Written from SafeAILab/EAGLE's checkpoint format (keys, absent config keys, order of embedding and
feature), without transformers, cache or masks from outside: one causal sequence at a time.

Axes: T positions, D hidden, H heads, G key/value heads, C channels of a head.
"""

import torch


def forward(
    tensors: dict[str, torch.Tensor],
    config: dict,
    embedding_TD: torch.Tensor,
    feature_TD: torch.Tensor,
) -> torch.Tensor:
    """The head's output at every position, [T, D]; input i is (embed(token i+1), feature i)."""
    x_TD = torch.cat([embedding_TD, feature_TD], dim=-1) @ tensors["fc.weight"].T
    if config.get("bias", True):
        x_TD = x_TD + tensors["fc.bias"]
    for i in range(config.get("num_hidden_layers", 1)):
        layer = {k[len(f"layers.{i}.") :]: v for k, v in tensors.items() if f"layers.{i}." in k}
        x_TD = decoder_layer(layer, config, x_TD)
    return x_TD


def decoder_layer(layer: dict[str, torch.Tensor], config: dict, x_TD: torch.Tensor) -> torch.Tensor:
    """A Llama layer; the first one of a head has no norm before its attention."""
    eps = config.get("rms_norm_eps", 1e-6)
    y_TD = x_TD
    if "input_layernorm.weight" in layer:
        y_TD = rms_norm(y_TD, layer["input_layernorm.weight"], eps)
    x_TD = x_TD + attention(layer, config, y_TD)
    y_TD = rms_norm(x_TD, layer["post_attention_layernorm.weight"], eps)
    gate_TM = torch.nn.functional.silu(y_TD @ layer["mlp.gate_proj.weight"].T)
    up_TM = y_TD @ layer["mlp.up_proj.weight"].T
    return x_TD + (gate_TM * up_TM) @ layer["mlp.down_proj.weight"].T


def attention(layer: dict[str, torch.Tensor], config: dict, x_TD: torch.Tensor) -> torch.Tensor:
    """Causal attention, one head at a time; positions are 0, 1, 2, ..."""
    T, D = x_TD.shape
    H = config["num_attention_heads"]
    G = config.get("num_key_value_heads") or H
    C = D // H

    def project(name: str) -> torch.Tensor:
        y_TX = x_TD @ layer[f"self_attn.{name}_proj.weight"].T
        if config.get("qkv_bias", False):
            y_TX = y_TX + layer[f"self_attn.{name}_proj.bias"]
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
    return torch.cat(out, dim=-1) @ layer["self_attn.o_proj.weight"].T


def rotate(x_TC: torch.Tensor, config: dict) -> torch.Tensor:
    """Rotary embedding: channel c is paired with channel c + C/2."""
    T, C = x_TC.shape
    scaling = config.get("rope_scaling")
    factor = scaling["factor"] if scaling else 1.0  # "linear" divides the positions
    theta = config.get("rope_theta", 10000.0)
    angle_TF = (torch.arange(T) / factor)[:, None] / theta ** (torch.arange(0, C, 2) / C)
    cos_TF, sin_TF = angle_TF.cos(), angle_TF.sin()
    a_TF, b_TF = x_TC[:, : C // 2], x_TC[:, C // 2 :]
    return torch.cat([a_TF * cos_TF - b_TF * sin_TF, b_TF * cos_TF + a_TF * sin_TF], dim=-1)


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
    return weight_D * x_TD / (x_TD.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def after_path(
    tensors: dict[str, torch.Tensor],
    config: dict,
    embed_VD: torch.Tensor,
    next_token_T: torch.Tensor,
    feature_TD: torch.Tensor,
    drafts: list[int],
) -> torch.Tensor:
    """The head's output after the committed sequence and then `drafts`, [D], without any cache.

    Example: features f0 f1, next tokens t1 t2 (t2 the root) and drafts [c, d] run
    (t1, f0) (t2, f1) (c, g) (d, h): g is the output after (t2, f1), h the output after (c, g).
    """
    tokens, features_TD = next_token_T.tolist(), feature_TD
    output_TD = forward(tensors, config, embed_VD[tokens], features_TD)
    for draft in drafts:
        tokens = [*tokens, draft]
        features_TD = torch.cat([features_TD, output_TD[-1:]])
        output_TD = forward(tensors, config, embed_VD[tokens], features_TD)
    return output_TD[-1]

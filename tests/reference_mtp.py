"""An MTP layer from the key table and transformers' decoder layer alone: the whole sequence at
every step, path by path, without a cache or masks from outside.

The decoder layer is the last of the model that the checkpoint was written from (tiny_mtp.py), never
one that was read from a file.

Axes: T positions, D hidden size, V vocabulary.
"""

import torch
from tiny_mtp import Written


def rms_norm(written: Written, layer: int, name: str, x_TD: torch.Tensor) -> torch.Tensor:
    weight_D = written.own[layer][name] + written.family.unit
    eps = written.longer.config.rms_norm_eps
    return weight_D * x_TD / (x_TD.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def forward(
    written: Written, layer: int, embedding_TD: torch.Tensor, hidden_TD: torch.Tensor
) -> torch.Tensor:
    """What comes out of the decoder layer, not normed, [T, D]."""
    parts = [
        rms_norm(written, layer, "enorm", embedding_TD),
        rms_norm(written, layer, "hnorm", hidden_TD),
    ]
    if written.family.hidden_first:
        parts.reverse()
    x_1TD = (torch.cat(parts, dim=-1) @ written.own[layer]["eh_proj"].T)[None]
    body, T = written.longer.model, x_1TD.shape[1]
    # one further than ours: the token's own place, as transformers counts
    positions = body.rotary_emb(x_1TD, position_ids=torch.arange(1, T + 1)[None])
    causal = torch.full((T, T), torch.finfo(torch.float32).min).triu(1)[None, None]
    decoder_layer = body.layers[layer - len(written.own)]
    return decoder_layer(x_1TD, attention_mask=causal, position_embeddings=positions)[0]


def after_path(
    written: Written,
    next_token_T: torch.Tensor,
    feature_TD: torch.Tensor,
    drafts: tuple[int, ...],
    *,
    own: str = "normed",
) -> torch.Tensor:
    """Logits after the committed sequence and then `drafts`, [V].

    Each layer runs over as many tokens as there are features, shifted by one from layer to layer;
    the last one then goes on, a token longer at every step.

    Example: features f0 f1, next tokens t1 t2 (t2 the root) and drafts (c, d). Of one layer: (t1,
    f0) (t2, f1) give g after the second; (t1, f0) (t2, f1) (c, g) give h; then (d, h) behind them.
    Of two: layer 0 gives g0 g1 of (t1, f0) (t2, f1); layer 1 gives h of (t2, g0) (c, g1), and then
    what comes of (t2, g0) (c, g1) (d, h).
    """
    tokens, hidden_TD = [*next_token_T.tolist(), *drafts], feature_TD
    model, T, output_TD = written.longer, len(next_token_T), None
    for depth in range(len(drafts) + 1):
        layer = min(depth, len(written.own) - 1)
        if depth and depth == layer:
            hidden_TD = output_TD
        elif depth:
            hidden_TD = torch.cat([hidden_TD, output_TD[-1:]])
        ids = torch.tensor(tokens[layer : depth + T])
        raw_TD = forward(written, layer, model.model.embed_tokens(ids), hidden_TD)
        normed_TD = rms_norm(written, layer, "norm", raw_TD)
        output_TD = raw_TD if own == "raw" else normed_TD
    return normed_TD[-1] @ model.lm_head.weight.T

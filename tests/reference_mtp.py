"""An MTP layer from the key table and transformers' decoder layer alone: the whole sequence at
every step, path by path, without a cache or masks from outside.

The decoder layer is the last of the model that the checkpoint was written from (tiny_mtp.py), never
one that was read from a file.

Axes: T positions, D hidden size, V vocabulary.
"""

import torch
from tiny_mtp import Written


def rms_norm(written: Written, name: str, x_TD: torch.Tensor) -> torch.Tensor:
    weight_D = written.around[name] + written.family.unit
    eps = written.longer.config.rms_norm_eps
    return weight_D * x_TD / (x_TD.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def forward(written: Written, embedding_TD: torch.Tensor, hidden_TD: torch.Tensor) -> torch.Tensor:
    """What comes out of the decoder layer, not normed, [T, D]."""
    parts = [rms_norm(written, "enorm", embedding_TD), rms_norm(written, "hnorm", hidden_TD)]
    if written.family.hidden_first:
        parts.reverse()
    x_1TD = (torch.cat(parts, dim=-1) @ written.around["eh_proj"].T)[None]
    body, T = written.longer.model, x_1TD.shape[1]
    # one further than ours: the token's own place, as transformers counts
    positions = body.rotary_emb(x_1TD, position_ids=torch.arange(1, T + 1)[None])
    causal = torch.full((T, T), torch.finfo(torch.float32).min).triu(1)[None, None]
    return body.layers[-1](x_1TD, attention_mask=causal, position_embeddings=positions)[0]


def after_path(
    written: Written,
    next_token_T: torch.Tensor,
    feature_TD: torch.Tensor,
    drafts: tuple[int, ...],
    *,
    own: str = "normed",
) -> torch.Tensor:
    """Logits after the committed sequence and then `drafts`, [V].

    Example: features f0 f1, next tokens t1 t2 (t2 the root) and drafts (c, d): (t1, f0) (t2, f1)
    give g after the second; (t1, f0) (t2, f1) (c, g) give h; then (d, h) behind them.
    """
    tokens, hidden_TD = [*next_token_T.tolist(), *drafts], feature_TD
    model, T = written.longer, len(next_token_T)
    for depth in range(len(drafts) + 1):
        ids = torch.tensor(tokens[: depth + T])
        raw_TD = forward(written, model.model.embed_tokens(ids), hidden_TD)
        normed_TD = rms_norm(written, "norm", raw_TD)
        output_TD = raw_TD if own == "raw" else normed_TD
        hidden_TD = torch.cat([hidden_TD, output_TD[-1:]])
    return normed_TD[-1] @ model.lm_head.weight.T

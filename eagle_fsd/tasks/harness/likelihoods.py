"""Log-likelihoods: the target's own, of continuations that share a forward.

Axes: L tokens of a sequence, C rows of a block, K continuations, V vocabulary, D hidden size.
"""

import torch

from eagle_fsd.decoding.target import Target

BLOCK_ROWS = 256  # of logits at once: a row is as wide as the vocabulary


@torch.inference_mode()
def rate(
    target: Target, tokens: tuple[int, ...], continuations: list[list[int]]
) -> list[tuple[float, bool]]:
    """Log-probability of each continuation, nats, and whether each of its tokens is the argmax.

    A continuation's last token comes right behind `tokens`, the others are the end of `tokens`.

    Example: behind tokens 5 6 7, [8] is rated by the logits after 7, [7, 9] by those after 6 and 7.
    """
    ids_1L = torch.tensor([tokens], device=target.device)
    hidden_1LD, _ = target.hidden_and_features(ids_1L, use_cache=False)
    longest = max(map(len, continuations))
    rows = [[-1] * (longest - len(continuation)) + continuation for continuation in continuations]
    token_KL = torch.tensor(rows, device=target.device)  # -1: before the continuation
    logp_K = torch.zeros(len(rows), device=target.device)
    greedy_K = torch.ones(len(rows), dtype=torch.bool, device=target.device)
    blocks = zip(
        hidden_1LD[0, -longest:].split(BLOCK_ROWS), token_KL.split(BLOCK_ROWS, 1), strict=True
    )
    for hidden_CD, token_KC in blocks:
        logp_CV = torch.log_softmax(target.logits(hidden_CD), dim=-1, dtype=torch.float32)
        row_C = torch.arange(len(logp_CV), device=target.device)
        logp_KC = logp_CV[row_C, token_KC.clamp_min(0)]
        own_KC = token_KC >= 0
        logp_K += torch.where(own_KC, logp_KC, 0.0).sum(1)
        greedy_K &= ((logp_CV.argmax(-1) == token_KC) | ~own_KC).all(1)
    return list(zip(logp_K.tolist(), greedy_K.tolist(), strict=True))

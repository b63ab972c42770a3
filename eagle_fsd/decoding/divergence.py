"""Divergences between the target's and the draft's next-token distributions.

A value is float32, in nats, clamped at 0. Logits of -inf are zero probabilities: 0 log 0 = 0, and a
term with mass where the other side has none is infinite. NaN stays NaN. The names say the
direction: kl_target_draft = KL(target || draft) = sum target log(target/draft).

A drafter with a reduced vocabulary gives its rows over that vocabulary only: its probability
elsewhere is 0, and the target's mass there counts, as one sum.

Axes: ... any leading axes, V vocabulary, R draft vocabulary.
"""

import math
from collections.abc import Callable

import torch

LN2 = math.log(2)

# --- over log-probabilities of both, [..., R], of the draft's tokens; `outside`: the target's mass
#     elsewhere


def kl_target_draft(log_target_R, log_draft_R, outside):
    """KL(target || draft), in [0, inf]; infinite where the draft gives zero to a possible token."""
    return _kl(log_target_R, log_draft_R).clamp_min(0) + _infinite(outside)


def kl_draft_target(log_target_R, log_draft_R, outside):
    """KL(draft || target), in [0, inf]."""
    return _kl(log_draft_R, log_target_R).clamp_min(0)


def js(log_target_R, log_draft_R, outside):
    """Jensen-Shannon: 1/2 [KL(target || m) + KL(draft || m)], m their mean; in [0, ln 2]."""
    target, draft = log_target_R.exp(), log_draft_R.exp()
    # the smallest normal number stands for 0, so that 0 / 0 becomes 0 / tiny
    mean = ((target + draft) * 0.5).clamp_min(torch.finfo(torch.float32).tiny)
    value = torch.xlogy(target, target / mean) + torch.xlogy(draft, draft / mean)
    return (0.5 * (value.sum(-1) + outside * LN2)).clamp(0, LN2)  # outside: p log(p / (p/2))


def tv(log_target_R, log_draft_R, outside):
    """Total variation: 1/2 sum |target - draft|, in [0, 1]."""
    return (0.5 * ((log_target_R.exp() - log_draft_R.exp()).abs().sum(-1) + outside)).clamp_max(1)


def js_reference(log_target_R, log_draft_R, outside):
    """What the FSD authors' code calls js_div: 1/2 [KL(m || target) + KL(m || draft)], in [0, inf].

    The arguments are swapped against Jensen-Shannon: it is unbounded, and infinite where one side
    is zero. Close to 0 it agrees with `js`; thresholds do not carry over otherwise
    (github.com/maxholsman/fsd e92a157).
    """
    mean_R = torch.logaddexp(log_target_R, log_draft_R) - LN2
    value = 0.5 * (_kl(mean_R, log_target_R) + _kl(mean_R, log_draft_R))
    return value.clamp_min(0) + _infinite(outside)


def _kl(logp_R: torch.Tensor, other_logp_R: torch.Tensor) -> torch.Tensor:
    """KL of two log-distributions; where p is 0 the term is 0, even if the other is 0 too.

    A p > 0 too small for float32 has exp(log p) = 0, and 0 * inf must not become NaN.
    """
    term_R = logp_R.exp() * (logp_R - other_logp_R)
    term_R = term_R.masked_fill((other_logp_R == -math.inf) & ~logp_R.isnan(), math.inf)
    return term_R.masked_fill((logp_R == -math.inf) & ~other_logp_R.isnan(), 0.0).sum(-1)


def _infinite(outside: torch.Tensor) -> torch.Tensor:
    """Infinity where there is mass, NaN where there is NaN, else 0."""
    return torch.where(outside > 0, math.inf, outside * 0)


DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "kl_target_draft": kl_target_draft,
    "kl_draft_target": kl_draft_target,
    "js": js,
    "tv": tv,
    "js_reference": js_reference,
}
# Infinite as soon as the target has mass where the draft has none, and so, for a drafter with a
# reduced vocabulary, everywhere.
INFINITE_OUTSIDE = ("kl_target_draft", "js_reference")

# --- over logits --------------------------------------------------------------------------------


def divergence(
    name: str,
    target_logits_V: torch.Tensor,
    draft_logits_R: torch.Tensor,
    draft_token_R: torch.Tensor | None = None,
) -> torch.Tensor:
    """A divergence of two rows of logits [..., V] and [..., R], float32 [...]; draft_token_R is the
    target's id of each token of a reduced draft vocabulary."""
    target_V = torch.log_softmax(target_logits_V, dim=-1, dtype=torch.float32)
    draft_R = torch.log_softmax(draft_logits_R, dim=-1, dtype=torch.float32)
    if draft_token_R is None:
        assert target_V.shape == draft_R.shape, (target_V.shape, draft_R.shape)
        return DIVERGENCES[name](target_V, draft_R, target_V.new_zeros(()))
    target_R = target_V.index_select(-1, draft_token_R)
    if name in INFINITE_OUTSIDE:  # whether there is any mass must be exact
        outside = target_V.exp().index_fill_(-1, draft_token_R, 0.0).sum(-1)
    else:  # how much, to 1e-7
        outside = (1 - target_R.exp().sum(-1)).clamp_min(0)
    return DIVERGENCES[name](target_R, draft_R, outside)

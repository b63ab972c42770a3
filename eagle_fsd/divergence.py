"""Divergences between the target's and the draft's next-token distributions.

Every function takes logits (target first), takes the softmax itself, and returns a float32
divergence in nats, clamped at 0. Logits of -inf are zero probabilities: 0 log 0 = 0, and a term
with mass where the other side has none is infinite. NaN stays NaN, and never passes a threshold.

The names say the direction: kl_target_draft = KL(target || draft) = sum target log(target/draft).

Axes: ... any leading axes, V vocabulary.
"""

import math
from collections.abc import Callable

import torch

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def kl_target_draft(target_logits_V: torch.Tensor, draft_logits_V: torch.Tensor) -> torch.Tensor:
    """KL(target || draft), in [0, inf]; infinite where the draft gives zero to a possible token."""
    target_V, draft_V = _log_probs(target_logits_V, draft_logits_V)
    return _kl(target_V, draft_V).clamp_min(0)


def kl_draft_target(target_logits_V: torch.Tensor, draft_logits_V: torch.Tensor) -> torch.Tensor:
    """KL(draft || target), in [0, inf]."""
    target_V, draft_V = _log_probs(target_logits_V, draft_logits_V)
    return _kl(draft_V, target_V).clamp_min(0)


def js(target_logits_V: torch.Tensor, draft_logits_V: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon: 1/2 [KL(target || m) + KL(draft || m)], m their mean; in [0, ln 2]."""
    target_V, draft_V = _log_probs(target_logits_V, draft_logits_V)
    mean_V = torch.logaddexp(target_V, draft_V) - math.log(2)
    return (0.5 * (_kl(target_V, mean_V) + _kl(draft_V, mean_V))).clamp(0, math.log(2))


def tv(target_logits_V: torch.Tensor, draft_logits_V: torch.Tensor) -> torch.Tensor:
    """Total variation: 1/2 sum |target - draft|, in [0, 1]."""
    target_V, draft_V = _log_probs(target_logits_V, draft_logits_V)
    return (0.5 * (target_V.exp() - draft_V.exp()).abs().sum(-1)).clamp_max(1)


def js_reference(target_logits_V: torch.Tensor, draft_logits_V: torch.Tensor) -> torch.Tensor:
    """What the FSD authors' code calls js_div: 1/2 [KL(m || target) + KL(m || draft)], in [0, inf].

    The arguments are swapped against Jensen-Shannon: it is unbounded, and infinite where one side
    is zero. Close to 0 it agrees with `js`; thresholds do not carry over otherwise
    (github.com/maxholsman/fsd e92a157; reference/fsd.md).
    """
    target_V, draft_V = _log_probs(target_logits_V, draft_logits_V)
    mean_V = torch.logaddexp(target_V, draft_V) - math.log(2)
    return (0.5 * (_kl(mean_V, target_V) + _kl(mean_V, draft_V))).clamp_min(0)


DIVERGENCES: dict[str, Divergence] = {
    "kl_target_draft": kl_target_draft,
    "kl_draft_target": kl_draft_target,
    "js": js,
    "tv": tv,
    "js_reference": js_reference,
}

# The names in the FSD authors' code. Its js_div is not Jensen-Shannon.
ALIASES = {
    "kl_div": "kl_draft_target",
    "kl_div_reversed": "kl_target_draft",
    "js_div": "js_reference",
    "tv_div": "tv",
}


def canonical_name(name: str) -> str:
    """The name in DIVERGENCES; published aliases are translated.

    Raises:
        ValueError: unknown name; lists the known ones.
    """
    name = ALIASES.get(name, name)
    if name not in DIVERGENCES:
        raise ValueError(
            f"unknown divergence {name!r}; known: {', '.join(DIVERGENCES)} "
            f"(aliases: {', '.join(f'{a} = {n}' for a, n in ALIASES.items())})"
        )
    return name


def _log_probs(
    target_logits_V: torch.Tensor, draft_logits_V: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if target_logits_V.shape != draft_logits_V.shape:
        raise ValueError(
            f"target logits {tuple(target_logits_V.shape)} and draft logits "
            f"{tuple(draft_logits_V.shape)} must have one shape"
        )
    return (
        torch.log_softmax(target_logits_V, dim=-1, dtype=torch.float32),
        torch.log_softmax(draft_logits_V, dim=-1, dtype=torch.float32),
    )


def _kl(logp_V: torch.Tensor, other_logp_V: torch.Tensor) -> torch.Tensor:
    """KL of two log-distributions; where p is 0 the term is 0, even if the other is 0 too.

    A p > 0 too small for float32 has exp(log p) = 0, and 0 * inf must not become NaN.
    """
    term_V = logp_V.exp() * (logp_V - other_logp_V)
    term_V = term_V.masked_fill((other_logp_V == -math.inf) & ~logp_V.isnan(), math.inf)
    return term_V.masked_fill(logp_V == -math.inf, 0.0).sum(-1)

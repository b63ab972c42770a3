"""Slow, obvious versions of the rules and guards of extras/rivals.py, by their names."""

import math

import scipy.optimize
from reference_accept import SlowAccept, kl, probs, slow_divergence

COUPLED = ("cactus", "mentored")


class SlowRivals(SlowAccept):
    def __init__(self, *round_and_policy):
        super().__init__(*round_and_policy)
        self.coupled = self.coupled or self.kind in COUPLED

    def divergence(self, v: int) -> float:
        """By the rule's settings, else by those of the guard js."""
        if hasattr(self.rule, "divergence") or "js" not in self.guards or self.draft[v] is None:
            return super().divergence(v)
        return slow_divergence("js", self.target[v], self.draft[v])

    def options(self, v: int) -> list[int]:
        """Of those the ones that the guards known and js leave."""
        known, near, draft = self.guards.get("known"), self.guards.get("js"), self.draft[v]
        if (known or near) and draft is None:
            return []
        return [
            c
            for c in super().options(v)
            if not (known and probs(draft)[self.token[c]] < known.prob)
            and not (near and slow_divergence("js", self.target[v], draft) > near.nats)
        ]

    def new(self, v: int) -> list[float]:
        """The distribution of the token that a coupled rule emits at v, tau > 0."""
        if self.kind not in COUPLED:
            return super().new(v)
        rule, free = self.rule, [t for t in range(len(self.p[v])) if not self.keeps(t)]
        drafted = [self.token[c] for c in self.options(v)]
        rest = math.fsum(self.p[v][t] for t in free)
        total = math.fsum(self.p[v][t] for t in drafted) / rest
        if not 0 < total < 1 - 1e-12:
            return self.p[v]
        if self.kind == "cactus":
            reached = min(1.0, total + (2 * rule.delta * total * (1 - total)) ** 0.5)
        elif rule.kl < -math.log(total):
            reached = scipy.optimize.brentq(
                lambda a: kl([a, 1 - a], [total, 1 - total]) - rule.kl, total, 1
            )
        else:
            reached = 1.0
        left = math.fsum(self.p[v][t] for t in free if t not in drafted)
        scale = {t: (1 - reached) * rest / left if left else 0.0 for t in free}
        scale |= dict.fromkeys(drafted, reached / total)
        return [p * scale.get(t, 1.0) for t, p in enumerate(self.p[v])]

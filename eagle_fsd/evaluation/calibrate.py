"""Tokens a round and cost of any number of arms, predicted from the rounds of one exact answer.

At every round of an exact answer each arm is asked what it would do with that tree. The prediction
is of single rounds: it does not follow an arm into the text that it would have written.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.loop import DecodeConfig, answer_uniforms, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.stats import paired_ratio, rate_interval

Counts = dict[str, float | None]  # rounds, tokens, fuzzy, cost


def predict(
    target: Target,
    drafter: Drafter,
    policies: Mapping[str, Policy],
    prompt: Sequence[int],
    config: DecodeConfig,
) -> dict[str, Counts]:
    """Counts of every arm over the rounds of one answer, each arm with a memory of its own.

    Args:
        config: of the exact answer.

    Returns:
        arm -> {"rounds", "tokens", "fuzzy", "cost"}, sums. The cost is regret in nats, above
        temperature 0 total variation; None where the arm's rule or guards leave it unknown.
    """
    counts = {arm: Counter() for arm in policies}
    policies = {arm: policy.begin() for arm, policy in policies.items()}
    answer: list[int] = []
    uniform_P3 = answer_uniforms(config.seed, config.stop.max_new_tokens + drafter.max_nodes)
    for step in decode_rounds(target, drafter, prompt, config):
        for arm, policy in policies.items() if step.tree else ():
            accepted = accept(
                step.tree,
                step.logits_NV,
                uniform_P3[len(answer) : len(answer) + step.tree.max_depth + 1],
                policy=policy,
                stop_token_ids=frozenset(config.stop.token_ids),
                answer=answer,
            )
            cost = accepted.tv if policy.sampling.temperature else accepted.regret
            sums = {"tokens": len(accepted.tokens), "fuzzy": sum(accepted.fuzzy), "cost": sum(cost)}
            counts[arm].update({"rounds": 1} | sums)
        answer = answer + step.tokens
    return {
        arm: {key: None if math.isnan(value) else value for key, value in count.items()}
        for arm, count in counts.items()
    }


def arm_rows(counts: Sequence[Mapping[str, Counts]], exact: str) -> list[dict]:
    """A row for every arm of which there are counts, a mapping a question; rates with intervals.

    Returns:
        arm, questions, tokens_per_round, gain (tokens a round over those of `exact`), cost a token,
        fuzzy_share.
    """

    def pairs(arm: str, above: str, below: str) -> list[tuple[float, float]]:
        """A pair a question: nothing is counted where an answer ends with its first token."""
        parts = [(count[arm].get(above, 0), count[arm].get(below, 0)) for count in counts]
        return [(math.nan if a is None else a, b) for a, b in parts]

    return [
        {
            "arm": arm,
            "questions": len(counts),
            "tokens_per_round": rate_interval(pairs(arm, "tokens", "rounds")),
            "gain": paired_ratio(pairs(arm, "tokens", "rounds"), pairs(exact, "tokens", "rounds")),
            "cost": rate_interval(pairs(arm, "cost", "tokens")),
            "fuzzy_share": rate_interval(pairs(arm, "fuzzy", "tokens")),
        }
        for arm in counts[0]
    ]


def choose(rows: Sequence[dict], cost: float) -> dict:
    """The row of most tokens a round at a cost that is known and within the tolerated one; of
    equals the cheapest. One of the rows is exact's, whose cost is 0."""
    within = [
        row for row in rows if row["cost"]["value"] is not None and row["cost"]["value"] <= cost
    ]
    return max(within, key=lambda row: (row["tokens_per_round"]["value"], -row["cost"]["value"]))

"""Tokens a round, tokens a second and cost of arms, predicted from the rounds of an exact answer.

At every round of an exact answer each arm is asked what it would do with that tree. The prediction
is of single rounds: it does not follow an arm into the text that it would have written, and it
takes a round of every arm to last as long as that round of exact's did.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from eagle_fsd.decoding.acceptance import Policy, accept
from eagle_fsd.decoding.loop import DecodeConfig, answer_uniforms, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.evaluation.tables import columns, markdown_table
from eagle_fsd.runs.folder import Run
from eagle_fsd.stats import paired_ratio, rate_interval
from eagle_fsd.timing import synchronized_time

Counts = dict[str, float | None]  # rounds, seconds, tokens, fuzzy, cost


def predict(
    target: Target,
    drafter: Drafter,
    policies: Mapping[str, Policy],
    prompt: Sequence[int],
    config: DecodeConfig,
) -> dict[str, Counts]:
    """By arm, sums over the rounds of the answer that exact gives by the config.

    Seconds are exact's rounds', without prefill and the asking. The cost is regret in nats, above
    temperature 0 total variation; None where the arm's rule or guards leave it unknown.
    """
    zeros = dict.fromkeys(("rounds", "seconds", "tokens", "fuzzy", "cost"), 0)
    counts = {arm: Counter(zeros) for arm in policies}
    policies = {arm: policy.begin() for arm, policy in policies.items()}
    answer: list[int] = []
    uniform_P3 = answer_uniforms(config.seed, config.stop.max_new_tokens + drafter.max_nodes)
    began = synchronized_time(target.device)
    for step in decode_rounds(target, drafter, prompt, config):
        seconds = synchronized_time(target.device) - began
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
            counts[arm].update({"rounds": 1, "seconds": seconds} | sums)
        answer = answer + step.tokens
        began = synchronized_time(target.device)
    return {
        arm: {key: None if math.isnan(value) else value for key, value in count.items()}
        for arm, count in counts.items()
    }


def arm_rows(counts: Sequence[Mapping[str, Counts]], exact: str) -> list[dict]:
    """A row an arm of rates with intervals, of counts by arm, a mapping a question; gain is of the
    tokens a round over those of `exact`, cost and fuzzy_share are a token's."""

    def pairs(arm: str, above: str, below: str) -> list[tuple[float, float]]:
        parts = [(count[arm][above], count[arm][below]) for count in counts]
        return [(math.nan if a is None else a, b) for a, b in parts]

    return [
        {
            "arm": arm,
            "questions": len(counts),
            "tokens_per_round": rate_interval(pairs(arm, "tokens", "rounds")),
            "gain": paired_ratio(pairs(arm, "tokens", "rounds"), pairs(exact, "tokens", "rounds")),
            "tokens_per_second": rate_interval(pairs(arm, "tokens", "seconds")),
            "cost": rate_interval(pairs(arm, "cost", "tokens")),
            "fuzzy_share": rate_interval(pairs(arm, "fuzzy", "tokens")),
        }
        for arm in counts[0]
    ]


def choose(rows: Sequence[dict], cost: float) -> dict:
    """The row of most tokens a round within the tolerated cost, of equals the cheapest. One of the
    rows is exact's, whose cost is 0."""
    known = [row for row in rows if row["cost"]["value"] is not None]
    within = [row for row in known if row["cost"]["value"] <= cost]
    return max(within, key=lambda row: (row["tokens_per_round"]["value"], -row["cost"]["value"]))


def report(run: Run, rows: list[dict], cost: float) -> None:
    """The table, of which exact is the first row, and the arm that is chosen."""
    best = choose(rows, cost)
    arms = dict.fromkeys(["plain", rows[0]["arm"], best["arm"]])
    shown = [*columns(arm="s", tokens_per_round=".2f"), ("over exact", "gain", ".2f")]
    shown += columns(tokens_per_second=".1f", cost=".4f", fuzzy_share=".4f")
    meaning = (
        "how far the distribution of a token is from the target's, as total variation from 0 to 1"
        if run.settings["temperature"]
        else "how much less probable a token is than the target's favourite, as regret in nats"
    )
    text = (
        f"{best['arm']}: {best['tokens_per_round']['value']:.2f} tokens a round, "
        f"{best['gain']['value']:.2f} times exact's, and "
        f"{best['tokens_per_second']['value']:.1f} tokens a second are predicted at a cost of "
        f"{best['cost']['value']:.4f} a token, where {cost:g} is tolerated\n\n"
        f"{markdown_table(rows, shown)}\n\n"
        f"The cost is a token's mean: {meaning}.\n"
        f"Predicted from the rounds of exact's answers to {rows[0]['questions']} questions. Tokens "
        "a second take a round of every arm to last as long as exact's did here, and leave the "
        "prompt's forward out. What the arm does on its own texts shows evaluate/mt_bench.py with "
        f"the same questions and models, by --turns 1 --arms {' '.join(arms)}\n"
    )
    run.report("calibrate", text, chosen=best["arm"], rows=rows)

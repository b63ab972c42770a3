"""METRICS, the one table of what is measured, and the rows of a comparison made from it.

A metric is a rate over questions, sum / sum, such as total tokens / total seconds, or a comparison
of such a rate with a baseline's. The choices (repeated answers) and turns of a question belong
together. Metrics of rounds count the tokens of all rounds, before trimming and without the
token that prefill yields; lengths and speeds are of what was answered.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from eagle_fsd import stats
from eagle_fsd.arms import BY_TRANSFORMERS, GENERATE, PLAIN, parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation import record_numbers
from eagle_fsd.evaluation.record_numbers import Record, RecordNumber, answers
from eagle_fsd.stats import Interval

Questions = dict[int | str, Record]  # all answers of an arm, a question's in one record
EXACT = "exact"  # the arm that gains are over


@dataclass(frozen=True)
class Metric:
    """A column of every table.

    Attributes:
        tables: names of the printed tables that show it; CSV and JSON have all.
        of: without a numerator and a denominator: the rate that is compared.
        over, minus: the baseline that it is compared with: generate, plain or exact.
        of_answers: a share of answers, not of tokens.
        interval: whether one that holds is known (results/intervals).
    """

    label: str  # title of the column
    form: str  # a format specification
    tables: tuple[str, ...]
    meaning: str  # a sentence for the page
    numerator: RecordNumber | None = None
    denominator: RecordNumber | None = None
    of: str = ""
    over: str = ""
    minus: str = ""
    of_answers: bool = False
    interval: bool = True


# fmt: off
RATES: dict[str, Metric] = {
    "tokens_per_second": Metric(
        "tokens/s", ".1f", ("speed", "categories"),
        "emitted tokens over the seconds of prefill and decoding",
        record_numbers.tokens, record_numbers.seconds,
    ),
    "tokens_per_round": Metric(
        "tokens/round", ".2f", ("main", "speed", "categories"),
        "tokens emitted by a verification: the accepted drafts and the next token",
        record_numbers.round_tokens, record_numbers.rounds,
    ),
    "ceiling": Metric(
        "ceiling", ".2f", ("speed",),
        "the most that tokens/round over exact can be at this fuzzy share f, 1 / (1 - f x exact's "
        "tokens/round), as long as the text does not loop and the rule does not look ahead",
    ),
    "rounds_per_answer": Metric(
        "rounds/answer", ".1f", ("speed",), "verifications for an answer",
        record_numbers.rounds, answers,
    ),
    "seconds_per_answer": Metric(
        "s/answer", ".2f", ("speed",), "seconds for an answer", record_numbers.seconds, answers,
    ),
    "fuzzy_share": Metric(
        "fuzzy share", ".4f", ("main", "cost", "equal speed"),
        "share of the rounds' tokens that the exact test would not have emitted",
        record_numbers.of_round_tokens("fuzzy"), record_numbers.round_tokens,
    ),
    "regret_per_token": Metric(
        "regret/token", ".4f", ("main", "cost", "equal speed"),
        "log P(most likely token) - log P(token) under the target in nats, the mean over the "
        "rounds' tokens",
        record_numbers.of_round_tokens("regret"), record_numbers.round_tokens,
    ),
    "tv_per_token": Metric(
        "TV/token", ".4f", ("cost",),
        "total variation between the emitted distribution and the target's, the mean over the "
        "rounds' tokens",
        record_numbers.of_round_tokens("tv"), record_numbers.round_tokens,
    ),
    "argmax_share": Metric(
        "argmax share", ".4f", ("cost", "categories"),
        "share of answer tokens that are the target's most likely, scored in one forward pass",
        record_numbers.of_turn_tokens("rescored_argmax_share"), record_numbers.tokens,
    ),
    "mean_logp": Metric(
        "log p/token", ".3f", ("cost",),
        "mean log-probability of an answer token under the target in nats, scored in one forward "
        "pass",
        record_numbers.of_turn_tokens("rescored_mean_logp"), record_numbers.tokens,
    ),
    "same_as_plain": Metric(
        "same as plain", ".3f", ("answers",),
        "share of answers that equal plain's token for token",
        record_numbers.same_as_plain, answers, of_answers=True,
    ),
    "tokens_per_answer": Metric(
        "tokens/answer", ".1f", ("answers",), "length of an answer",
        record_numbers.tokens, answers,
    ),
    "at_limit": Metric(
        "at the limit", ".2f", ("answers",), "share of answers that ran out of their budget",
        record_numbers.of_turns(lambda turn: turn["finish"] == "length"), answers, of_answers=True,
    ),
    "repetition": Metric(
        "repetition", ".3f", ("answers",),
        f"share of an answer's {record_numbers.GRAM}-grams that occurred before in it",
        record_numbers.of_turns(lambda turn: record_numbers.repetition(turn["token_ids"])), answers,
        interval=False,
    ),
    "looping": Metric(
        "looping", ".2f", ("answers",),
        f"share of answers that end in a loop: at most {record_numbers.LOOP_PERIOD} tokens that "
        f"repeat at least {record_numbers.LOOP_REPEATS} times, over at least "
        f"{record_numbers.LOOP_TOKENS} tokens",
        record_numbers.of_turns(record_numbers.ends_looping), answers, of_answers=True,
    ),
}


def _over(baseline: str, of: str, *tables: str) -> Metric:
    label = f"{RATES[of].label} over {baseline}"
    whose = "exact with the same drafter" if baseline == EXACT else baseline
    meaning = f"{RATES[of].label} over that of {whose}, on the questions that both answered"
    return Metric(label, ".2f", tables, meaning, of=of, over=baseline)


def _minus_plain(of: str, *tables: str) -> Metric:
    """The mean difference of the questions' own rates to plain's."""
    rate, label = RATES[of], f"{RATES[of].label} - plain"
    meaning = f"difference to plain's {rate.label} ({rate.meaning})"
    return Metric(
        label, f"+{rate.form}", tables, meaning, of=of, minus=PLAIN, interval=rate.interval
    )


COMPARISONS: dict[str, Metric] = {
    "speed_vs_generate": _over(GENERATE, "tokens_per_second", "speed"),
    "speed_vs_plain": _over(PLAIN, "tokens_per_second", "main", "speed", "categories"),
    "seconds_per_answer_vs_plain": _over(PLAIN, "seconds_per_answer", "speed"),
    "tokens_per_round_vs_exact": _over(EXACT, "tokens_per_round", "speed"),
    "argmax_share_minus_plain": _minus_plain("argmax_share", "main", "cost", "equal speed"),
    "mean_logp_minus_plain": _minus_plain("mean_logp", "main", "cost", "equal speed"),
    "tokens_per_answer_minus_plain": _minus_plain("tokens_per_answer", "answers", "equal speed"),
    "at_limit_minus_plain": _minus_plain("at_limit", "answers", "equal speed"),
    "repetition_minus_plain": _minus_plain("repetition", "answers"),
    "looping_minus_plain": _minus_plain("looping", "answers", "equal speed"),
}
METRICS: dict[str, Metric] = {}
for _key, _rate in RATES.items():  # each followed by its comparisons
    METRICS |= {_key: _rate} | {key: m for key, m in COMPARISONS.items() if m.of == _key}
# fmt: on


def summarize(records: Mapping[str, Sequence[Record]]) -> list[dict]:
    """One row an arm, in the order of the records, which are by the arm's text.

    Returns:
        JSON-able rows: arm, rule, value (the rule's parameter), line (the arm without it), tree,
        questions, answers, and every metric as {"value", "low", "high"}, of differences also
        "detectable". Exact is compared with drafting by the same drafter. None is what an arm does
        not have, or what is not finite.

    Raises:
        BadInput: see shared_questions.
    """
    kept = shared_questions(records)
    rows = []
    for arm, found in kept.items():
        parsed = parse_arm(arm)
        row = {"arm": arm, "rule": parsed.kind, "value": parsed.value, "line": parsed.line}
        row["tree"] = next(iter(found.values())).get("tree") or parsed.tree
        row |= {"questions": len(found), "answers": sum(map(answers, found.values()))}
        others = {"": arm, EXACT: exact_beside(arm, list(kept))}
        for key, metric in METRICS.items():
            baseline = metric.over or metric.minus
            row[key] = _measure(key, found, kept.get(others.get(baseline, baseline), {}))
        keys = ("fuzzy_share", "tokens_per_round", "tokens_per_round_vs_exact")
        share, tau, gain = (row[key]["value"] for key in keys)
        if None not in (share, gain):
            row["ceiling"]["value"] = ceiling(share, tau / gain)
        rows.append(row)
    return rows


def by_category(records: Mapping[str, Sequence[Record]]) -> list[dict]:
    """summarize's rows of every category by itself, with its "category"."""
    parts: dict[str, dict[str, list[Record]]] = {}
    for arm, found in shared_questions(records).items():
        for record in found.values():
            parts.setdefault(record["category"], {}).setdefault(arm, []).append(record)
    return [
        {"category": category} | row for category, part in parts.items() for row in summarize(part)
    ]


def untimed(records: Mapping[str, Sequence[Record]]) -> dict[str, list[Record]]:
    """The records of arms that were not timed side by side: seconds, and what is made of them, are
    unknown."""
    return {
        arm: [
            row | {"turns": [turn | {"seconds": math.nan} for turn in row["turns"]]} for row in rows
        ]
        for arm, rows in records.items()
    }


def _by_question(records: Sequence[Record]) -> Questions:
    """One record a question, the turns of its choices one after the other."""
    merged: Questions = {}
    for record in sorted(records, key=lambda record: record.get("choice", 0)):
        before = merged.get(record["question_id"], record | {"turns": []})
        merged[record["question_id"]] = before | {"turns": before["turns"] + record["turns"]}
    return merged


def shared_questions(records: Mapping[str, Sequence[Record]]) -> dict[str, Questions]:
    """The questions of which all arms have as many answers, each record with plain's. Only the arms
    of transformers, too slow to answer every question, may have fewer: comparisons with them are
    over what both answered.

    Raises:
        BadInput: there are none, or no arm.
    """
    found = {arm: _by_question(rows) for arm, rows in records.items()}
    have = {arm: {(q, answers(row)) for q, row in rows.items()} for arm, rows in found.items()}
    deciding = [answered for arm, answered in have.items() if arm not in BY_TRANSFORMERS]
    common = set.intersection(*(deciding or have.values() or [set()]))
    if not found or not all(common & answered for answered in have.values()):
        raise BadInput(f"no question was answered by all of: {', '.join(records) or 'no arm'}")
    plain = found.get(PLAIN, {})
    return {
        arm: {
            q: row | {"plain": plain.get(q)}
            for q, row in rows.items()
            if (q, answers(row)) in common
        }
        for arm, rows in found.items()
    }


def rate_parts(key: str, records: Iterable[Record]) -> list[tuple[float, float]]:
    """Numerator and denominator of a rate, or of the one that is compared; NaN without them."""
    rate = METRICS[METRICS[key].of or key]
    if rate.numerator is None:
        return [(math.nan, math.nan) for _ in records]
    return [(rate.numerator(record), rate.denominator(record)) for record in records]


def exact_beside(arm: str, arms: Sequence[str]) -> str:
    """The exact arm with the same drafter; "" without one."""
    drafter = parse_arm(arm).drafter
    parsed = [parse_arm(other) for other in arms]
    beside = [a.text for a in parsed if a.kind == EXACT and a.drafter == drafter and not a.guards]
    return beside[0] if beside else ""


def _measure(key: str, mine: Questions, theirs: Questions) -> Interval:
    """A metric over the questions that both sides have; a rate's other side is itself."""
    metric, shared = METRICS[key], [q for q in mine if q in theirs]
    mine_Q2, theirs_Q2 = (rate_parts(key, [side[q] for q in shared]) for side in (mine, theirs))
    if metric.over:
        found = stats.paired_ratio(mine_Q2, theirs_Q2)
    elif metric.minus:
        # of the questions' own rates; questions where one side has none are left out
        both = zip(mine_Q2, theirs_Q2, strict=True)
        rates = [(a / b, c / d) for (a, b), (c, d) in both if b and d]
        found = stats.paired_difference([a for a, _ in rates], [c for _, c in rates])
    else:
        found = (stats.share_interval if metric.of_answers else stats.rate_interval)(mine_Q2)
    return found if metric.interval else found | dict.fromkeys(found.keys() - {"value"})


def ceiling(fuzzy_share: float, exact_tokens_per_round: float) -> float | None:
    """Most that tokens_per_round can gain over exact at this fuzzy share: 1 / (1 - f tau); None is
    without bound.

    A fuzzy token replaces the token that would have ended the round. The bound holds while a run
    after a fuzzy token is on average no longer than a fresh one; repetitive text breaks it.
    """
    left = 1 - fuzzy_share * exact_tokens_per_round
    return 1 / left if left > 0 else None

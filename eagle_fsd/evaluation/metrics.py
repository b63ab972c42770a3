"""METRICS, the one table of what is measured, and the rows of a comparison made from it.

A metric is a rate over questions, sum / sum, such as total tokens / total seconds, or a comparison
of such a rate with a baseline's. The choices (repeated answers) and turns of a question belong
together. Metrics of rounds count the tokens of all rounds, before trimming and without prefill's
token; lengths and speeds are of what was answered.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from eagle_fsd import stats
from eagle_fsd.arm_names import BY_TRANSFORMERS, GENERATE, PLAIN
from eagle_fsd.arms import parse_arm
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation import record_numbers
from eagle_fsd.evaluation.record_numbers import Record, RecordNumber
from eagle_fsd.stats import Interval

Questions = dict[int | str, Record]  # all answers of an arm, a question's in one record
Parts = Sequence[tuple[float, float]]  # numerator and denominator of every question
EXACT = "exact"  # the arm that gains are over


def difference(mine_Q2: Parts, theirs_Q2: Parts) -> Interval:
    """Mean difference of the questions' own rates; questions where a side has none are left out."""
    both = zip(mine_Q2, theirs_Q2, strict=True)
    rates = [(a / b, c / d) for (a, b), (c, d) in both if b and d]
    return stats.paired_difference([mine for mine, _ in rates], [theirs for _, theirs in rates])


def median_ratio(mine_Q2: Parts, theirs_Q2: Parts) -> Interval:
    """The median of the questions' own ratios; questions where a side has no rate are left out."""
    both = zip(mine_Q2, theirs_Q2, strict=True)
    return stats.median_interval([a / b * d / c for (a, b), (c, d) in both if b and c and d])


@dataclass(frozen=True)
class Metric:
    label: str  # title of the column
    form: str  # a format specification
    tables: tuple[str, ...]  # the printed ones that show it; JSON has all
    meaning: str  # a sentence for the page
    numerator: RecordNumber | None = None
    denominator: RecordNumber | None = None
    # from the arm's parts, and the baseline's where it has one
    measure: Callable[..., Interval] = stats.rate_interval
    baseline: str = ""  # the arm that it is compared with: generate, plain or exact
    interval: bool = True  # whether one that holds is known (results/intervals)
    less_plain: tuple[str, ...] = ()  # show its difference to plain, X_minus_plain of METRICS


# fmt: off
RATES: dict[str, Metric] = {
    "tokens_per_second": Metric(
        "tokens/s", ".1f", ("speed", "categories"),
        "emitted tokens over the seconds of prefill and decoding",
        record_numbers.tokens, record_numbers.seconds,
    ),
    "speed_vs_generate": Metric(
        "tokens/s over generate", ".2f", ("speed",),
        "tokens/s over that of generate, on the questions that both answered",
        record_numbers.tokens, record_numbers.seconds, stats.paired_ratio, GENERATE,
    ),
    "speed_vs_plain": Metric(
        "tokens/s over plain", ".2f", ("main", "speed", "categories"),
        "tokens/s over that of plain, on the questions that both answered",
        record_numbers.tokens, record_numbers.seconds, stats.paired_ratio, PLAIN,
    ),
    "median_speed_vs_plain": Metric(
        "tokens/s over plain, median", ".2f", ("speed",),
        "the median over questions of a question's own tokens/s over that of plain, which a few "
        "disturbed answers do not move",
        record_numbers.tokens, record_numbers.seconds, median_ratio, PLAIN,
    ),
    "tokens_per_round": Metric(
        "tokens/round", ".2f", ("main", "speed", "categories"),
        "tokens emitted by a verification: the accepted drafts and the next token",
        record_numbers.round_tokens, record_numbers.rounds,
    ),
    "tokens_per_round_vs_exact": Metric(
        "tokens/round over exact", ".2f", ("speed",),
        "tokens/round over that of exact with the same drafter, on the questions that both "
        "answered",
        record_numbers.round_tokens, record_numbers.rounds, stats.paired_ratio, EXACT,
    ),
    "ceiling": Metric(
        "ceiling", ".2f", ("speed",),
        "the most that tokens/round over exact can be at this fuzzy share f, 1 / (1 - f x exact's "
        "tokens/round), as long as the text does not loop and the rule does not look ahead",
    ),
    "rounds_per_answer": Metric(
        "rounds/answer", ".1f", ("speed",), "verifications for an answer",
        record_numbers.rounds, record_numbers.answers,
    ),
    "seconds_per_answer": Metric(
        "s/answer", ".2f", ("speed",), "seconds for an answer",
        record_numbers.seconds, record_numbers.answers,
    ),
    "seconds_per_answer_vs_plain": Metric(
        "s/answer over plain", ".2f", ("speed",),
        "s/answer over that of plain, on the questions that both answered",
        record_numbers.seconds, record_numbers.answers, stats.paired_ratio, PLAIN,
    ),
    "fuzzy_share": Metric(
        "fuzzy share", ".4f", ("main", "cost", "equal gain"),
        "share of the rounds' tokens that the exact test would not have emitted",
        record_numbers.fuzzy, record_numbers.round_tokens,
    ),
    "regret_per_token": Metric(
        "regret/token", ".4f", ("main", "cost", "equal gain"),
        "log P(most likely token) - log P(token) under the target in nats, the mean over the "
        "rounds' tokens",
        record_numbers.regret, record_numbers.round_tokens,
    ),
    "tv_per_token": Metric(
        "TV/token", ".4f", ("cost",),
        "total variation between the emitted distribution and the target's, the mean over the "
        "rounds' tokens",
        record_numbers.tv, record_numbers.round_tokens,
    ),
    "argmax_share": Metric(
        "argmax share", ".4f", ("cost", "categories"),
        "share of answer tokens that are the target's most likely, scored in one forward pass",
        record_numbers.argmax_tokens, record_numbers.tokens,
        less_plain=("main", "cost", "equal gain"),
    ),
    "mean_logp": Metric(
        "log p/token", ".3f", ("cost",),
        "mean log-probability of an answer token under the target in nats, scored in one forward "
        "pass",
        record_numbers.logp, record_numbers.tokens,
        less_plain=("main", "cost", "equal gain"),
    ),
    "same_as_plain": Metric(
        "same as plain", ".3f", ("answers",),
        "share of answers that equal plain's token for token",
        record_numbers.same_as_plain, record_numbers.answers, stats.share_interval,
    ),
    "tokens_per_answer": Metric(
        "tokens/answer", ".1f", ("answers",), "length of an answer",
        record_numbers.tokens, record_numbers.answers,
        less_plain=("answers", "equal gain"),
    ),
    "at_limit": Metric(
        "at the limit", ".2f", ("answers",), "share of answers that ran out of their budget",
        record_numbers.at_limit, record_numbers.answers, stats.share_interval,
        less_plain=("answers", "equal gain"),
    ),
    "repetition": Metric(
        "repetition", ".3f", ("answers",),
        f"share of an answer's {record_numbers.GRAM}-grams that occurred before in it",
        record_numbers.repeated, record_numbers.answers, interval=False,
        less_plain=("answers",),
    ),
    "looping": Metric(
        "looping", ".2f", ("answers",),
        f"share of answers that end in a loop: at most {record_numbers.LOOP_PERIOD} tokens that "
        f"repeat at least {record_numbers.LOOP_REPEATS} times, over at least "
        f"{record_numbers.LOOP_TOKENS} tokens",
        record_numbers.looping, record_numbers.answers, stats.share_interval,
        less_plain=("answers", "equal gain"),
    ),
}
# fmt: on

METRICS: dict[str, Metric] = {}
for key, metric in RATES.items():
    METRICS[key] = metric
    if metric.less_plain:
        METRICS[f"{key}_minus_plain"] = replace(
            metric,
            label=f"{metric.label} - plain",
            form=f"+{metric.form}",
            tables=metric.less_plain,
            meaning=f"{metric.meaning}, less plain's",
            measure=difference,
            baseline=PLAIN,
        )


def summarize(records: Mapping[str, Sequence[Record]], *, timed: bool = True) -> list[dict]:
    """One row an arm, in the order of the records: arm, rule, value (the rule's parameter), line
    (the arm without it), tree, questions, answers, and every metric as {"value", "low", "high"}, of
    differences also "detectable"; JSON-able. Exact is compared with drafting by the same drafter.
    None is what an arm does not have, what is not finite, and what is made of seconds where arms
    were not `timed` side by side. BadInput where no question was answered by all arms."""
    shared = shared_questions(records)
    rows = []
    for arm, mine in shared.items():
        parsed = parse_arm(arm)
        row = {"arm": arm, "rule": parsed.kind, "value": parsed.value, "line": parsed.line}
        row["tree"] = next(iter(mine.values())).get("tree") or parsed.tree
        row |= {"questions": len(mine), "answers": sum(map(record_numbers.answers, mine.values()))}
        baselines = {"": arm, EXACT: exact_beside(arm, list(shared))}
        for key, metric in METRICS.items():
            theirs = shared.get(baselines.get(metric.baseline, metric.baseline), {})
            both = [question for question in mine if question in theirs]
            if not timed and record_numbers.seconds in (metric.numerator, metric.denominator):
                both = []
            sides = (mine, theirs) if metric.baseline else (mine,)
            row[key] = metric.measure(*(rate_parts(key, [side[q] for q in both]) for side in sides))
            if not metric.interval:
                row[key] = dict.fromkeys(row[key]) | {"value": row[key]["value"]}
        keys = ("fuzzy_share", "tokens_per_round", "tokens_per_round_vs_exact")
        fuzzy_share, tokens, gain = (row[key]["value"] for key in keys)
        if None not in (fuzzy_share, gain):
            # A fuzzy token replaces the token that would have ended the round. The bound holds
            # while a run after a fuzzy token is on average no longer than a fresh one; repetitive
            # text breaks it.
            unreplaced = 1 - fuzzy_share * (tokens / gain)
            row["ceiling"]["value"] = 1 / unreplaced if unreplaced > 0 else None
        rows.append(row)
    return rows


def by_category(records: Mapping[str, Sequence[Record]], *, timed: bool = True) -> list[dict]:
    """summarize's rows of every category by itself, with its "category"."""
    parts: dict[str, dict[str, list[Record]]] = {}
    for arm, questions in shared_questions(records).items():
        for record in questions.values():
            parts.setdefault(record["category"], {}).setdefault(arm, []).append(record)
    return [
        {"category": category} | row
        for category, part in parts.items()
        for row in summarize(part, timed=timed)
    ]


def shared_questions(records: Mapping[str, Sequence[Record]]) -> dict[str, Questions]:
    """The questions of which all arms have as many answers, each in one record, the turns of its
    choices one after the other, with plain's. Only the arms of transformers, too slow to answer
    every question, may have fewer: comparisons with them are over what both answered."""
    merged: dict[str, Questions] = {arm: {} for arm in records}
    for arm, rows in records.items():
        for record in sorted(rows, key=lambda record: record.get("choice", 0)):
            question = merged[arm].setdefault(record["question_id"], record | {"turns": []})
            question["turns"] += record["turns"]
    answered = {
        arm: {(question, len(record["turns"])) for question, record in questions.items()}
        for arm, questions in merged.items()
    }
    deciding = [pairs for arm, pairs in answered.items() if arm not in BY_TRANSFORMERS]
    common = set.intersection(*(deciding or answered.values() or [set()]))
    if not merged or not all(common & pairs for pairs in answered.values()):
        raise BadInput(f"no question was answered by all of: {', '.join(records) or 'no arm'}")
    plain = merged.get(PLAIN, {})
    return {
        arm: {
            question: record | {"plain": plain.get(question)}
            for question, record in questions.items()
            if (question, len(record["turns"])) in common
        }
        for arm, questions in merged.items()
    }


def rate_parts(key: str, records: Iterable[Record]) -> list[tuple[float, float]]:
    metric = METRICS[key]
    if metric.numerator is None:
        return [(math.nan, math.nan) for _ in records]
    return [(metric.numerator(record), metric.denominator(record)) for record in records]


def exact_beside(arm: str, arms: Sequence[str]) -> str:
    """The exact arm with the same drafter; "" without one."""
    drafter = parse_arm(arm).drafter
    for other in map(parse_arm, arms):
        if other.kind == EXACT and other.drafter == drafter and not other.guards:
            return other.text
    return ""

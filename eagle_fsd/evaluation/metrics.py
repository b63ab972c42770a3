"""METRICS, the one table of what is measured, and the rows of a comparison made from it.

A metric is a rate over questions, sum / sum: total tokens / total seconds, fuzzy tokens / tokens of
all rounds; or a comparison of such a rate with a baseline's. Questions are the unit: the choices
(repeated answers) and turns of one belong together in every resample (stats.py), and arms are only
compared over answers that both have. JSON, CSV, Markdown, plots and page all come from these rows.

What is said of rounds counts the tokens of all rounds, before trimming and without the token that
prefill yields; lengths, speeds and emitted_per_round are of what was answered.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation import stats
from eagle_fsd.evaluation.arms import BY_TRANSFORMERS, GENERATE, PLAIN, parse_arm
from eagle_fsd.evaluation.stats import Interval

Record = dict  # one question answered by one arm: question_id, arm, turns
Answers = dict[tuple, Record]  # (question_id, choice) -> record, in the order of the questions
Pair = tuple[list[Record], list[Record]]  # mine and theirs, question by question
Part = Callable[[Record], float]  # numerator or denominator of a rate
EXACT = "exact"
NOTHING: Interval = {"value": None, "low": None, "high": None}
GRAM = 4
LOOP_PERIOD, LOOP_REPEATS, LOOP_TOKENS = 32, 3, 16


# --- what an answer is like ---------------------------------------------------------------------


def repetition(tokens: Sequence[int]) -> float:
    """Share of an answer's 4-grams that occurred before in it; 0 for fewer than 5 tokens.

    Example: a b c d a b c d has 4-grams abcd bcda cdab dabc abcd: 1 of 5.
    """
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether an answer ends in a loop: its end repeats a stretch of at most 32 tokens at least 3
    times, over at least 16 tokens."""
    for period in range(1, LOOP_PERIOD + 1):
        length = max(LOOP_REPEATS * period, LOOP_TOKENS)
        end = tokens[-length:]
        if len(end) == length and end[period:] == end[:-period]:
            return True
    return False


def _ends_looping(turn: dict) -> bool:
    """Without the last token of an answer that stopped, which may be the stop token."""
    tokens = turn["token_ids"]
    return is_looping(tokens[:-1] if turn["finish"] == "stop" else tokens)


# --- numerators and denominators of a record ----------------------------------------------------


def answers(record: Record) -> int:
    return len(record["turns"])


def tokens(record: Record) -> int:
    return sum(len(turn["token_ids"]) for turn in record["turns"])


def seconds(record: Record) -> float:
    return sum(turn["seconds"] for turn in record["turns"])


def rounds_of(record: Record) -> list[dict]:
    """The rounds of all turns, one after the other."""
    return [r for turn in record["turns"] for r in turn["rounds"]]


def rounds(record: Record) -> int:
    return len(rounds_of(record))


def round_tokens(record: Record) -> int:
    return sum(len(r["tokens"]) for r in rounds_of(record))


def _emitted(record: Record) -> int:
    """Answer tokens without prefill's."""
    return tokens(record) - answers(record)


def _of_turns(value: Callable[[dict], float]) -> Part:
    return lambda record: sum(value(turn) for turn in record["turns"])


def _of_turn_tokens(key: str) -> Part:
    """What a turn holds as the mean over its tokens, summed."""
    return _of_turns(lambda turn: turn[key] * len(turn["token_ids"]))


def _of_round_tokens(key: str) -> Part:
    """NaN where a token has none: its metric is then unknown."""
    return lambda record: sum(
        math.nan if x is None else float(x) for r in rounds_of(record) for x in r[key]
    )


# --- the table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metric:
    """A column of every table.

    Attributes:
        label: its title.
        form: format of the value.
        tables: names of the printed tables that show it (tables.py); CSV and JSON have all.
        meaning: in a sentence.
        numerator, denominator: of a rate.
        of: without these: the metric that is compared.
        ratio_to, minus: the baseline that it is compared with: generate, plain or exact.
    """

    label: str
    form: str
    tables: tuple[str, ...]
    meaning: str
    numerator: Part | None = None
    denominator: Part | None = None
    of: str = ""
    ratio_to: str = ""
    minus: str = ""

    @property
    def timed(self) -> bool:
        return seconds in (self.numerator, self.denominator)

    @property
    def of_rounds(self) -> bool:
        return bool({self.numerator, self.denominator} & {rounds, round_tokens})


# fmt: off
RATES: dict[str, Metric] = {
    "tokens_per_second": Metric(
        "tokens/s", ".1f", ("speed", "categories"),
        "emitted tokens over the seconds of prefill and decoding",
        tokens, seconds,
    ),
    "tokens_per_round": Metric(
        "tokens/round", ".2f", ("main", "speed", "categories"),
        "tokens emitted by a verification: the accepted drafts and the next token",
        round_tokens, rounds,
    ),
    "ceiling": Metric(
        "ceiling", ".2f", ("speed",),
        "most that tokens/round over exact can be at this fuzzy share, 1 / (1 - f tau); rules that "
        "look ahead and loops in the text break it",
    ),
    "of_ceiling": Metric(
        "of ceiling", ".2f", ("speed",), "tokens/round over exact, over the ceiling"
    ),
    "emitted_per_round": Metric(
        "emitted/round", ".2f", (),
        "answer tokens, after trimming and without prefill's, a round",
        _emitted, rounds,
    ),
    "rounds_per_answer": Metric(
        "rounds/answer", ".1f", ("speed",), "verifications an answer", rounds, answers
    ),
    "seconds_per_answer": Metric(
        "s/answer", ".2f", ("speed",), "seconds of an answer", seconds, answers
    ),
    "fuzzy_share": Metric(
        "fuzzy share", ".4f", ("main", "cost", "equal speed"),
        "share of the rounds' tokens that the exact test would not have emitted",
        _of_round_tokens("fuzzy"), round_tokens,
    ),
    "regret_per_token": Metric(
        "regret/token", ".4f", ("main", "cost", "equal speed"),
        "log P(most likely token) - log P(emitted token) under the target, nats, mean over the "
        "rounds' tokens; above temperature 0 exact sampling has regret too",
        _of_round_tokens("regret"), round_tokens,
    ),
    "tv_per_token": Metric(
        "TV/token", ".4f", ("cost",),
        "total variation between the emitted distribution and the target's, mean over the rounds' "
        "tokens",
        _of_round_tokens("tv"), round_tokens,
    ),
    "argmax_share": Metric(
        "argmax share", ".4f", ("cost", "categories"),
        "share of answer tokens that are the target's most likely when the text is scored in one "
        "forward pass; below 1 for exact decoding in bfloat16 too",
        _of_turn_tokens("rescored_argmax_share"), tokens,
    ),
    "mean_logp": Metric(
        "log p/token", ".3f", ("cost",),
        "mean log-probability of an answer token under the target, nats, in one forward pass",
        _of_turn_tokens("rescored_mean_logp"), tokens,
    ),
    "same_as_plain": Metric(
        "same as plain", ".3f", ("answers",),
        "share of answers that equal plain's token for token",
    ),
    "tokens_per_answer": Metric(
        "tokens/answer", ".1f", ("answers",), "length of an answer", tokens, answers
    ),
    "at_limit": Metric(
        "at the limit", ".2f", ("answers",), "share of answers that ran out of their budget",
        _of_turns(lambda turn: turn["finish"] == "length"), answers,
    ),
    "repetition": Metric(
        "repetition", ".3f", ("answers",),
        f"share of an answer's {GRAM}-grams that occurred before in it",
        _of_turns(lambda turn: repetition(turn["token_ids"])), answers,
    ),
    "looping": Metric(
        "looping", ".2f", ("answers",),
        f"share of answers whose end repeats at most {LOOP_PERIOD} tokens at least {LOOP_REPEATS} "
        f"times, over at least {LOOP_TOKENS}",
        _of_turns(_ends_looping), answers,
    ),
}


def _over(baseline: str, of: str, *tables: str) -> Metric:
    """A rate over the baseline's, on the questions that both have answered."""
    label = f"{RATES[of].label} over {baseline}"
    whose = "exact with the same drafter" if baseline == EXACT else baseline
    meaning = f"{RATES[of].label} over that of {whose}, on the questions that both answered"
    return Metric(label, ".2f", tables, meaning, of=of, ratio_to=baseline)


def _minus_plain(of: str, *tables: str) -> Metric:
    """The mean difference of the questions' own rates to plain's."""
    rate = RATES[of]
    meaning = f"difference to plain's {rate.label} ({rate.meaning})"
    return Metric(f"{rate.label} - plain", f"+{rate.form}", tables, meaning, of=of, minus=PLAIN)


COMPARISONS: dict[str, Metric] = {
    "speed_vs_generate": _over(GENERATE, "tokens_per_second", "speed"),
    "speed_vs_plain": _over(PLAIN, "tokens_per_second", "main", "speed", "categories"),
    "seconds_per_answer_vs_plain": _over(PLAIN, "seconds_per_answer", "speed"),
    "tokens_per_round_vs_exact": _over(EXACT, "tokens_per_round", "speed"),
    "regret_per_token_minus_plain": _minus_plain("regret_per_token"),
    "argmax_share_vs_plain": _over(PLAIN, "argmax_share"),
    "argmax_share_minus_plain": _minus_plain("argmax_share", "main", "cost", "equal speed"),
    "mean_logp_minus_plain": _minus_plain("mean_logp", "main", "cost", "equal speed"),
    "tokens_per_answer_minus_plain": _minus_plain("tokens_per_answer", "answers", "equal speed"),
    "at_limit_minus_plain": _minus_plain("at_limit", "answers", "equal speed"),
    "repetition_minus_plain": _minus_plain("repetition", "answers", "equal speed"),
    "looping_minus_plain": _minus_plain("looping", "answers", "equal speed"),
}
METRICS: dict[str, Metric] = {}
for _key, _rate in RATES.items():  # each followed by its comparisons
    METRICS |= {_key: _rate} | {key: m for key, m in COMPARISONS.items() if m.of == _key}
# fmt: on


# --- rows ---------------------------------------------------------------------------------------


def summarize(records: Mapping[str, Sequence[Record]], *, timed: bool = True) -> list[dict]:
    """One row an arm.

    Args:
        records: arm's text -> its records; answers that not all arms have are left out. Only the
            arms of transformers, too slow to answer every question, may have fewer: their rows are
            over what they answered, and ratios to them over what both answered.
        timed: False where the arms were not timed side by side (sharded runs): metrics of seconds
            are then unknown.

    Returns:
        JSON-able rows in the order of the arms: arm, rule, value (the rule's parameter), line (the
        arm without it), tree, questions, answers, and every metric as {"value", "low", "high"}, of
        differences also "detectable" (the mean difference of the questions' own rates). Exact is
        compared with drafting by the same drafter. None is what an arm does not have, or what is
        not finite.

    Raises:
        BadInput: there is no arm, or no question that all arms have answered.
    """
    kept = _shared(records)
    return [_row(arm, kept, timed=timed) for arm in kept]


def by_category(records: Mapping[str, Sequence[Record]], *, timed: bool = True) -> list[dict]:
    """summarize's rows of every category by itself, with its "category".

    An arm that may have answered fewer questions has no row where it answered none.
    """
    kept = _shared(records)
    rows = []
    every = [record["category"] for found in kept.values() for record in found.values()]
    for category in dict.fromkeys(every):
        part = {
            arm: [record for record in found.values() if record["category"] == category]
            for arm, found in kept.items()
        }
        answered = {arm: found for arm, found in part.items() if found}
        rows += [{"category": category} | row for row in summarize(answered, timed=timed)]
    return rows


def _shared(records: Mapping[str, Sequence[Record]]) -> dict[str, Answers]:
    """What is compared: the answers that all arms have, those of partial arms as far as they go."""
    if not records:
        raise BadInput("nothing to summarize: no arm has answered a question")
    found = {
        arm: {(row["question_id"], row.get("choice", 0)): row for row in rows}
        for arm, rows in records.items()
    }
    deciding = [arm for arm in records if arm not in BY_TRANSFORMERS] or list(records)
    common = set.intersection(*(set(found[arm]) for arm in deciding))
    lacking = [arm for arm in records if not common & set(found[arm])]
    if lacking:
        raise BadInput(f"no question was answered by all of: {', '.join(records)}")
    order = list(dict.fromkeys(question for question, _ in found[deciding[0]]))
    place = {question: number for number, question in enumerate(order)}
    keys = sorted(common, key=lambda key: (place[key[0]], key[1]))
    return {arm: {key: found[arm][key] for key in keys if key in found[arm]} for arm in records}


def by_question(records: Sequence[Record]) -> dict[int | str, Record]:
    """One record a question, the turns of its choices one after the other."""
    merged: dict[int | str, list[Record]] = {}
    for record in records:
        merged.setdefault(record["question_id"], []).append(record)
    return {
        question: {**same[0], "turns": [turn for record in same for turn in record["turns"]]}
        for question, same in merged.items()
    }


def _pair(arm: str, other: str, kept: dict[str, Answers]) -> Pair | None:
    """The questions of both, over the answers that both have."""
    keys = [key for key in kept[arm] if key in kept.get(other, {})]
    if not keys:
        return None
    mine, theirs = (by_question([kept[name][key] for key in keys]) for name in (arm, other))
    return list(mine.values()), list(theirs.values())


def exact_beside(arm: str, arms: Sequence[str]) -> str:
    """The exact arm with the same drafter; "" without one."""
    drafter = parse_arm(arm).drafter
    parsed = [parse_arm(other) for other in arms]
    beside = [a.text for a in parsed if a.kind == EXACT and a.drafter == drafter and not a.guards]
    return beside[0] if beside else ""


def _row(arm: str, kept: dict[str, Answers], *, timed: bool) -> dict:
    parsed = parse_arm(arm)
    questions = list(by_question(list(kept[arm].values())).values())
    others = {GENERATE: GENERATE, PLAIN: PLAIN, EXACT: exact_beside(arm, list(kept))}
    pairs = {name: _pair(arm, other, kept) for name, other in others.items()}
    row = {"arm": arm, "rule": parsed.kind, "value": parsed.value, "line": parsed.line}
    row |= {"tree": questions[0].get("tree") or parsed.tree}
    row |= {"questions": len(questions), "answers": sum(map(answers, questions))}
    for name, metric in METRICS.items():
        rate = METRICS[metric.of] if metric.of else metric
        known = (timed or not rate.timed) and (any(map(rounds, questions)) or not rate.of_rounds)
        row[name] = _measure(metric, rate, questions, pairs) if known else _nothing(metric)
    row["same_as_plain"] = _same_answers(pairs[PLAIN])
    return row | _ceiling(row, pairs[EXACT])


def _nothing(metric: Metric) -> Interval:
    return NOTHING | {"detectable": None} if metric.minus else dict(NOTHING)


def _measure(
    metric: Metric, rate: Metric, questions: list[Record], pairs: dict[str, Pair | None]
) -> Interval:
    """The metric over questions, or against the pair's other side."""
    if rate.numerator is None:  # not of one record; _row knows
        return _nothing(metric)
    parts = [_parts(rate, side) for side in pairs.get(metric.ratio_to or metric.minus) or ()]
    if not metric.of:
        return stats.rate_interval(_parts(rate, questions))
    if not parts:
        return _nothing(metric)
    if metric.ratio_to:
        return stats.paired_ratio(*parts)
    # of the questions' own rates; questions where one side has none are left out
    rates = [(a / b, c / d) for (a, b), (c, d) in zip(*parts, strict=True) if b and d]
    return stats.paired_difference([a for a, _ in rates], [c for _, c in rates])


def _parts(rate: Metric, questions: Sequence[Record]) -> list[tuple[float, float]]:
    return [(rate.numerator(record), rate.denominator(record)) for record in questions]


def _ceiling(row: dict, exact: Pair | None) -> dict[str, Interval]:
    """How much drafting could have gained over exact, and the share of it that it did."""
    share, gain = row["fuzzy_share"]["value"], row["tokens_per_round_vs_exact"]["value"]
    most = of_most = None
    if gain is not None and share is not None:
        parts = _parts(METRICS["tokens_per_round"], exact[1])
        top = ceiling(share, stats.rate_interval(parts)["value"])
        if math.isfinite(top):
            most, of_most = top, gain / top
    return {"ceiling": NOTHING | {"value": most}, "of_ceiling": NOTHING | {"value": of_most}}


def ceiling(fuzzy_share: float, exact_tokens_per_round: float) -> float:
    """Most that tokens_per_round can gain over exact at this fuzzy share: 1 / (1 - f tau).

    A fuzzy token replaces the token that would have ended the round. The bound holds while a run
    after a fuzzy token is on average no longer than a fresh one; repetitive text breaks it.
    """
    left = 1 - fuzzy_share * exact_tokens_per_round
    return 1 / left if left > 0 else math.inf


def _same_answers(pair: Pair | None) -> Interval:
    """Share of answers that equal the plain loop's token for token, resampled by question."""
    if pair is None:
        return dict(NOTHING)
    same_Q2 = []
    for mine, theirs in zip(*pair, strict=True):
        both = zip(mine["turns"], theirs["turns"], strict=True)
        same = [a["token_ids"] == b["token_ids"] for a, b in both]
        same_Q2.append((sum(same), len(same)))
    return stats.rate_interval(same_Q2)

"""From answer records to the figures of a comparison: speed, cost, answers, and their spread.

A figure is a rate, sum / sum over questions: total tokens / total seconds, fuzzy tokens / tokens of
all rounds. Questions are the unit: the choices (repeated answers) and turns of one belong together
in every resample (stats.py), and arms are only compared over answers that both have.
tokens_per_round, fuzzy share, regret and TV are over the tokens of all rounds, before trimming and
without the token that prefill yields; lengths, speeds and emitted_per_round are of what was
answered.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation import stats
from eagle_fsd.evaluation.stats import Interval

Record = dict  # one question answered by one arm: question_id, arm, accept, turns
Answers = dict[tuple, Record]  # (question_id, choice) -> record, in the order of the questions
Pair = tuple[list[Record], list[Record]]  # mine and theirs, question by question
Parts = Callable[[Record], tuple[float, float]]  # numerator and denominator of a rate
# too slow to answer every question: may have answered fewer than the others
PARTIAL = ("generate", "generate_compiled")
SAMPLING = ("temperature", "top_k", "top_p")
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


# --- rates --------------------------------------------------------------------------------------


def _tokens(record: Record) -> int:
    return sum(len(t["token_ids"]) for t in record["turns"])


def _rounds(record: Record) -> list[dict]:
    return [r for t in record["turns"] for r in t["rounds"]]


def _per_answer(figure: Callable[[dict], float]) -> Parts:
    """The mean of a turn's figure over answers."""
    return lambda record: (sum(figure(t) for t in record["turns"]), len(record["turns"]))


def _per_token(key: str) -> Parts:
    """The mean over answer tokens of what a turn holds as its own mean."""
    return lambda record: (
        sum(t[key] * len(t["token_ids"]) for t in record["turns"]),
        _tokens(record),
    )


def _per_round_token(key: str) -> Parts:
    """The mean over the tokens of all rounds."""
    return lambda record: (
        sum(float(x) for r in _rounds(record) for x in r[key]),
        sum(len(r["tokens"]) for r in _rounds(record)),
    )


def _tokens_and_seconds(record: Record) -> tuple[float, float]:
    return _tokens(record), sum(t["seconds"] for t in record["turns"])


def _tokens_and_rounds(record: Record) -> tuple[float, float]:
    rounds = _rounds(record)
    return sum(len(r["tokens"]) for r in rounds), len(rounds)


def _emitted_and_rounds(record: Record) -> tuple[float, float]:
    return _tokens(record) - len(record["turns"]), len(_rounds(record))


TIMED: dict[str, Parts] = {
    "tokens_per_second": _tokens_and_seconds,
    "seconds_per_answer": _per_answer(lambda turn: turn["seconds"]),
}
ANSWERED: dict[str, Parts] = {
    "tokens_per_answer": _per_answer(lambda turn: len(turn["token_ids"])),
    "at_limit": _per_answer(lambda turn: turn["finish"] == "length"),
    "repetition": _per_answer(lambda turn: repetition(turn["token_ids"])),
    "looping": _per_answer(_ends_looping),
    "argmax_share": _per_token("rescored_argmax_share"),
    "mean_logp": _per_token("rescored_mean_logp"),
}
ROUNDS: dict[str, Parts] = {
    "rounds_per_answer": _per_answer(lambda turn: len(turn["rounds"])),
    "tokens_per_round": _tokens_and_rounds,
    "emitted_per_round": _emitted_and_rounds,
    "fuzzy_share": _per_round_token("fuzzy"),
    "regret_per_token": _per_round_token("regret"),
    "tv_per_token": _per_round_token("tv"),
}
RATES = TIMED | ANSWERED | ROUNDS
DIFFERENCES = (*ANSWERED, "regret_per_token")


# --- rows ---------------------------------------------------------------------------------------


def summarize(records: Mapping[str, Sequence[Record]], *, timed: bool = True) -> list[dict]:
    """One row an arm.

    Args:
        records: arm name -> its records; answers that not all arms have are left out. Only
            `generate` and `generate_compiled` arms may have fewer: their rows are over what they
            answered, and ratios to them over what both answered.
        timed: False where the arms were not timed side by side (sharded runs): figures of seconds
            are then None.

    Returns:
        JSON-able rows in the order of the arms. Every rate X is a number, with X_interval beside
        it; X_interval and ratios (..._vs_...) are {"value", "low", "high"}; X_minus_plain is the
        mean difference of the questions' own X, {"value", "low", "high", "detectable"}. Baselines
        are those of the same temperature, top_k and top_p, exact also of the same tree. Figures
        that an arm does not have, or that are not finite, are None.

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
    every = [record["category"] for answers in kept.values() for record in answers.values()]
    for category in dict.fromkeys(every):
        part = {
            arm: [record for record in answers.values() if record["category"] == category]
            for arm, answers in kept.items()
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
    deciding = [arm for arm in records if kind(arm) not in PARTIAL] or list(records)
    common = set.intersection(*(set(found[arm]) for arm in deciding))
    lacking = [arm for arm in records if not common & set(found[arm])]
    if lacking:
        raise BadInput(f"no question was answered by all of: {', '.join(records)}")
    order = list(dict.fromkeys(question for question, _ in found[deciding[0]]))
    place = {question: number for number, question in enumerate(order)}
    keys = sorted(common, key=lambda key: (place[key[0]], key[1]))
    return {arm: {key: found[arm][key] for key in keys if key in found[arm]} for arm in records}


def _questions(answers: Answers, keys: Sequence[tuple]) -> list[Record]:
    """One record a question, the turns of its choices one after the other."""
    merged: dict = {}
    for key in keys:
        merged.setdefault(key[0], []).append(answers[key])
    return [
        {**same[0], "turns": [turn for record in same for turn in record["turns"]]}
        for same in merged.values()
    ]


def _baseline(name: str, arm: str, kept: dict[str, Answers]) -> Pair | None:
    """The arm's questions and those of the plain, generate or exact arm it is compared with."""
    settings = (*SAMPLING, "tree") if name == "exact" else SAMPLING
    for other, theirs in kept.items():
        keys = [key for key in kept[arm] if kind(other) == name and key in theirs]
        if keys and _alike(kept[arm][keys[0]], theirs[keys[0]], settings):
            return _questions(kept[arm], keys), _questions(theirs, keys)
    return None


def kind(arm: str) -> str:
    """Arms are named by their kind and what is special: plain, plain_t0.7, exact_15x4x6."""
    return PARTIAL[1] if arm.startswith(PARTIAL[1]) else arm.split("_")[0]


def _alike(mine: Record, theirs: Record, settings: Sequence[str]) -> bool:
    """Whether the settings are the same, as far as both records tell them."""
    values = [(mine.get(key), theirs.get(key)) for key in settings]
    return all(None in pair or pair[0] == pair[1] for pair in values)


def _row(arm: str, kept: dict[str, Answers], *, timed: bool) -> dict:
    questions = _questions(kept[arm], list(kept[arm]))
    plain, generate, exact = (_baseline(name, arm, kept) for name in ("plain", "generate", "exact"))
    row = {
        "arm": arm,
        "accept": questions[0].get("accept"),
        "questions": len(questions),
        "answers": sum(len(record["turns"]) for record in questions),
    }
    drafted = any(_rounds(record) for record in questions)
    for name, parts in RATES.items():
        has = (timed or name not in TIMED) and (drafted or name not in ROUNDS)
        interval = stats.rate_interval([parts(q) for q in questions]) if has else NOTHING
        row[name] = interval["value"]
        row[f"{name}_interval"] = _known(interval)
    for key, pair, parts in (
        ("speed_vs_generate", generate, _tokens_and_seconds),
        ("speed_vs_plain", plain, _tokens_and_seconds),
        ("seconds_per_answer_vs_plain", plain, TIMED["seconds_per_answer"]),
    ):
        row[key] = _ratio(pair, parts) if timed else None
    row |= {f"{name}_minus_plain": _difference(plain, RATES[name]) for name in DIFFERENCES}
    share = _ratio(plain, RATES["argmax_share"])
    row["argmax_share_vs_plain"] = share["value"] if share else None
    row["same_as_plain"] = _same_answers(plain)
    row |= _gain(row["fuzzy_share"], exact)
    return row


def _gain(fuzzy_share: float | None, exact: Pair | None) -> dict[str, Interval | float | None]:
    """What drafting gained over the exact rule, and how much of what it could."""
    gain = _ratio(exact, _tokens_and_rounds)
    most = of_most = None
    if gain is not None:
        tau = stats.rate_interval([_tokens_and_rounds(record) for record in exact[1]])["value"]
        top = ceiling(fuzzy_share, tau)
        if math.isfinite(top):
            most, of_most = top, gain["value"] / top
    return {"tokens_per_round_vs_exact": gain, "ceiling": most, "of_ceiling": of_most}


def ceiling(fuzzy_share: float, exact_tokens_per_round: float) -> float:
    """Most that tokens_per_round can gain over exact at this fuzzy share: 1 / (1 - f tau).

    A fuzzy token replaces the token that would have ended the round. The bound holds while a run
    after a fuzzy token is on average no longer than a fresh one; repetitive text breaks it.
    """
    left = 1 - fuzzy_share * exact_tokens_per_round
    return 1 / left if left > 0 else math.inf


def _same_answers(pair: Pair | None) -> float | None:
    """Share of answers that equal the plain loop's token for token."""
    if pair is None:
        return None
    mine, theirs = ([turn["token_ids"] for q in side for turn in q["turns"]] for side in pair)
    return sum(a == b for a, b in zip(mine, theirs, strict=True)) / len(mine)


def _difference(pair: Pair | None, parts: Parts) -> Interval | None:
    """Of the questions' own rates; questions where one side has none are left out."""
    if pair is None:
        return None
    part_Q4 = [(*parts(mine), *parts(theirs)) for mine, theirs in zip(*pair, strict=True)]
    rates = [(a / b, c / d) for a, b, c, d in part_Q4 if b and d]
    return _known(stats.paired_difference([a for a, _ in rates], [c for _, c in rates]))


def _ratio(pair: Pair | None, parts: Parts) -> Interval | None:
    return None if pair is None else _known(paired_ratio(*pair, parts))


def _known(interval: Interval) -> Interval | None:
    return None if interval["value"] is None else interval


def paired_ratio(
    rows: Sequence[Record], baseline: Sequence[Record] | None, parts: Parts
) -> Interval | None:
    """Rate of rows over rate of baseline, a rate being sum / sum of `parts` over the questions,
    with its paired bootstrap interval; the interval needs two questions."""
    if baseline is None:
        return None
    return stats.paired_ratio([parts(r) for r in rows], [parts(r) for r in baseline])

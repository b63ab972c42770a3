"""Spread over questions: intervals, paired differences, McNemar's test.

A question is the unit: what belongs to one (turns, choices) is summed or averaged before it comes
here. The margin of a value is Student's t times the jackknife's standard error: every question is
left out in turn (Tukey 1958), in both arms of a comparison. How often the intervals hold the truth,
resampled from a run's records: results/intervals.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import betaincinv, stdtrit

LEAST_QUESTIONS = 8  # with an interval
LEAST_UNLIKE = 3  # of them, unlike the rest
LEVEL, POWER = 0.975, 0.8  # two-sided 5 %

Interval = dict[str, float | None]  # value, low, high
NOTHING: Interval = {"value": None, "low": None, "high": None}
Statistic = Callable[[np.ndarray], np.ndarray]  # from sums [..., K] to values [...]


def interval(
    part_QK: Sequence[Sequence[float]],
    statistic: Statistic,
    *,
    logarithmic: bool = False,
    least: int = LEAST_QUESTIONS,
) -> Interval:
    """A function of sums over questions, with its 95 % interval.

    Args:
        part_QK: what is summed; K may be several axes.
        logarithmic: the margin is that of the logarithm, for what is skewed and never changes sign.

    Returns:
        {"value", "low", "high"}: what is not finite is None, and so are the bounds below `least`
        questions, where fewer than LEAST_UNLIKE are unlike the rest, and where the value hangs on
        one.
    """
    value, margin, unlike = _jackknife(part_QK, statistic)
    if not math.isfinite(value):
        return dict(NOTHING)
    low, high = value - margin, value + margin
    if logarithmic:
        with np.errstate(all="ignore"):
            factor = float(np.exp(np.divide(margin, value)))
            low, high = sorted([np.divide(value, factor), value * factor])
    if len(part_QK) < least or unlike < LEAST_UNLIKE or not math.isfinite(high - low):
        return NOTHING | {"value": value}
    return {"value": value, "low": float(low), "high": float(high)}


def _jackknife(
    part_QK: Sequence[Sequence[float]], statistic: Statistic
) -> tuple[float, float, int]:
    """Value, margin, and how many questions are unlike the rest, without each of which the value is
    the same."""
    part_QK = np.asarray(part_QK, dtype=np.float64)
    questions = len(part_QK)
    if not questions:
        return math.nan, math.nan, 0
    total_K = part_QK.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(total_K))
        without_Q = statistic(total_K - part_QK)
        spread = ((without_Q - without_Q.mean()) ** 2).mean()
    margin = float(stdtrit(questions - 1, LEVEL)) * math.sqrt((questions - 1) * spread)
    return value, margin, questions - np.unique(without_Q, return_counts=True)[1].max()


def mean_interval(values_Q: Sequence[float]) -> Interval:
    return interval([(value, 1) for value in values_Q], _rate)


def rate_interval(part_Q2: Sequence[Sequence[float]]) -> Interval:
    """Sum / sum over questions, as tokens per round: a row is (numerator, denominator)."""
    return interval(part_Q2, _rate, logarithmic=True)


def share_interval(part_Q2: Sequence[Sequence[float]]) -> Interval:
    """A share of answers, as looping, or a mean of scores from 0 to 1: Clopper and Pearson's bounds
    (1934) of as many independent answers as would have the jackknife's margin. They stay within
    [0, 1], hold the truth in at least 95 % of cases, and exist also where all questions are
    alike."""
    value, margin, unlike = _jackknife(part_Q2, _rate)
    questions = len(part_Q2)
    if questions < LEAST_QUESTIONS or not math.isfinite(margin):
        return rate_interval(part_Q2)
    t = stdtrit(questions - 1, LEVEL)
    answers = value * (1 - value) * (t / margin) ** 2 if unlike else questions
    held, other = value * answers, (1 - value) * answers
    low = betaincinv(held, other + 1, 1 - LEVEL) if held else 0.0
    high = betaincinv(held + 1, other, LEVEL) if other else 1.0
    return {"value": value, "low": float(low), "high": float(high)}


def median_interval(values_Q: Sequence[float]) -> Interval:
    """The median of independent questions. Its bounds are the innermost two values, as far from
    either end, between which it lies in at least 95 of 100 cases: on each side of it a value falls
    by a coin's toss (Thompson 1936)."""
    ordered, questions = sorted(values_Q), len(values_Q)
    if not ordered:
        return dict(NOTHING)
    found = NOTHING | {"value": float(np.median(ordered))}
    # the chance that at most `beyond` values lie below the median
    beyond = tail = 0
    while (tail := tail + math.comb(questions, beyond) / 2**questions) <= 1 - LEVEL:
        beyond += 1
    if questions < LEAST_QUESTIONS or ordered[0] == ordered[-1]:
        return found
    return found | {"low": ordered[beyond - 1], "high": ordered[-beyond]}


def paired_ratio(
    mine_Q2: Sequence[Sequence[float]], theirs_Q2: Sequence[Sequence[float]]
) -> Interval:
    """My rate over theirs, of the same questions."""
    both_Q22 = list(zip(mine_Q2, theirs_Q2, strict=True))
    return interval(both_Q22, lambda total_X22: _rate(_rate(total_X22)), logarithmic=True)


def _rate(total_X2: np.ndarray) -> np.ndarray:
    return total_X2[..., 0] / total_X2[..., 1]


def paired_difference(mine_Q: Sequence[float], theirs_Q: Sequence[float]) -> Interval:
    """The mean over questions of mine - theirs, with "detectable": the smallest true difference
    that this number of questions shows with power 80 % in a two-sided test at 5 %; None without
    bounds."""
    found = mean_interval([mine - theirs for mine, theirs in zip(mine_Q, theirs_Q, strict=True)])
    if found["low"] is None:
        return found | {"detectable": None}
    more = stdtrit(len(mine_Q) - 1, POWER) / stdtrit(len(mine_Q) - 1, LEVEL)
    return found | {"detectable": float((found["high"] - found["value"]) * (1 + more))}


def mcnemar(mine_Q: Sequence[bool], theirs_Q: Sequence[bool]) -> dict[str, int | float]:
    """McNemar's exact test of answers that are 0 or 1: how many only mine has, only theirs has, and
    the two-sided binomial p of a split as uneven."""
    differences = [int(mine) - int(theirs) for mine, theirs in zip(mine_Q, theirs_Q, strict=True)]
    gained, lost = differences.count(1), differences.count(-1)
    tail = sum(math.comb(gained + lost, i) for i in range(min(gained, lost) + 1))
    return {"gained": gained, "lost": lost, "mcnemar_p": min(1.0, tail / 2 ** (gained + lost - 1))}

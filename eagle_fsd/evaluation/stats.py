"""Spread over questions: bootstrap intervals, paired differences, McNemar's test. numpy alone.

A question is the unit: what belongs to one (turns, choices) is summed or averaged before it comes
here. Intervals are 95 % percentile bootstrap intervals from the same seeded resamples every time;
two arms that answered the same questions are resampled together, so theirs are paired.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

RESAMPLES = 2000
# two-sided 5 %, power 80 %: 1.96 + 0.84 standard errors
DETECTABLE = 2.8

Interval = dict[str, float | None]  # value, low, high


def mean_interval(values_Q: Sequence[float]) -> Interval:
    """The mean over questions: {"value", "low", "high"}; no bounds below two values, all None
    without any."""
    return rate_interval([(value, 1) for value in values_Q])


def rate_interval(part_Q2: Sequence[Sequence[float]]) -> Interval:
    """Sum / sum over questions, as tokens per round: a row is (numerator, denominator).

    Returns:
        {"value", "low", "high"}; value is None where the denominators sum to 0, the bounds are None
        below two questions.
    """
    return _bootstrap(part_Q2, 2, lambda total_X2: total_X2[..., 0] / total_X2[..., 1])


def paired_ratio(
    mine_Q2: Sequence[Sequence[float]], theirs_Q2: Sequence[Sequence[float]]
) -> Interval:
    """My rate over theirs, a rate being sum / sum over questions as in rate_interval; paired.

    Raises:
        ValueError: not the same number of questions.
    """
    _check_paired(mine_Q2, theirs_Q2)
    part_Q4 = [[*mine, *theirs] for mine, theirs in zip(mine_Q2, theirs_Q2, strict=True)]
    return _bootstrap(
        part_Q4,
        4,
        lambda total_X4: (
            (total_X4[..., 0] / total_X4[..., 1]) / (total_X4[..., 2] / total_X4[..., 3])
        ),
    )


def paired_difference(mine_Q: Sequence[float], theirs_Q: Sequence[float]) -> Interval:
    """The mean over questions of mine - theirs.

    Returns:
        {"value", "low", "high", "detectable"}: detectable is the smallest true difference that so
        many questions show with power 80 % in a two-sided test at 5 %, 2.8 standard errors of the
        mean difference. Bounds and detectable are None below two questions. Where all differences
        are equal detectable is 0, which says nothing of other questions.

    Raises:
        ValueError: not the same number of questions.
    """
    _check_paired(mine_Q, theirs_Q)
    detectable = None
    with np.errstate(invalid="ignore"):  # an infinite difference has no spread
        difference_Q = np.subtract(mine_Q, theirs_Q, dtype=np.float64)
        if len(difference_Q) > 1:
            error = difference_Q.std(ddof=1) / math.sqrt(len(difference_Q))
            detectable = _finite(DETECTABLE * error)
    return mean_interval(difference_Q) | {"detectable": detectable}


def mcnemar(mine_Q: Sequence[bool], theirs_Q: Sequence[bool]) -> dict[str, int | float]:
    """McNemar's exact test: are questions gained as often as they are lost?

    Returns:
        {"gained", "lost", "p"}: questions only mine has, only theirs has, and the two-sided
        binomial p of a split as uneven; 1.0 where no question differs.

    Raises:
        ValueError: not the same number of questions, or a value that is neither 0 nor 1.
    """
    _check_paired(mine_Q, theirs_Q)
    unfit = next((value for value in [*mine_Q, *theirs_Q] if value not in (0, 1)), None)
    if unfit is not None:
        raise ValueError(f"McNemar's test is of values that are 0 or 1, got {unfit}")
    differences = [int(mine) - int(theirs) for mine, theirs in zip(mine_Q, theirs_Q, strict=True)]
    gained, lost = differences.count(1), differences.count(-1)
    differing = gained + lost
    tail = sum(math.comb(differing, i) for i in range(min(gained, lost) + 1))
    return {"gained": gained, "lost": lost, "p": min(1.0, 2 * tail / 2**differing)}


def _check_paired(mine_Q: Sequence, theirs_Q: Sequence) -> None:
    if len(mine_Q) != len(theirs_Q):
        raise ValueError(
            f"{len(mine_Q)} questions against {len(theirs_Q)}: compare over the same questions"
        )


def _bootstrap(
    part_QK: Sequence[Sequence[float]], width: int, statistic: Callable[[np.ndarray], np.ndarray]
) -> Interval:
    """A function of the K columns' sums over questions, and its interval.

    Args:
        statistic: from sums [..., K] to values [...].
    """
    parts_QK = np.asarray(part_QK, dtype=np.float64).reshape(-1, width)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(parts_QK.sum(0))
        if len(parts_QK) < 2:
            return {"value": _finite(value), "low": None, "high": None}
        resampled_R = statistic(resamples(len(parts_QK)) @ parts_QK)
    resampled_R = resampled_R[np.isfinite(resampled_R)]  # some resamples may hold no round
    if not len(resampled_R):
        return {"value": _finite(value), "low": None, "high": None}
    low, high = np.percentile(resampled_R, [2.5, 97.5])
    return {"value": _finite(value), "low": float(low), "high": float(high)}


@lru_cache(maxsize=4)
def resamples(questions: int) -> np.ndarray:
    """How often every question is in every resample, [RESAMPLES, questions]."""
    pick_RQ = np.random.default_rng(0).integers(questions, size=(RESAMPLES, questions))
    return np.stack([np.bincount(pick_Q, minlength=questions) for pick_Q in pick_RQ]) * 1.0


def _finite(value: np.floating) -> float | None:
    return float(value) if np.isfinite(value) else None

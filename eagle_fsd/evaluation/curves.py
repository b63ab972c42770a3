"""Curves: arms that differ in their rule's value only, and what each has lost where its tokens per
round are GAINS times exact's, so that rules can be compared. Gain and loss are taken as linear
between the neighbouring values of a curve, exact the first; where a curve has the gain more than
once, the first counts: what one meets who turns the dial from exact on.

Axes: Q questions, X those or none (sums over all), A arms: plain, exact, then the curve's.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from eagle_fsd.arms import PLAIN
from eagle_fsd.evaluation.metrics import METRICS, exact_beside, rate_parts, shared_questions
from eagle_fsd.evaluation.record_numbers import Record
from eagle_fsd.rules import RULES
from eagle_fsd.stats import interval

GAINS = (1.05, 1.1, 1.2, 1.3)  # in tokens a round, over exact with the same drafter
LEAST = 16  # questions with an interval of what is read off: below, it held 91 of 100
LOSSES = {key: metric for key, metric in METRICS.items() if "equal speed" in metric.tables}


def curves(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows of arms whose rule has a value, by line, each in the order of the value, from the
    end that is nearest to exact (of `typical` that is the largest value)."""
    found = [row for row in rows if row["value"] is not None]
    named: dict[str, list[dict]] = {row["line"]: [] for row in found}
    for row in found:
        named[row["line"]].append(row)
    for arms in named.values():
        falling = RULES[arms[0]["rule"]].lossless_at > min(row["value"] for row in arms)
        arms.sort(key=lambda row: row["value"], reverse=falling)
    return named


def from_exact(arms: Sequence[dict]) -> tuple[list[float], list[float]]:
    """A curve's tokens a round over exact's, and its values; exact's own first, whose value is NaN
    where no finite one is exact. Without exact's for a rule that no value leads to exact."""
    exact = RULES[arms[0]["rule"]].lossless_at
    gains = [row["tokens_per_round_vs_exact"]["value"] for row in arms]
    values = [row["value"] for row in arms]
    if np.isnan(exact):
        return gains, values
    return [1.0, *gains], [exact if np.isfinite(exact) else np.nan, *values]


def equal_speed(records: Mapping[str, Sequence[Record]], rows: Sequence[dict]) -> list[dict]:
    """A row for every curve and gain that it reaches, from a run's records and summarize's rows:
    line, gain, value (interpolated; None before the first value of a rule that no finite value
    makes exact), and every metric of LOSSES as {"value", "low", "high"}.

    Bounds are None where the gain is not reached without one of the questions. Differences to plain
    are of the rates over all questions.
    """
    table = []
    for line, arms in curves(rows).items():
        exact = exact_beside(arms[0]["arm"], list(records))
        if not exact or PLAIN not in records:
            continue
        names = [PLAIN, exact, *(row["arm"] for row in arms)]
        found = shared_questions({name: records[name] for name in names})
        tokens_AQ2, *losses = (
            np.array([rate_parts(key, [of[q] for q in found[PLAIN]]) for of in found.values()])
            for key in ("tokens_per_round", *LOSSES)
        )
        gains, values = from_exact(arms)
        for gain in GAINS:
            if np.isnan(crossing(gains, gains, gain)):
                continue
            value = float(crossing(gains, values, gain))
            row = {"line": line, "gain": gain, "value": None if np.isnan(value) else value}
            for (key, metric), loss_AQ2 in zip(LOSSES.items(), losses, strict=True):
                part_Q2A2 = np.stack([tokens_AQ2, loss_AQ2]).transpose(2, 0, 1, 3)
                less = bool(metric.minus)
                lost = partial(lost_at, gain=gain, points=len(gains), less_plain=less)
                row[key] = interval(part_Q2A2, lost, least=LEAST)
            table.append(row)
    return table


def lost_at(total_X2A2: np.ndarray, *, gain: float, points: int, less_plain: bool) -> np.ndarray:
    """From the sums of tokens a round and of a loss: the loss where the gain is reached by the last
    `points` arms."""
    tokens_XA, loss_XA = np.moveaxis(total_X2A2[..., 0] / total_X2A2[..., 1], -2, 0)
    loss_XA = loss_XA - loss_XA[..., :1] if less_plain else loss_XA
    gain_XA = tokens_XA / tokens_XA[..., 1:2]
    return crossing(gain_XA[..., -points:], loss_XA[..., -points:], gain)


def crossing(gain_XA: ArrayLike, loss_XA: ArrayLike, gain: float) -> np.ndarray:
    """The losses [X] where curves first have the gain: on the first segment from exact on whose
    ends hold it between them, linear between these two; NaN where none does.

    Example: gains 1, 1.2, 1.1, 1.3 with losses 0, 1, .5, 2 have 1.25 first on the last segment, at
    a loss of 1.625.
    """
    gain_XA = np.asarray(gain_XA, dtype=np.float64)
    loss_XA = np.asarray(loss_XA, dtype=np.float64)
    next_A = [*range(1, gain_XA.shape[-1]), -1]  # the last value is a segment of its own
    # a neighbour whose gain is unknown is left out
    low_XA = np.fmin(gain_XA, gain_XA[..., next_A])
    high_XA = np.fmax(gain_XA, gain_XA[..., next_A])
    holds_XA = (low_XA <= gain) & (gain <= high_XA)
    first_X1 = holds_XA.argmax(-1)[..., None]

    def first(value_XA: np.ndarray) -> np.ndarray:
        return np.take_along_axis(value_XA, first_X1, -1)[..., 0]

    start_X, end_X = first(gain_XA), first(gain_XA[..., next_A])
    start_loss_X, end_loss_X = first(loss_XA), first(loss_XA[..., next_A])
    with np.errstate(divide="ignore", invalid="ignore"):  # where an end itself has the gain
        share_X = (gain - start_X) / (end_X - start_X)
        loss_X = start_loss_X + share_X * (end_loss_X - start_loss_X)
    loss_X = np.where(end_X == gain, end_loss_X, loss_X)
    loss_X = np.where(start_X == gain, start_loss_X, loss_X)
    return np.where(first(holds_XA), loss_X, np.nan)

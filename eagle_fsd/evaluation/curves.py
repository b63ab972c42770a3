"""Curves: arms that differ in their rule's value only, and what each curve has lost where its
tokens_per_round are 1.05, 1.1, 1.2 times exact's, so that rules, and the control `random`, can be
compared.

Between two neighbouring values of a curve (exact being the first) gain and loss are taken as
linear; nothing is extrapolated. Intervals resample the questions, all arms together, and read every
resample off anew.

Axes: Q questions, R resamples, A arms of a curve.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from eagle_fsd.evaluation.arms import PLAIN
from eagle_fsd.evaluation.metrics import METRICS, Metric, Record, by_question, exact_beside
from eagle_fsd.evaluation.stats import Interval, resamples

GAINS = (1.05, 1.1, 1.2)
GAIN = "tokens_per_round"
LOST = {key: metric for key, metric in METRICS.items() if "equal speed" in metric.tables}
ENOUGH = 0.975  # of the resamples must reach a gain for an interval to be given


def curves(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows of arms whose rule has a value, by line, in the order of the value."""
    named: dict[str, list[dict]] = {}
    for row in sorted((row for row in rows if row["value"] is not None), key=lambda r: r["value"]):
        named.setdefault(row["line"], []).append(row)
    return {
        line: named[line]
        for line in dict.fromkeys(row["line"] for row in rows if row["line"] in named)
    }


def equal_speed(records: Mapping[str, Sequence[Record]], rows: Sequence[dict]) -> list[dict]:
    """A row for every curve and gain that it reaches.

    Args:
        records: of a run, by arm.
        rows: of the run, from summarize.

    Returns:
        line, gain, value (interpolated), and every metric of LOST as {"value", "low", "high"},
        bounds None where too few resamples reach the gain or there is one question. Differences to
        plain are of the rates over all questions.
    """
    table = []
    for line, arms in curves(rows).items():
        exact = exact_beside(arms[0]["arm"], list(records))
        if not exact or PLAIN not in records:
            continue
        found = _shared([records[arm] for arm in (PLAIN, exact, *(row["arm"] for row in arms))])
        if not found[0]:
            continue
        gain_RA = _rates(found, METRICS[GAIN])[:, 1:]
        gain_RA = gain_RA / gain_RA[:, :1]
        value_A = np.array([0.0, *(row["value"] for row in arms)])
        loss_RA = {key: _losses(found, metric) for key, metric in LOST.items()}
        for gain in GAINS:
            value = crossing(gain_RA[0], value_A, gain)
            if not np.isnan(value):
                lost = {key: _read_off(gain_RA, loss, gain) for key, loss in loss_RA.items()}
                table.append({"line": line, "gain": gain, "value": value} | lost)
    return table


def _shared(arms: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """Every arm's records of the questions that all have."""
    grouped = [by_question(records) for records in arms]
    keys = [key for key in grouped[0] if all(key in other for other in grouped)]
    return [[mine[key] for key in keys] for mine in grouped]


def _losses(arms: list[list[Record]], metric: Metric) -> np.ndarray:
    """A metric of exact and the curve's arms, [1 + R, A]; of a difference, less plain's."""
    rate_RA = _rates(arms, METRICS[metric.of] if metric.of else metric)
    return rate_RA[:, 1:] - (rate_RA[:, :1] if metric.of else 0.0)


def _rates(arms: list[list[Record]], rate: Metric) -> np.ndarray:
    """A rate of plain, exact and the curve's arms, [1 + R, 1 + A]: over all questions, then over
    each resample."""
    part_AQ2 = np.array([[(rate.numerator(r), rate.denominator(r)) for r in arm] for arm in arms])
    questions = part_AQ2.shape[1]
    weight_RQ = np.ones((1, questions))
    if questions > 1:
        weight_RQ = np.concatenate([weight_RQ, resamples(questions)])
    total_AR2 = weight_RQ @ part_AQ2
    with np.errstate(divide="ignore", invalid="ignore"):
        return (total_AR2[..., 0] / total_AR2[..., 1]).T


def _read_off(gain_RA: np.ndarray, loss_RA: np.ndarray, gain: float) -> Interval:
    """Row 0 is over all questions, the others are resamples."""
    at_R = np.array([crossing(*pair, gain) for pair in zip(gain_RA, loss_RA, strict=True)])
    value = float(at_R[0]) if np.isfinite(at_R[0]) else None
    reached_R = at_R[1:][np.isfinite(at_R[1:])]
    if len(reached_R) < max(2, ENOUGH * (len(at_R) - 1)):
        return {"value": value, "low": None, "high": None}
    low, high = np.percentile(reached_R, [2.5, 97.5])
    return {"value": value, "low": float(low), "high": float(high)}


def crossing(gain_A: np.ndarray, loss_A: np.ndarray, gain: float) -> float:
    """The loss where the gain is first reached, linear between neighbours; NaN if it is not."""
    for low in range(len(gain_A) - 1):
        before, after = gain_A[low], gain_A[low + 1]
        if before <= gain <= after and after > before:
            share = (gain - before) / (after - before)
            return float(loss_A[low] + share * (loss_A[low + 1] - loss_A[low]))
    return np.nan

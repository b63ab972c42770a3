"""Curves: arms that differ in their rule's value only, and what each curve has lost where its
tokens_per_round are 1.05, 1.1, 1.2 times exact's, so that rules, and the control `random`, can be
compared.

Between two neighbouring values of a curve (exact being the first) gain and loss are taken as
linear; nothing is extrapolated.

Axes: Q questions, X those or none (sums over all), A arms: plain, exact, then the curve's.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from eagle_fsd.evaluation.arms import PLAIN
from eagle_fsd.evaluation.metrics import (
    METRICS,
    Record,
    exact_beside,
    question_parts,
    shared_questions,
)
from eagle_fsd.evaluation.stats import interval

GAINS = (1.05, 1.1, 1.2)
LOST = {key: metric for key, metric in METRICS.items() if "equal speed" in metric.tables}


def curves(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows of arms whose rule has a value, by line, each in the order of the value."""
    found = [row for row in rows if row["value"] is not None]
    named: dict[str, list[dict]] = {row["line"]: [] for row in found}
    for row in sorted(found, key=lambda row: row["value"]):
        named[row["line"]].append(row)
    return named


def equal_speed(records: Mapping[str, Sequence[Record]], rows: Sequence[dict]) -> list[dict]:
    """A row for every curve and gain that it reaches.

    Args:
        records: of a run, by arm.
        rows: of the run, from summarize.

    Returns:
        line, gain, value (interpolated), and every metric of LOST as {"value", "low", "high"},
        bounds None where the gain is not reached without one of the questions. Differences to plain
        are of the rates over all questions.
    """
    table = []
    for line, arms in curves(rows).items():
        exact = exact_beside(arms[0]["arm"], list(records))
        if not exact or PLAIN not in records:
            continue
        names = [PLAIN, exact, *(row["arm"] for row in arms)]
        found = shared_questions({name: records[name] for name in names})
        parts_A = [question_parts(found[name], timed=False) for name in names]
        gains = [1.0, *(row["tokens_per_round_vs_exact"]["value"] for row in arms)]
        for gain in GAINS:
            value = crossing(gains, [0.0, *(row["value"] for row in arms)], gain)
            lost = {}
            for key, metric in LOST.items():
                rates = ("tokens_per_round", metric.of or key)
                part_Q2A2 = [[[of[q][r] for of in parts_A] for r in rates] for q in parts_A[0]]
                lost[key] = interval(part_Q2A2, partial(_lost, gain=gain, minus=metric.minus))
            if not np.isnan(value):
                table.append({"line": line, "gain": gain, "value": float(value)} | lost)
    return table


def _lost(total_X2A2: np.ndarray, *, gain: float, minus: str) -> np.ndarray:
    """From the sums of tokens a round and of a loss: the loss where the gain is reached."""
    tokens_XA, loss_XA = np.moveaxis(total_X2A2[..., 0] / total_X2A2[..., 1], -2, 0)
    loss_XA = loss_XA - loss_XA[..., :1] if minus else loss_XA
    return crossing(tokens_XA[..., 1:] / tokens_XA[..., 1:2], loss_XA[..., 1:], gain)


@partial(np.vectorize, signature="(a),(a),()->()")
def crossing(gain_A: np.ndarray, loss_A: np.ndarray, gain: float) -> float:
    """The loss where the gain is first reached, linear between neighbours; NaN if it is not."""
    rising_A = np.maximum.accumulate(np.asarray(gain_A, dtype=np.float64))
    return np.interp(gain, rising_A, loss_A, left=np.nan, right=np.nan)

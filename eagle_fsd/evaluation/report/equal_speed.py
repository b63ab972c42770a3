"""What is lost at the same gain: every line read off where its tokens_per_round is 1.05, 1.1, 1.2
times exact's, with intervals, so that rules, and the control `random`, can be compared.

Between two neighbouring thresholds of a line (exact being the first) gain and loss are taken as
linear; nothing is extrapolated. Intervals resample the questions, all arms together, and read every
resample off anew.

Axes: Q questions, R resamples, A arms of a line.
"""

from collections.abc import Sequence

import numpy as np

from eagle_fsd.evaluation.metrics import RATES
from eagle_fsd.evaluation.report.arm_rows import beside, lines
from eagle_fsd.evaluation.stats import Interval, resamples

GAINS = (1.05, 1.1, 1.2)
GAIN = "tokens_per_round"
# figure of summary.RATES -> whether it is given as a difference to plain
LOST = {
    "fuzzy_share": False,
    "regret_per_token": False,
    "argmax_share": True,
    "mean_logp": True,
    "tokens_per_answer": True,
    "at_limit": True,
    "repetition": True,
    "looping": True,
}
ENOUGH = 0.975  # of the resamples must reach a gain for an interval to be given


def equal_speed(records: dict[tuple[str, str], list[dict]], rows: Sequence[dict]) -> list[dict]:
    """A row for every line and gain that it reaches.

    Args:
        records: (run, arm) -> records.
        rows: from figures.arm_rows.

    Returns:
        line, gain, threshold (interpolated), and for every figure of LOST {"value", "low",
        "high"}, bounds None where too few resamples reach the gain or there is one question.
    """
    table = []
    for name, arms in lines(rows).items():
        exact, plain = (beside(rows, arms[0], rule) for rule in ("exact", "plain"))
        if exact is None or plain is None:
            continue
        found = _by_question([records[r["run"], r["arm"]] for r in (plain, exact, *arms)])
        if not found[0]:
            continue
        rates = {figure: _rates(found, figure) for figure in (GAIN, *LOST)}
        gain_RA = rates[GAIN][:, 1:] / rates[GAIN][:, 1:2]
        threshold_A = np.array([0.0, *(row["threshold"] for row in arms)])
        for gain in GAINS:
            threshold = crossing(gain_RA[0], threshold_A, gain)
            if np.isnan(threshold):
                continue
            row = {"run": arms[0]["run"], "line": name, "gain": gain, "threshold": threshold}
            for figure, against_plain in LOST.items():
                baseline_R1 = rates[figure][:, :1] if against_plain else 0.0
                row[figure] = _read_off(gain_RA, rates[figure][:, 1:] - baseline_R1, gain)
            table.append(row)
    return table


def _by_question(arms: Sequence[list[dict]]) -> list[list[list[dict]]]:
    """Of every arm, the records of each question that all have."""
    grouped: list[dict] = []
    for records in arms:
        mine: dict = {}
        for record in records:
            mine.setdefault(record["question_id"], []).append(record)
        grouped.append(mine)
    shared = [key for key in grouped[0] if all(key in other for other in grouped)]
    return [[mine[key] for key in shared] for mine in grouped]


def _read_off(gain_RA: np.ndarray, loss_RA: np.ndarray, gain: float) -> Interval:
    """Row 0 is over all questions, the others are resamples."""
    at_R = np.array([crossing(*pair, gain) for pair in zip(gain_RA, loss_RA, strict=True)])
    interval = {"value": float(at_R[0]), "low": None, "high": None}
    reached_R = at_R[1:][np.isfinite(at_R[1:])]
    if len(reached_R) < max(2, ENOUGH * (len(at_R) - 1)):
        return interval
    low, high = np.percentile(reached_R, [2.5, 97.5])
    return interval | {"low": float(low), "high": float(high)}


def _rates(arms: list[list[list[dict]]], figure: str) -> np.ndarray:
    """A figure of every arm, [1 + R, A]: over all questions, then over each resample."""
    parts = RATES[figure]
    part_AQ2 = np.array(
        [[np.sum([parts(r) for r in same], axis=0) for same in arm] for arm in arms]
    )
    questions = part_AQ2.shape[1]
    weight_RQ = np.ones((1, questions))
    if questions > 1:
        weight_RQ = np.concatenate([weight_RQ, resamples(questions)])
    total_AR2 = weight_RQ @ part_AQ2
    with np.errstate(divide="ignore", invalid="ignore"):
        return (total_AR2[..., 0] / total_AR2[..., 1]).T


def crossing(gain_A: np.ndarray, loss_A: np.ndarray, gain: float) -> float:
    """The loss where the gain is first reached, linear between neighbours; NaN if it is not."""
    for low in range(len(gain_A) - 1):
        before, after = gain_A[low], gain_A[low + 1]
        if before <= gain <= after and after > before:
            share = (gain - before) / (after - before)
            return float(loss_A[low] + share * (loss_A[low + 1] - loss_A[low]))
    return np.nan

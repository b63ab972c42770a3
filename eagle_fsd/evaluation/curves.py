"""Curves: arms that differ in their rule's value only, and what each has lost where its tokens per
round are GAINS times exact's, so that rules can be compared. Gain and loss are taken as linear
between two neighbouring arms of a curve, and never beyond its measured arms; where a curve has the
gain more than once, the first counts: what one meets who turns the dial from exact on.

Axes: Q questions, X those or none (sums over all), A arms: plain, exact, then the curve's.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from eagle_fsd.arms import PLAIN
from eagle_fsd.evaluation.metrics import METRICS, exact_beside, rate_parts, shared_questions
from eagle_fsd.evaluation.record_numbers import Record
from eagle_fsd.rules import RULES
from eagle_fsd.stats import interval

GAIN = "tokens_per_round_vs_exact"
GAINS = (1.05, 1.1, 1.2, 1.3)  # in tokens a round, over exact with the same drafter
LEAST = 16  # questions with an interval of what is read off: below, it held 91 of 100
# The widest step in gain between two arms that is read as linear. Arms left out of the curves of
# results/rule_front and read off their neighbours within it had a regret that was off by .02 nats
# a token in the median; the gain at a value read off so was off by up to .07, so none is given.
WIDEST = 0.25
LOSSES = {key: metric for key, metric in METRICS.items() if "equal gain" in metric.tables}


def curves(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows of arms whose rule has a value, by line, each from the end that is nearest to exact
    (of `typical` that is the largest value)."""
    by_line: dict[str, list[dict]] = {}
    for row in rows:
        if row["value"] is not None:
            by_line.setdefault(row["line"], []).append(row)
    for arms in by_line.values():
        falling = RULES[arms[0]["rule"]].lossless_at > min(row["value"] for row in arms)
        arms.sort(key=lambda row: row["value"], reverse=falling)
    return by_line


def equal_gain(records: Mapping[str, Sequence[Record]], rows: Sequence[dict]) -> list[dict]:
    """A row for every curve and gain that lies between two of its measured arms, at most WIDEST
    apart: line, the gain, between (the values of the two arms), and every metric of LOSSES as
    {"value", "low", "high"}. Bounds are None where the gain is not reached without one of the
    questions. Differences to plain are of the rates over all questions, which are the rows': those
    that all arms have, also where this line's arms have more of them."""
    table, answered = [], shared_questions(records)
    for line, arms in curves(rows).items():
        exact = exact_beside(arms[0]["arm"], list(records))
        if not exact or PLAIN not in records:
            continue
        names = [PLAIN, exact, *(row["arm"] for row in arms)]
        shared = {name: answered[name] for name in names}
        tokens_AQ2, *losses = (
            np.array([rate_parts(key, [shared[arm][q] for q in shared[PLAIN]]) for arm in shared])
            for key in ("tokens_per_round", *LOSSES)
        )
        # unknown of an arm without rounds
        gains = [math.nan if row[GAIN]["value"] is None else row[GAIN]["value"] for row in arms]
        for gain in GAINS:
            place = crossing(gains, range(len(arms)), gain)  # 1.5: amid the second arm and third
            if math.isnan(place):
                continue
            start, end = math.floor(place), math.ceil(place)
            if abs(gains[end] - gains[start]) > WIDEST:
                continue
            between = " and ".join(f"{arms[at]['value']:g}" for at in dict.fromkeys((start, end)))
            row = {"line": line, GAIN: gain, "between": between}
            for (key, metric), loss_AQ2 in zip(LOSSES.items(), losses, strict=True):
                part_Q2A2 = np.stack([tokens_AQ2, loss_AQ2]).transpose(2, 0, 1, 3)
                lost = partial(lost_at, gain=gain, less_plain=bool(metric.baseline))
                row[key] = interval(part_Q2A2, lost, least=LEAST)
            table.append(row)
    return table


def lost_at(total_X2A2: np.ndarray, *, gain: float, less_plain: bool) -> np.ndarray:
    """From the sums of tokens a round and of a loss: the loss where a curve has the gain."""
    tokens_XA, loss_XA = np.moveaxis(total_X2A2[..., 0] / total_X2A2[..., 1], -2, 0)
    if less_plain:
        loss_XA = loss_XA - loss_XA[..., :1]
    gain_XA = tokens_XA / tokens_XA[..., 1:2]
    read_off = np.vectorize(crossing, signature="(a),(a),()->()")
    return read_off(gain_XA[..., 2:], loss_XA[..., 2:], gain)


def crossing(gains: Sequence[float], losses: Sequence[float], gain: float) -> float:
    """The loss where a curve first has the gain: between the first two neighbours whose gains hold
    it, linear between these; NaN where none do.

    Example: gains 1, 1.2, 1.1, 1.3 with losses 0, 1, .5, 2 have 1.25 first on the last segment, at
    a loss of 1.625.
    """
    points = list(zip(gains, losses, strict=True))
    # the last arm is a segment of its own; where a gain is unknown (NaN) no comparison holds
    for (start, loss), (end, end_loss) in zip(points, [*points[1:], points[-1]], strict=True):
        if start == gain:
            return loss
        if end == gain:
            return end_loss
        if start < gain < end or end < gain < start:
            return loss + (gain - start) / (end - start) * (end_loss - loss)
    return math.nan

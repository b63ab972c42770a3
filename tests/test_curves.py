"""Curves: loss at equal speed, read off between values, with intervals over questions; the plot."""

import math

import numpy as np
import pytest
from hand_records import HAND, NO_ROUNDS, all_fuzzy, made_run

from eagle_fsd.evaluation.curve_plot import plot_curves
from eagle_fsd.evaluation.curves import LOST, crossing, curves, equal_speed
from eagle_fsd.evaluation.metrics import METRICS, summarize


def pooled(records: list[dict], key: str) -> float:
    metric = METRICS[key]
    return sum(map(metric.numerator, records)) / sum(map(metric.denominator, records))


def test_a_line_is_read_off_between_its_values():
    """By hand, from the arms' pooled rates; a gain that the line does not reach has no row."""
    records = made_run(9)
    records = {arm: records[arm] for arm in ("plain", "exact", "fsd:0.4", "fsd:0.2")}
    found = {row["gain"]: row for row in equal_speed(records, summarize(records))}
    gains = {arm: pooled(records[arm], "tokens_per_round") for arm in records}
    low, high = (gains[arm] / gains["exact"] for arm in ("fsd:0.2", "fsd:0.4"))
    assert 1 < low < 1.1 < high < 1.2 and set(found) == {1.05, 1.1}
    row, at = found[1.1], (1.1 - low) / (high - low)
    assert row["line"] == "fsd" and row["value"] == pytest.approx(0.2 + 0.2 * at)
    for key in ("regret_per_token", "mean_logp_minus_plain"):
        rate = METRICS[key].of or key
        start, end = (pooled(records[arm], rate) for arm in ("fsd:0.2", "fsd:0.4"))
        plain = pooled(records["plain"], rate) if METRICS[key].of else 0.0
        assert row[key]["value"] == pytest.approx(start + (end - start) * at - plain)
        assert row[key]["low"] < row[key]["value"] < row[key]["high"]


def test_few_questions_and_lacking_baselines():
    """One question has no interval; what not all arms have answered is left out; nothing is read
    off without exact or plain."""
    whole = made_run(4)
    rows = summarize(whole)
    one = {arm: found[:1] for arm, found in whole.items()}
    assert all(row[key]["low"] is None for row in equal_speed(one, rows) for key in LOST)
    less = whole | {"fsd:0.4": whole["fsd:0.4"][:3]}
    same = {arm: found[:3] for arm, found in whole.items()}
    fsd = [row for row in rows if row["rule"] == "fsd"]
    assert equal_speed(less, fsd) == equal_speed(same, fsd)
    for lacking in ("exact", "plain"):
        assert equal_speed({a: f for a, f in whole.items() if a != lacking}, rows) == []


def test_crossing():
    """The first crossing counts; nothing is extrapolated; a flat piece is passed over."""
    gain_A, loss_A = np.array([1.0, 1.0, 1.2, 1.1, 1.4]), np.array([0.0, 5.0, 7.0, 9.0, 3.0])
    assert crossing(gain_A, loss_A, 1.1) == pytest.approx(6.0)
    assert crossing(gain_A, loss_A, 1.3) == pytest.approx(5.0)
    assert math.isnan(crossing(gain_A, loss_A, 1.5)) and math.isnan(crossing(gain_A, loss_A, 0.9))


def test_curves_join_values_of_one_line():
    """In the order of the value; arms without one are no curve."""
    arms = ["exact", "fsd:0.4", "fsd:0.1,child=target", "fsd:0.2", "random:0.3"]
    found = curves(summarize({arm: HAND["exact"] for arm in arms}))
    assert {line: [row["value"] for row in rows] for line, rows in found.items()} == {
        "fsd": [0.2, 0.4],
        "fsd,child=target": [0.1],
        "random": [0.3],
    }


@pytest.mark.parametrize(
    ("records", "drawn"),
    [
        (HAND, True),
        (all_fuzzy(), True),
        ({arm: HAND[arm] for arm in ("plain", "fsd:0.2")}, True),
        ({"fsd:0.2": HAND["fsd:0.2"]}, True),
        ({arm: rows[:1] for arm, rows in HAND.items()}, True),
        ({f"fsd:0.2,divergence=tv@eagle:{n}x3x4": HAND["fsd:0.2"] for n in range(7, 37)}, True),
        ({"plain": HAND["plain"]}, False),
        ({"plain": NO_ROUNDS, "exact": NO_ROUNDS}, False),
    ],
    ids=["hand", "no ceiling", "no exact", "alone", "one question", "many", "plain", "none"],
)
def test_the_plot_is_drawn(tmp_path, records, drawn):
    """As SVG and PDF, whatever arms there are that draft; the same every time."""
    svg = plot_curves(summarize(records), tmp_path / "plot")
    assert bool(svg) == drawn and len(list(tmp_path.iterdir())) == (2 if drawn else 0)
    if drawn:
        assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF") and "<svg" in svg
        assert svg == plot_curves(summarize(records), tmp_path / "plot")

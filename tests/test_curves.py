"""Curves: loss at equal speed, read off between values, with intervals over questions; the plot."""

import math

import pytest
from hand_records import HAND, NO_ROUNDS, made_run

from eagle_fsd.evaluation.curves import LEAST, LOST, crossing, equal_speed, plot_curves
from eagle_fsd.evaluation.metrics import METRICS, summarize


def pooled(records: list[dict], key: str) -> float:
    metric = METRICS[key]
    return sum(map(metric.numerator, records)) / sum(map(metric.denominator, records))


def test_a_line_is_read_off_between_its_values():
    """By hand, from the arms' pooled rates, in the order of their values; a gain
    that the line does not reach has no row."""
    records = made_run(LEAST)
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
    # few questions have no interval; nothing is read off without exact or plain
    records = made_run(LEAST - 1)
    found = equal_speed(records, summarize(records))
    assert found and all(row[key]["low"] is None for row in found for key in LOST)
    for lacking in ("exact", "plain"):
        less = {arm: rows for arm, rows in records.items() if arm != lacking}
        assert equal_speed(less, summarize(less)) == []


def test_crossing():
    """The first crossing counts; nothing is extrapolated; a flat piece is passed over."""
    gains, losses = [1.0, 1.0, 1.2, 1.4, 1.3], [0.0, 5.0, 7.0, 9.0, 3.0]
    assert crossing(gains, losses, 1.1) == pytest.approx(6)
    assert crossing(gains, losses, 1.3) == pytest.approx(8)
    assert math.isnan(crossing(gains, losses, 1.5)) and math.isnan(crossing(gains, losses, 0.9))
    assert math.isnan(crossing([1.0, None], losses[:2], 1.1))


@pytest.mark.parametrize(
    ("records", "drawn"),
    [
        (made_run(8), True),
        ({arm: HAND[arm] for arm in ("plain", "exact")}, True),
        ({arm: HAND[arm] for arm in ("plain", "fsd:0.2")}, False),
        ({"plain": NO_ROUNDS, "exact": NO_ROUNDS}, False),
    ],
)
def test_the_plot_is_drawn(tmp_path, records, drawn):
    """As SVG and PDF; the same every time. Nothing without exact, or without rounds."""
    svg = plot_curves(summarize(records), tmp_path / "plot")
    assert bool(svg) == drawn and len(list(tmp_path.iterdir())) == (2 if drawn else 0)
    if drawn:
        assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF") and "<svg" in svg
        assert svg == plot_curves(summarize(records), tmp_path / "plot")

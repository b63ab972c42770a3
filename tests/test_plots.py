"""Plots show the arms that have both numbers, and their captions say what is drawn, or why nothing
is."""

import itertools
import re

import numpy as np
import pytest
from commands import ROOT
from hand_records import HAND, NO_ROUNDS, made_run
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from eagle_fsd.evaluation.metrics import summarize, untimed
from eagle_fsd.evaluation.plots import (
    GAIN,
    INK,
    LIKELIHOOD,
    LOSS,
    MARKS,
    SPEED,
    caption,
    draw_curves,
    front_of,
    place_labels,
    plot_curves,
)
from eagle_fsd.rules import RULES

README = ("path", "fsd", "relaxed", "random")  # the rules that the README draws
PAGES = ("#ffffff", "#15171a")  # page.css, light and dark
# how people without one of the three kinds of cones see linear RGB (Machado and others 2009)
SIGHTS = {
    "whole": np.eye(3),
    "without red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "without green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "without blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def linear_rgb(color: str) -> np.ndarray:
    value = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(color: str, page: str) -> float:
    """WCAG's, from 1 to 21."""
    low, high = sorted(float(linear_rgb(each) @ TO_XYZ[1]) for each in (color, page))
    return (high + 0.05) / (low + 0.05)


def lab(color: str, sight: list) -> np.ndarray:
    """CIE 1976 L*a*b*, in which a distance of 2 is just seen."""
    x, y, z = np.cbrt(
        np.array(TO_XYZ) @ np.clip(np.array(sight) @ linear_rgb(color), 1e-3, 1) / (0.95, 1, 1.09)
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_every_rule_has_a_mark_of_its_own_that_all_readers_see():
    """On white and on dark pages; the README's rules by their colours alone."""
    assert MARKS.keys() >= RULES.keys() and len(set(MARKS.values())) == len(MARKS)
    for color in {color for color, _ in MARKS.values()} - {INK}:
        assert all(contrast(color, page) >= 3 for page in PAGES), color
    for one, other in itertools.combinations([MARKS[rule][0] for rule in README], 2):
        for name, sight in SIGHTS.items():
            assert np.linalg.norm(lab(one, sight) - lab(other, sight)) > 12, (one, other, name)


@pytest.mark.parametrize(
    ("records", "gain", "speed"),
    [
        (made_run(8), True, True),
        ({arm: HAND[arm] for arm in ("plain", "exact")}, True, True),
        ({arm: HAND[arm] for arm in ("exact", "fsd:0.2")}, True, True),
        ({arm: HAND[arm] for arm in ("plain", "fsd:0.2")}, False, True),
        ({"plain": NO_ROUNDS, "exact": NO_ROUNDS}, False, True),
        (untimed({arm: HAND[arm] for arm in ("plain", "exact")}), True, False),
        (untimed({arm: HAND[arm] for arm in ("plain", "fsd:0.2")}), False, False),
    ],
)
def test_a_plot_is_drawn_where_it_can_be_and_else_its_caption_says_why(
    tmp_path, records, gain, speed
):
    """As SVG and PDF, the same every time. A gain needs exact, a speed timings, neither needs
    plain."""
    rows = summarize(records)
    for across, drawn in ((GAIN, gain), (SPEED, speed)):
        place = tmp_path / across / "plot"
        svg = plot_curves(rows, place, across=across)
        assert bool(svg) == drawn == place.parent.exists()
        assert caption(rows, across=across).startswith("There is no plot") != drawn
        if drawn:
            assert place.with_suffix(".pdf").read_bytes().startswith(b"%PDF") and "<svg" in svg
            assert svg == plot_curves(rows, place, across=across)


def test_a_plot_without_plain_shows_log_probabilities_as_they_are(tmp_path):
    with_plain = plot_curves(summarize(HAND), tmp_path / "with")
    rows = summarize({arm: HAND[arm] for arm in ("exact", "fsd:0.2")})
    without = plot_curves(rows, tmp_path / "without")
    assert "minus plain" in with_plain and "minus plain" not in without
    assert "No arm is plain" in caption(rows) and "No arm is plain" not in caption(summarize(HAND))


def drawn_bars(rows: list[dict], across: str) -> int:
    """Bars that are longer than nothing."""
    points = [row for row in rows if across == SPEED or row["rule"] != "plain"]
    (axes,) = draw_curves(points, across, LOSS).axes
    bars = [segment for lines in axes.collections for segment in lines.get_segments()]
    return sum(bool(np.ptp(segment, axis=0).any()) for segment in bars if len(segment))


@pytest.mark.parametrize("across", [GAIN, SPEED])
def test_captions_claim_the_bars_that_are_drawn(across):
    """Bug held down: under a plot of 4 questions stood that its bars are intervals; it had none."""
    for questions in (4, 7, 8):
        rows = summarize(made_run(questions))
        claims = "Bars are 95 % intervals" in caption(rows, across=across)
        assert claims == (drawn_bars(rows, across) > 0) == (questions == 8)
        few = f"{questions} questions are too few to rank" in caption(rows, across=across)
        assert few == (questions < 8)


def test_captions_claim_no_values_beside_points_that_have_none():
    rows = [row for row in summarize(made_run(8)) if row["arm"] not in ("fsd:0.4", "random:0.3")]
    assert "value of its rule" in caption(summarize(made_run(8)))
    assert "value of its rule" not in caption(rows)
    (axes,) = draw_curves(rows[1:], GAIN, LOSS).axes
    assert not axes.texts


def test_captions_name_the_arms_that_are_not_drawn():
    rows = summarize(HAND | {"ratio:1@ngram": HAND["fsd:0.2"]})
    assert "both numbers" not in caption(rows)
    assert caption(rows).endswith("lack one of the two numbers: generate, ratio:1@ngram.")
    assert "lack" not in caption(rows, across=SPEED)


def test_the_front_holds_the_arms_that_none_is_better_than():
    """(3, 1) is on it, (3, 0) and (1, 3) are not: others are as good and better."""
    places = [(2.0, 4.0), (3.0, 0.0), (1.0, 3.0), (3.0, 1.0), (1.5, 5.0)]
    rows = [{"x": {"value": x}, "y": {"value": y}} for x, y in places]
    assert front_of(rows, "x", "y").tolist() == [[1.5, 5], [2, 4], [3, 1]]


def test_the_front_is_drawn_of_each_run_alone(tmp_path):
    rows = summarize(made_run(8))
    both = [row | {"run": run, "arm": f"{run}: {row['arm']}"} for run in "ab" for row in rows]
    for drawn, runs in ((rows, 1), (both, 2)):
        drawn = [row for row in drawn if row["rule"] != "plain"]
        (axes,) = draw_curves(drawn, GAIN, LOSS).axes
        steps = [line for line in axes.lines if line.get_drawstyle() == "steps-pre"]
        assert len(steps) == runs
        assert ("of each run" in caption(drawn)) == (runs == 2)


def test_path_is_drawn_over_the_others_in_its_own_colour():
    records = made_run(8)
    records = {"plain": records["plain"], "path:0.5": records["fsd:0.2"]} | records
    rows = [row for row in summarize(records) if row["rule"] != "plain"]
    (axes,) = draw_curves(rows, GAIN, LOSS).axes
    colors = [container.lines[0].get_color() for container in axes.containers]
    assert colors == [MARKS[rule][0] for rule in ("exact", "fsd", "random", "path")]


def test_lines_of_one_rule_share_their_colour_and_differ_in_dashes():
    records = made_run(8)
    for arm in ("fsd:0.2", "fsd:0.4"):
        records[f"{arm},child=draft"] = records[arm]
    rows = [row for row in summarize(records) if row["rule"] == "fsd"]
    (axes,) = draw_curves(rows, GAIN, LIKELIHOOD).axes
    one, other = (container.lines[0] for container in axes.containers)
    assert one.get_color() == other.get_color() == MARKS["fsd"][0]
    assert one.get_linestyle() != other.get_linestyle()


def test_values_beside_crowded_points_do_not_cover_each_other():
    """Bug held down: every value stood up and to the right of its point, so that those of
    neighbouring points were written over each other."""
    axes = Figure(figsize=(5, 4)).subplots()
    axes.plot([0, 1], [0, 1], "none")
    places = [(0.5, 0.5), (0.505, 0.505), (0.51, 0.5), (0.5, 0.51), (0.9, 0.1)]
    boxes = place_labels(axes, [("0.45", np.array(place), INK) for place in places])
    assert len(boxes) == len(axes.texts) == 5
    for one, other in itertools.combinations(boxes, 2):
        assert not Bbox.intersection(one, other), (one, other)
    for text, box in zip(axes.texts, boxes, strict=True):  # they stand where this says
        assert text.get_window_extent().bounds == pytest.approx(box.bounds)


def test_the_readmes_plot_has_the_colours_of_the_page():
    drawn = (ROOT / "docs" / "loss_against_gain.svg").read_text().lower()
    for rule in README:
        assert MARKS[rule][0].lower() in drawn, f"{rule}: run extras/loss_against_gain.py"


def test_ids_within_the_two_plots_of_a_page_differ(tmp_path):
    """What one draws by reference would else be looked up in the other, which may be hidden."""
    rows, found = summarize(made_run(8)), []
    for across in (GAIN, SPEED):
        svg = plot_curves(rows, tmp_path / across, across=across)
        found.append(set(re.findall(r'(?:href="|url\()#(\w+)', svg)))
    assert found[0] and found[1] and not found[0] & found[1]

"""Plots show the arms that have both numbers; captions say what is drawn, or why nothing is."""

import re

import numpy as np
import pytest
from hand_records import HAND, NO_ROUNDS, made_run

from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.plots import (
    GAIN,
    SPEED,
    caption,
    draw_curves,
    front_of,
    line_styles,
    plot_curves,
)

PAIR, WITHOUT_EXACT = ({arm: HAND[arm] for arm in ("plain", x)} for x in ("exact", "fsd:0.2"))


@pytest.mark.parametrize(
    ("records", "timed", "gain", "speed"),
    [
        ({arm: HAND[arm] for arm in ("exact", "fsd:0.2")}, True, True, True),
        (WITHOUT_EXACT, True, False, True),
        ({"plain": NO_ROUNDS, "exact": NO_ROUNDS}, True, False, True),
        (PAIR, False, True, False),
    ],
)
def test_a_plot_is_drawn_where_it_can_be_and_else_its_caption_says_why(records, timed, gain, speed):
    """A gain needs exact, a speed timings, neither plain."""
    rows = summarize(records, timed=timed)
    for across, drawn in ((GAIN, gain), (SPEED, speed)):
        assert bool(plot_curves(rows, across=across)) == drawn
        assert caption(rows, across=across).startswith("There is no plot") != drawn


def test_the_legend_names_every_arm():
    """Bugs held down: a run whose name begins with _ was left out of the legend, and one with two
    dollars was set as a formula; an arm's colour was another in the summary than on the page."""
    rows = [row | {"line": f"_$\\foo$: {row['line']}"} for row in summarize(made_run(8))]
    figure = draw_curves(rows, SPEED)
    (axes,), (legend,) = figure.axes, figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    lines = [f"_$\\foo$: {line}" for line in ("fsd: 0.2, 0.4", "random: 0.1, 0.3")]
    assert names == ["plain", "exact", *lines, "Pareto front"]
    looks = [(c[0].get_color(), c[0].get_marker()) for c in axes.containers]
    assert len(set(looks)) == len(looks) == len(names) - 1
    assert line_styles(rows) == line_styles(rows[::-1])
    svg, other = (plot_curves(rows, across=across) for across in (SPEED, GAIN))
    assert f">{lines[0]}</text>" in svg
    # ids that one draws by reference would else be looked up in the other, which may be hidden
    ids, others = (set(re.findall(r'(?:href="|url\()#(\w+)', text)) for text in (svg, other))
    assert ids and others and not ids & others


def test_captions_claim_what_is_drawn():
    """Bug held down: under a plot of 4 questions stood that its bars are intervals; it had none."""
    for questions in (7, 8):
        rows = summarize(made_run(questions))
        (axes,) = draw_curves(rows, GAIN).axes
        bars = [line for lines in axes.collections for line in lines.get_segments() if len(line)]
        drawn = any(np.ptp(bar, axis=0).any() for bar in bars)
        assert drawn == ("Bars are 95 % intervals" in caption(rows)) == (questions == 8)
        assert f"fewer than 8 questions, here {questions}" in caption(rows) or drawn
    rows = summarize(HAND | {"ratio:1@ngram": HAND["fsd:0.2"]})
    assert caption(rows).endswith("lack one of the two numbers: generate, ratio:1@ngram.")


def test_the_front_holds_the_arms_that_none_is_better_than():
    """(3, 1) is on it, (3, 0) and (1, 3) are not: others are as good and better."""
    places = [(2.0, 4.0), (3.0, 0.0), (1.0, 3.0), (3.0, 1.0), (1.5, 5.0)]
    rows = [{"x": {"value": x}, "y": {"value": y}} for x, y in places]
    assert front_of(rows, "x", "y").tolist() == [[1.5, 5], [2, 4], [3, 1]]

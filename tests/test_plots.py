"""Plots show the arms that have both numbers; captions say what is drawn, or why nothing is."""

import re

import numpy as np
import pytest
from hand_records import HAND, NO_ROUNDS, made_run

from eagle_fsd.evaluation.metrics import summarize
from eagle_fsd.evaluation.plots import (
    GAIN,
    LIKELIHOOD,
    LOSS,
    REGRET,
    SPEED,
    TV,
    caption,
    draw_curves,
    front_of,
    heights,
    line_styles,
    plot_curves,
    score_key,
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
    """A gain needs exact, a speed timings, neither plain. Answers of one token have no regret."""
    rows = summarize(records, timed=timed)
    for up in heights(rows, sampled=False):
        for across, can in ((GAIN, gain), (SPEED, speed)):
            drawn = can and not (up == REGRET and NO_ROUNDS in records.values())
            assert bool(plot_curves(rows, across=across, up=up)) == drawn
            assert caption(rows, across=across, up=up).startswith("There is no plot") != drawn


def test_what_a_plot_can_show_upwards():
    """Regret first, above temperature 0 TV, as the target's own draws have regret there; then the
    likelihood of the text, against plain's where there is one, and the scores."""
    rows = summarize(made_run())
    assert list(heights(rows, sampled=False, scores=["x"])) == [REGRET, LOSS, score_key("x")]
    assert list(heights(rows, sampled=True)) == [TV, LOSS]
    assert list(heights(summarize({"exact": HAND["exact"]}), sampled=False)) == [REGRET, LIKELIHOOD]


@pytest.mark.parametrize("up", [REGRET, TV, LOSS, score_key("judge x")])
def test_exact_is_not_beaten_in_what_is_lost(up):
    """Bug held down: the one plot was of log-probabilities, in which lossy arms can lie above
    exact, so that the lossless arm looked beaten in quality. Up is better in every plot but that
    one, which says so."""
    rows = summarize(made_run(8))
    for number, row in enumerate(rows):
        row[score_key("judge x")] = {"value": 9.0 - number, "low": None, "high": None}
    (axes,) = draw_curves(rows, GAIN, up).axes
    tops = [axes.transData.transform(lines[0].get_xydata())[0, 1] for lines in axes.containers]
    assert tops[0] == max(tops)  # exact is drawn first
    assert ("This is not quality" in caption(rows, up=up)) == (up == LOSS)
    assert ("up and to the right is better" in caption(rows, up=up)) == (up != LOSS)
    (front,) = [line for line in axes.get_lines() if line.get_drawstyle() == "steps-pre"]
    heights_N = front.get_ydata()[1:-1]
    assert (np.diff(heights_N) * (-1 if up in (REGRET, TV) else 1) < 0).all()


def test_the_legend_names_every_arm():
    """Bugs held down: a run whose name begins with _ was left out of the legend, and one with two
    dollars was set as a formula; an arm's colour was another in the summary than on the page."""
    rows = [row | {"line": f"_$\\foo$: {row['line']}"} for row in summarize(made_run(8))]
    figure = draw_curves(rows, SPEED, REGRET)
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
        (axes,) = draw_curves(rows, GAIN, REGRET).axes
        bars = [line for lines in axes.collections for line in lines.get_segments() if len(line)]
        drawn = any(np.ptp(bar, axis=0).any() for bar in bars)
        assert drawn == ("Bars are 95 % intervals" in caption(rows)) == (questions == 8)
        assert f"fewer than 8 questions, here {questions}" in caption(rows) or drawn
    rows = summarize(HAND | {"ratio:1@ngram": HAND["fsd:0.2"]})
    assert caption(rows).endswith("lack one of the two numbers: generate, ratio:1@ngram.")


def test_the_front_holds_the_arms_that_none_is_better_than():
    """(3, 1) is on it, (3, 0) and (1, 3) are not: others are as good and better."""
    places = [(2.0, 4.0), (3.0, 0.0), (1.0, 3.0), (3.0, 1.0), (1.5, 5.0)]
    for up, sign in (("y", 1), (REGRET, -1)):  # of regret the smaller is better
        rows = [{"x": {"value": x}, up: {"value": sign * y}} for x, y in places]
        assert front_of(rows, "x", up).tolist() == [[1.5, sign * 5], [2, sign * 4], [3, sign]]

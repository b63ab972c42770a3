"""Intervals, differences and McNemar's test against textbook formulas, enumeration, simulation."""

import itertools

import numpy as np
import pytest

from eagle_fsd.evaluation.stats import (
    LEAST_QUESTIONS,
    NOTHING,
    mcnemar,
    mean_interval,
    paired_difference,
    paired_ratio,
    rate_interval,
)

T_4 = 2.7764  # Student's t at 97.5 %, 4 degrees of freedom


def test_a_mean_s_interval_is_student_s():
    """The jackknife of a mean is its standard error."""
    values = [0.0, 1.0, 4.0, 9.0, 20.0]
    margin = T_4 * np.std(values, ddof=1) / 5**0.5
    found = mean_interval(values)
    assert found["value"] == pytest.approx(6.8)
    assert [found["low"], found["high"]] == pytest.approx([6.8 - margin, 6.8 + margin], rel=1e-4)
    assert rate_interval([(value, 1) for value in values]) == found


def test_a_ratio_leaves_out_both_sides_of_a_question():
    """sum / sum over sum / sum, by hand."""
    mine = [(8, 2), (9, 3), (20, 4), (5, 5), (6, 3)]
    theirs = [(4, 2), (6, 4), (9, 3), (7, 6), (2, 1)]

    def ratio(kept):
        totals = [np.sum([side[i] for i in kept], axis=0) for side in (mine, theirs)]
        return (totals[0][0] / totals[0][1]) / (totals[1][0] / totals[1][1])

    without = [ratio([i for i in range(5) if i != left]) for left in range(5)]
    margin = T_4 * (4 / 5 * np.sum((without - np.mean(without)) ** 2)) ** 0.5
    found = paired_ratio(mine, theirs)
    assert found["value"] == pytest.approx(ratio(range(5)))
    assert found["high"] - found["value"] == pytest.approx(margin, rel=1e-4)
    assert paired_ratio(mine, mine) == {"value": 1, "low": 1, "high": 1}


@pytest.mark.parametrize("questions", [LEAST_QUESTIONS, 8, 40])
def test_nineteen_of_twenty_intervals_hold_the_truth(questions):
    """Ratios of two uneven sums; percentile bootstraps held 75 to 90 of 100 for few questions."""
    draw = np.random.default_rng(3)
    tokens = draw.gamma(4, size=(500, questions))
    noise = draw.normal(1, 0.3, size=(500, questions))
    found = [rate_interval(np.stack(pair, 1)) for pair in zip(tokens * noise, tokens, strict=True)]
    assert 0.91 < np.mean([i["low"] <= 1 <= i["high"] for i in found]) < 0.975


@pytest.mark.parametrize("questions", [8, 60])
def test_the_detectable_difference_is_shown_four_times_in_five(questions):
    """Two arms that truly differ by it: the difference's interval leaves out 0 at 80 %."""
    mine, theirs = np.random.default_rng(5).normal(size=(2, 500, questions))
    pairs = list(zip(mine, theirs, strict=True))
    truth = np.mean([paired_difference(*pair)["detectable"] for pair in pairs])
    assert 0.74 < np.mean([paired_difference(a + truth, b)["low"] > 0 for a, b in pairs]) < 0.88
    # and questions that are alike in both arms make the pairing pay
    hard = 10 * mine[1]
    paired = paired_difference(mine[0] + hard, theirs[0] + hard)["detectable"]
    assert paired == pytest.approx(paired_difference(mine[0], theirs[0])["detectable"])


def test_mcnemar_s_p_is_that_of_all_outcomes():
    """Of 2^n equally likely outcomes, those whose split is at least as uneven."""
    for differing in range(7):
        outcomes = [sum(o) for o in itertools.product((0, 1), repeat=differing)]
        for gained in range(differing + 1):
            lost = differing - gained
            as_uneven = [abs(2 * o - differing) >= abs(gained - lost) for o in outcomes]
            mine, theirs = [1] * gained + [0] * lost, [0] * gained + [1] * lost
            found = mcnemar([*mine, 1, 1], [*theirs, 1, 1])
            p = sum(as_uneven) / len(outcomes)
            assert found == {"gained": gained, "lost": lost, "mcnemar_p": pytest.approx(p)}
    # beyond what floats hold
    assert 0 < mcnemar([1] * 700 + [0] * 500, [0] * 700 + [1] * 500)["mcnemar_p"] < 1e-7


def test_what_has_no_interval():
    """No bounds of few questions, or where one holds everything; nothing at all of none, and what
    is not finite is no value."""
    assert mean_interval([]) == rate_interval([]) == paired_ratio([], []) == NOTHING
    assert paired_difference([], []) == NOTHING | {"detectable": None}
    for count in range(1, LEAST_QUESTIONS):
        assert mean_interval(range(count)) == NOTHING | {"value": (count - 1) / 2}
        assert paired_difference(range(count), [0] * count)["detectable"] is None
    assert mean_interval(range(LEAST_QUESTIONS))["low"] is not None
    nothing_else = [(0, 0)] * 9
    assert rate_interval([*nothing_else, (6, 2)]) == NOTHING | {"value": 3}
    assert rate_interval(nothing_else) == NOTHING
    assert paired_ratio([(1, 1)] * 9, nothing_else)["value"] is None
    infinite = paired_difference([float("inf"), *range(9)], [0] * 10)
    assert infinite["value"] is None and infinite["detectable"] is None

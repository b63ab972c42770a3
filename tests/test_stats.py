"""Intervals, differences and McNemar's test against enumeration and simulation."""

import itertools
import random

import numpy as np
import pytest

from eagle_fsd.evaluation.stats import (
    mcnemar,
    mean_interval,
    paired_difference,
    paired_ratio,
    rate_interval,
)


def test_values_worked_out_by_hand():
    """Mean, sum / sum, ratio of the sums' ratios, mean difference and 2.8 standard errors."""
    assert mean_interval([1, 2, 6])["value"] == 3
    assert rate_interval([(6, 2), (1, 5)])["value"] == 1
    assert paired_ratio([(6, 2), (2, 2)], [(1, 3), (1, 1)])["value"] == 4
    difference = paired_difference([3, 5, 9, 11], [2, 4, 6, 8])
    # differences 1 1 3 3: their standard deviation is sqrt(4 / 3), over sqrt(4)
    assert difference["value"] == 2
    assert difference["detectable"] == pytest.approx(2.8 * (4 / 3) ** 0.5 / 2)
    assert paired_difference([True, False], [False, False])["value"] == 0.5


def test_the_mean_s_interval_is_that_of_all_resamples():
    """Five values have 5^5 resamples: their 2.5 % and 97.5 % points."""
    values = [0.0, 1.0, 4.0, 9.0, 20.0]
    means = [sum(pick) / 5 for pick in itertools.product(values, repeat=5)]
    low, high = np.percentile(means, [2.5, 97.5])
    interval = mean_interval(values)
    assert interval["low"] == pytest.approx(low, abs=0.5)
    assert interval["high"] == pytest.approx(high, abs=0.5)
    assert interval == mean_interval(values), "the same every time"


def test_the_ratio_s_interval_is_that_of_all_resamples():
    """Both sides of a question are drawn together: enumerated over four questions."""
    mine, theirs = [(8, 2), (9, 3), (20, 4), (5, 5)], [(4, 2), (6, 4), (9, 3), (7, 6)]

    def ratio(pick):
        sums = [
            sum(side[i][part] for i in pick)
            for side, part in itertools.product((mine, theirs), (0, 1))
        ]
        return (sums[0] / sums[1]) / (sums[2] / sums[3])

    everything = [ratio(pick) for pick in itertools.product(range(4), repeat=4)]
    interval = paired_ratio(mine, theirs)
    assert interval["value"] == pytest.approx(ratio(range(4)))
    low, high = np.percentile(everything, [2.5, 97.5])
    assert interval["low"] == pytest.approx(low, abs=0.05)
    assert interval["high"] == pytest.approx(high, abs=0.05)
    assert paired_ratio(mine, mine) == {"value": 1, "low": 1, "high": 1}


@pytest.mark.parametrize("questions", [30, 100])
def test_nineteen_of_twenty_intervals_hold_the_truth(questions):
    """Of skewed values with mean 1; a percentile interval is a little too narrow for few."""
    draw = np.random.default_rng(3)
    samples = draw.exponential(size=(400, questions))
    intervals = [mean_interval(values) for values in samples]
    held = sum(i["low"] <= 1 <= i["high"] for i in intervals) / len(intervals)
    assert 0.88 < held < 0.98
    assert sum(i["high"] < 1 for i in intervals) and sum(i["low"] > 1 for i in intervals)


def test_the_detectable_difference_is_shown_four_times_in_five():
    """Two arms that truly differ by it: the difference's interval leaves out 0 at 80 %."""
    draw = np.random.default_rng(5)
    mine, theirs = draw.normal(size=(2, 500, 60))
    truth = np.mean(
        [paired_difference(*pair)["detectable"] for pair in zip(mine, theirs, strict=True)]
    )
    shown = [paired_difference(a + truth, b)["low"] > 0 for a, b in zip(mine, theirs, strict=True)]
    assert 0.74 < np.mean(shown) < 0.88
    # and questions that are alike in both arms make the pairing pay
    hard = 10 * draw.normal(size=60)
    paired = paired_difference(mine[0] + hard, theirs[0] + hard)["detectable"]
    assert paired == pytest.approx(paired_difference(mine[0], theirs[0])["detectable"])


def as_pairs(gained: int, lost: int, both: int) -> tuple[list[bool], list[bool]]:
    pairs = [(True, False)] * gained + [(False, True)] * lost + [(True, True)] * both
    random.Random(gained).shuffle(pairs)
    return [mine for mine, _ in pairs], [theirs for _, theirs in pairs]


@pytest.mark.parametrize("differing", range(9))
def test_mcnemar_s_p_is_that_of_all_outcomes(differing):
    """Of 2^n equally likely outcomes, those whose split is at least as uneven."""
    outcomes = [sum(o) for o in itertools.product((0, 1), repeat=differing)]
    for gained in range(differing + 1):
        lost = differing - gained
        as_uneven = [abs(2 * o - differing) >= abs(gained - lost) for o in outcomes]
        found = mcnemar(*as_pairs(gained, lost, both=3))
        assert found == {
            "gained": gained,
            "lost": lost,
            "p": pytest.approx(sum(as_uneven) / len(outcomes)),
        }


def test_mcnemar_of_many_questions():
    """Beyond what floats hold; a split of halves proves nothing."""
    assert mcnemar(*as_pairs(600, 600, 0))["p"] == 1
    assert 0 < mcnemar(*as_pairs(700, 500, 0))["p"] < 1e-7
    assert mcnemar([1.0, 0.0], [0, 0]) == {"gained": 1, "lost": 0, "p": 1}


def test_too_few_questions():
    """No interval of one question, nothing at all of none."""
    nothing = {"value": None, "low": None, "high": None}
    assert mean_interval([]) == rate_interval([]) == paired_ratio([], []) == nothing
    assert paired_difference([], []) == nothing | {"detectable": None}
    assert mcnemar([], []) == {"gained": 0, "lost": 0, "p": 1}
    one = {"value": 2, "low": None, "high": None}
    assert mean_interval([2]) == rate_interval([(4, 2)]) == paired_ratio([(4, 1)], [(2, 1)]) == one
    assert paired_difference([5], [3]) == one | {"detectable": None}


def test_questions_without_a_denominator():
    """A resample of them alone has no rate and is left out; without any rate there is no value."""
    assert rate_interval([(0, 0), (6, 2)]) == {"value": 3, "low": 3, "high": 3}
    assert rate_interval([(0, 0), (0, 0)]) == {"value": None, "low": None, "high": None}
    assert paired_ratio([(1, 1)] * 2, [(0, 0)] * 2)["value"] is None
    infinite = paired_difference([float("inf"), 1], [0, 0])
    assert infinite["value"] is None and infinite["detectable"] is None


@pytest.mark.parametrize("compare", [paired_difference, paired_ratio, mcnemar])
def test_other_questions_are_not_compared(compare):
    with pytest.raises(ValueError, match="3 questions against 2"):
        compare([(1, 1)] * 3, [(1, 1)] * 2)


def test_mcnemar_is_told_yes_or_no():
    with pytest.raises(ValueError, match="0 or 1, got 0.5"):
        mcnemar([1, 0.5], [0, 1])

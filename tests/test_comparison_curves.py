"""Sample efficiency and the time to a threshold."""

import math

import numpy as np
import pytest

from rl_training.comparison.curves import estimate_sample_efficiency, estimate_time_to_threshold, find_time


def test_the_sample_efficiency_curve_has_the_steps_that_all_runs_evaluated():
    curves = [{10: 1.0, 20: 2.0, 30: 3.0}, {10: 3.0, 30: 5.0, 40: 9.0}]
    found = estimate_sample_efficiency(curves)
    assert found.steps.tolist() == [10, 30]
    assert found.band.values.tolist() == [2.0, 4.0]
    assert found.band.low.tolist() == [1.0, 3.0]
    assert found.band.high.tolist() == [3.0, 5.0]


def test_runs_without_a_common_step_have_no_curve():
    assert estimate_sample_efficiency([{10: 1.0}, {20: 1.0}]) is None


def test_the_curve_of_one_run_has_no_interval():
    assert estimate_sample_efficiency([{10: 1.0}]).band.low is None


def test_the_first_step_at_the_threshold_counts():
    curve = {30: 5.0, 10: 1.0, 20: 4.0, 40: 2.0}
    assert [find_time(curve, threshold) for threshold in (1, 4, 4.5, 5, 6)] == [10, 20, 30, 30, math.inf]


@pytest.mark.parametrize(
    ("times", "reached", "median"),
    [
        ([10, 20, 30], 3, 20),
        ([10, 20, None], 2, 20),
        ([10, None, None], 1, None),
        ([10, 20, None, None], 2, 20),  # half of the runs have reached it by step 20
        ([None], 0, None),
    ],
)
def test_a_run_that_never_reaches_the_threshold_is_later_than_all_that_do(times, reached, median):
    curves = [{1: 0.0} if time is None else {1: 0.0, time: 1.0} for time in times]
    found = estimate_time_to_threshold(curves, 1.0)
    assert (found.reached, found.runs, found.median) == (reached, len(times), median)


def test_an_interval_that_reaches_beyond_the_budget_has_no_upper_end():
    found = estimate_time_to_threshold([{10: 1.0}, {20: 1.0}, {30: 1.0}, {40: 0.0}, {40: 0.0}], 1.0)
    assert (found.median, found.low, found.high) == (30, 10, None)


def test_the_interval_of_the_time_is_that_of_its_order_statistics():
    curves = [{step: 1.0} for step in (10, 20, 30, 40, 50)]
    found = estimate_time_to_threshold(curves, 1.0)
    # The median of five draws is at most 10 with probability 0.058, so it is 10 at the 2.5th percentile.
    assert (found.median, found.low, found.high) == (30, 10, 50)
    wide = [{step: 1.0} for step in np.arange(1, 102)]
    found = estimate_time_to_threshold(wide, 1.0)
    assert abs(found.low - 41) <= 2
    assert abs(found.high - 61) <= 2


def test_a_single_run_has_no_interval_of_its_time():
    found = estimate_time_to_threshold([{10: 1.0}], 1.0)
    assert (found.median, found.low, found.high) == (10, None, None)

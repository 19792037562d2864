"""The statistics of comparisons: closed forms, and the numbers of rliable."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from rl_training.comparison.statistics import (
    RESAMPLES,
    compute_improvement,
    compute_iqm,
    compute_mean,
    compute_mean_difference,
    compute_median,
    compute_optimality_gap,
    compute_run_median,
    estimate,
    estimate_curve,
    estimate_improvement,
    estimate_profile,
    resample,
    summarize_scores,
)

GOLDEN = json.loads((Path(__file__).parent / "golden/rliable.json").read_text())
REPS = GOLDEN["reps"]


def column(*scores):
    return np.array(scores, float)[:, np.newaxis]


def rliable_scores(name):
    return np.array(GOLDEN["scores"][name])


def require_same_ends(resamples, ends):
    """Both ends come from 50,000 resamples: the shares below them differ by five standard errors at most."""
    error = 5 * math.sqrt(2 * 0.025 * 0.975 / REPS)
    for end, share in zip(ends, (0.025, 0.975), strict=True):
        slack = 1e-9 * max(1.0, abs(end))  # sums of another order
        below, up_to = (float(np.mean(resamples < end - slack)), float(np.mean(resamples <= end + slack)))
        assert below - error <= share <= up_to + error


AGGREGATES = (compute_mean, compute_median, compute_iqm, lambda scores: compute_optimality_gap(scores, GOLDEN["gamma"]))


@pytest.mark.parametrize("name", GOLDEN["scores"])
def test_the_aggregates_are_those_of_rliable(name):
    scores, golden = rliable_scores(name), GOLDEN["aggregates"][name]
    values = [float(statistic(scores)) for statistic in AGGREGATES]
    assert values == pytest.approx(golden["values"], rel=0, abs=1e-12)
    for statistic, *ends in zip(AGGREGATES, *golden["intervals"], strict=True):
        require_same_ends(resample(statistic, scores, resamples=REPS, seed=1), ends)


@pytest.mark.parametrize("golden", GOLDEN["improvements"], ids=lambda golden: f"{golden['x']}; {golden['y']}")
def test_the_probability_of_improvement_is_that_of_rliable(golden):
    x, y = rliable_scores(golden["x"]), rliable_scores(golden["y"])
    assert float(compute_improvement(x, y)) == pytest.approx(golden["values"][0], rel=0, abs=1e-12)
    found = resample(compute_improvement, x, y, resamples=REPS, seed=1, pairs=True)
    require_same_ends(found, [ends[0] for ends in golden["intervals"]])


@pytest.mark.parametrize("name", GOLDEN["profiles"])
def test_the_performance_profile_is_that_of_rliable(name):
    scores, golden = rliable_scores(name), GOLDEN["profiles"][name]
    thresholds = np.array(GOLDEN["thresholds"])
    band = estimate_profile(scores, thresholds)
    assert band.values == pytest.approx(golden["values"], rel=0, abs=1e-12)
    above = (scores > thresholds[:, np.newaxis, np.newaxis]).astype(float)
    found = resample(compute_mean, above, resamples=REPS, seed=1)
    for row, *ends in zip(found, *golden["intervals"], strict=True):
        require_same_ends(row, ends)


def test_the_sample_efficiency_curve_is_that_of_rliable():
    golden = GOLDEN["curves"]
    scores_SRT = np.moveaxis(np.array(golden["scores"]), -1, 0)
    assert estimate_curve(compute_iqm, scores_SRT).values == pytest.approx(golden["values"], rel=0, abs=1e-12)
    found = resample(compute_iqm, scores_SRT, resamples=REPS, seed=1)
    for row, *ends in zip(found, *golden["intervals"], strict=True):
        require_same_ends(row, ends)


@pytest.mark.parametrize(
    ("scores", "iqm"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),  # a quarter of three scores is none
        ([1.0, 2.0, 6.0, 100.0], 4.0),
        ([-50.0, 1.0, 2.0, 6.0, 100.0], 3.0),
        ([8, 1, 3, 4, 5, 6, 2, 7], 4.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side(scores, iqm):
    assert float(compute_iqm(column(*scores))) == iqm


def test_the_median_is_over_tasks_or_over_runs():
    scores = np.array([[0.0, 10.0, 100.0], [2.0, 30.0, 100.0]])
    assert float(compute_median(scores)) == 20.0  # of the means 1, 20 and 100
    assert float(compute_run_median(scores)) == 20.0  # between 10 and 30
    assert float(compute_run_median(column(1, 2, 9))) == 2.0
    assert float(compute_median(column(1, 2, 9))) == 4.0


def test_scores_above_the_threshold_close_no_gap():
    assert float(compute_optimality_gap(column(0.5, 2.0), 1.0)) == 0.25


def test_ties_count_half_in_the_probability_of_improvement():
    assert float(compute_improvement(column(1, 2), column(1, 0))) == (0.5 + 1 + 1 + 1) / 4
    two_tasks = float(compute_improvement(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])))
    assert two_tasks == 0.5


def test_the_bootstrap_of_two_runs_has_the_binomial_shares():
    means = resample(compute_mean, column(0, 1), resamples=40_000)
    shares = [float(np.mean(means == value)) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=5 * 0.5 / math.sqrt(40_000))


def test_the_runs_of_each_task_are_resampled_by_themselves():
    scores = np.array([[0.0, 10.0], [1.0, 20.0]])
    found = resample(lambda drawn: drawn[..., 0, 0] + drawn[..., 0, 1], scores, resamples=2_000)
    assert set(found) == {10.0, 11.0, 20.0, 21.0}  # a task never gets the score of another


def test_a_resample_does_not_depend_on_how_many_are_computed_at_once(monkeypatch):
    scores = np.random.default_rng(0).normal(size=(4, 2))
    at_once = resample(compute_iqm, scores, resamples=100)
    monkeypatch.setattr("rl_training.comparison.statistics._BLOCK", 8 * 100)
    assert np.array_equal(resample(compute_iqm, scores, resamples=100), at_once)


def test_the_band_of_a_curve_does_not_depend_on_how_many_steps_are_computed_at_once(monkeypatch):
    scores = np.random.default_rng(0).normal(size=(7, 5, 1))
    whole = estimate_curve(compute_iqm, scores)
    monkeypatch.setattr("rl_training.comparison.statistics._MOST_RESULTS", 2 * RESAMPLES)
    parts = estimate_curve(compute_iqm, scores)
    assert (parts.low.tolist(), parts.high.tolist()) == (whole.low.tolist(), whole.high.tolist())


def test_equal_scores_have_an_interval_of_no_width():
    found = estimate(compute_iqm, column(2, 2, 2))
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_a_single_run_has_no_interval():
    assert estimate(compute_iqm, column(2)).to_dict() == {"value": 2.0, "low": None, "high": None}
    improvement = estimate_improvement(column(2), column(1, 1, 1))
    assert improvement.to_dict() == {"value": 1.0, "low": None, "high": None}
    assert estimate_profile(column(2), np.array([1.0, 3.0])).low is None


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        estimate(compute_mean, column(1, math.nan))
    with pytest.raises(ValueError, match="without runs"):
        estimate(compute_mean, np.empty((0, 1)))


def test_a_summary_holds_the_statistics_of_the_scores():
    summary = summarize_scores([1.0, 2.0, 3.0, 10.0])
    numbers = {key: summary[key] for key in ("runs", "mean", "iqm", "median", "min", "max", "confidence")}
    assert numbers == {
        "runs": 4,
        "mean": 4.0,
        "iqm": 2.5,
        "median": 2.5,
        "min": 1.0,
        "max": 10.0,
        "confidence": 0.95,
    }
    assert summary["std"] == pytest.approx(math.sqrt(50 / 3))
    low, high = summary["mean_interval"]
    assert 1.0 <= low < 4.0 < high <= 10.0
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_the_summary_of_one_score_says_that_its_spread_is_unknown():
    summary = summarize_scores([7.0])
    assert (summary["mean"], summary["iqm"], summary["median"]) == (7.0, 7.0, 7.0)
    assert [summary[key] for key in ("std", "mean_interval", "iqm_interval", "median_interval")] == [None] * 4


def test_the_difference_of_means_and_its_interval():
    x, y = column(1.0, 2.0, 6.0), column(5.0, 5.0)
    assert float(compute_mean_difference(x, y)) == -2.0
    # Of the 27 equally likely resamples of x, one has the mean 1 and one has the mean 6, more than 2.5 % each.
    found = estimate(compute_mean_difference, x, y)
    assert (found.value, found.low, found.high) == (-2.0, -4.0, 1.0)

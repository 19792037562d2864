"""Whether two groups differ: p-values, their correction, and the seeds that are needed."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rl_training.comparison import significance
from rl_training.comparison.significance import compute_p_value, correct_p_values, count_seeds_needed, find_least_seeds


def column(*scores):
    return np.array(scores, float)[:, np.newaxis]


def count_assignments(x, y):
    """Returns the p-value by trying every assignment of the scores to the groups."""
    both = [*x, *y]

    def deviate(chosen):
        others = [both[i] for i in range(len(both)) if i not in chosen]
        pairs = itertools.product([both[i] for i in chosen], others)
        wins = sum(Fraction(2 if a > b else 1 if a == b else 0, 2) for a, b in pairs)
        return abs(wins / (len(x) * len(y)) - Fraction(1, 2))

    found = [deviate(chosen) for chosen in itertools.combinations(range(len(both)), len(x))]
    return float(Fraction(sum(each >= found[0] for each in found), len(found)))


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 5, 8])
def test_groups_that_do_not_overlap_have_the_least_p_value(seeds):
    x, y = column(*range(seeds)), column(*range(100, 100 + seeds))
    assert compute_p_value(x, y) == pytest.approx(2 / math.comb(2 * seeds, seeds), rel=1e-12)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1, 2, 3], [2, 4, 9, 10]),
        ([0, 0, 1], [0, 1, 1]),
        ([5, 5, 5, 5], [5, 5, 4]),
        ([1, 9], [2, 3, 4, 5, 6]),
        ([-200, 480, 500, 500], [500, 500, 500, 499]),
    ],
)
def test_the_p_value_counts_all_assignments_with_ties(x, y):
    assert compute_p_value(column(*x), column(*y)) == pytest.approx(count_assignments(x, y), rel=1e-12)


def test_the_p_value_without_ties_is_that_of_scipy():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 1)), rng.normal(0.8, size=(9, 1))
    assert compute_p_value(x, y) == pytest.approx(mannwhitneyu(x[:, 0], y[:, 0], method="exact").pvalue, rel=1e-12)


def test_two_tasks_are_exchanged_independently():
    # Each task alone has the six assignments of two and two; both are separate in one direction.
    x, y = np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[3.0, 3.0], [4.0, 4.0]])
    assert compute_p_value(x, y) == pytest.approx(2 / 36, rel=1e-12)


def test_equal_scores_do_not_differ():
    assert compute_p_value(column(1, 1, 1), column(1, 1)) == 1.0
    assert compute_p_value(column(1), column(2)) == 1.0


def test_many_runs_are_tested_in_the_normal_limit(monkeypatch):
    rng = np.random.default_rng(4)
    x, y = np.round(rng.normal(size=(60, 1)), 1), np.round(rng.normal(0.3, size=(50, 1)), 1)
    exact = compute_p_value(x, y)
    monkeypatch.setattr(significance, "MOST_SCORES", 10)
    limit = mannwhitneyu(x[:, 0], y[:, 0], method="asymptotic", use_continuity=False).pvalue
    assert compute_p_value(x, y) == pytest.approx(limit, rel=1e-9)
    assert limit == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        ([], []),
        ([0.03], [0.03]),
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.04, 0.02, 0.01], [0.04, 0.04, 0.03]),
        ([0.6, 0.7], [1.0, 1.0]),
    ],
)
def test_p_values_are_corrected_by_the_method_of_holm(given, corrected):
    assert correct_p_values(given) == pytest.approx(corrected, rel=1e-12)


def test_the_seeds_needed_follow_noethers_formula():
    x, y = column(1, 2, 3, 4), column(0, 0, 0, 3.5)  # wins: 3, 3, 3, 4 of 16
    quantiles = 1.959963984540054 + 0.8416212335729143
    assert count_seeds_needed(x, y) == math.ceil(quantiles**2 / (6 * (13 / 16 - 0.5) ** 2)) == 14
    strict = 2.3939797998185104 + 0.8416212335729143
    assert count_seeds_needed(x, y, comparisons=3) == math.ceil(strict**2 / (6 * (13 / 16 - 0.5) ** 2)) == 18


def test_fewer_seeds_than_the_exact_test_needs_are_never_asked_for():
    x, y = column(1, 2), column(3, 4)
    assert count_seeds_needed(x, y) == 6  # 7.85 / (6 / 4), rounded up
    assert count_seeds_needed(x, y, power=0.1) == 4  # 2 / C(8, 4) = 0.029 is the first below 0.05


def test_no_number_of_seeds_tells_equal_groups_apart():
    assert count_seeds_needed(column(1, 2), column(1, 2)) is None


@pytest.mark.parametrize(("level", "seeds"), [(0.05, 4), (0.05 / 3, 5), (0.5, 2), (1e-9, 17)])
def test_the_least_number_of_seeds_is_that_of_the_exact_test(level, seeds):
    assert find_least_seeds(level) == seeds
    assert 2 / math.comb(2 * seeds, seeds) <= level

"""One-sided confidence bounds, against closed forms and exact quantiles."""

import numpy as np
import pytest
from scipy.stats import beta

from rl_training.promotion.confidence_bounds import compute_difference_bound, compute_lower_bound


def test_bounds_of_one_two_and_three_values_by_hand() -> None:
    # One value: its weight is uniform.
    assert compute_lower_bound([3.0], 0.95, worst=1.0) == pytest.approx(1.0 + 2.0 * 0.05)
    # 0 and 1: the weights of 0, 0 and 1 give 1 less than q with probability 1 - (1 - q)^2.
    assert compute_lower_bound([1.0, 0.0], 0.95) == pytest.approx(1.0 - 0.95**0.5)
    # 0, 1 and 2: over 0, 0, 1/2 and 1, the mean is less than q with probability 6 q^2 (1 - q) if q is below 1/2.
    q = min(root.real for root in np.roots([-6.0, 6.0, 0.0, -0.05]) if 0 < root.real < 0.5)
    assert compute_lower_bound([2.0, 0.0, 1.0], 0.95) == pytest.approx(2.0 * q)


@pytest.mark.parametrize("confidence", [0.6, 0.95, 0.99, 0.9999])
@pytest.mark.parametrize(("episodes", "successes"), [(20, 1), (20, 10), (20, 20), (59, 57), (100, 99), (1_000, 999)])
def test_the_bound_of_successes_is_clopper_and_pearsons(episodes: int, successes: int, confidence: float) -> None:
    values = [1.0] * successes + [0.0] * (episodes - successes)
    exact = beta.ppf(1 - confidence, successes, episodes - successes + 1)
    assert compute_lower_bound(values, confidence, worst=0.0) == pytest.approx(exact, abs=1e-5)


def test_equal_values_are_their_own_bound_unless_something_worse_is_possible() -> None:
    assert compute_lower_bound([0.1] * 7, 0.95) == 0.1
    assert compute_lower_bound([0.0] * 7, 0.95, worst=0.5) == 0.0  # what was seen is possible
    assert compute_difference_bound([0.1] * 7, 0.95) == 0.1
    assert compute_difference_bound([0.0] * 7, 0.95) == 0.0


def test_the_bound_moves_and_grows_with_the_values() -> None:
    values = list(np.random.default_rng(0).exponential(1.0, 30))
    bound = compute_lower_bound(values, 0.95)
    assert min(values) < bound < np.mean(values)
    assert compute_lower_bound([5.0 + 2.0 * value for value in values], 0.95) == pytest.approx(5.0 + 2.0 * bound)
    assert compute_lower_bound([1e-200 * value for value in values], 0.95) == pytest.approx(1e-200 * bound)
    assert compute_lower_bound([1e200 * value for value in values], 0.95) == pytest.approx(1e200 * bound)


def test_a_single_win_among_ties_is_no_evidence() -> None:
    # Gaffke's bound is above 0. Student's, with mean 0.05 and deviation sqrt(0.05): 0.05 - 1.72913 * 0.05 = -0.03646.
    difference = [0.0] * 19 + [1.0]
    assert compute_lower_bound(difference, 0.95) == pytest.approx(beta.ppf(0.05, 1, 20), abs=1e-6)
    assert compute_difference_bound(difference, 0.95) == pytest.approx(-0.036457, abs=1e-6)


@pytest.mark.parametrize("episodes", [20, 100])
def test_returns_skewed_to_the_left_keep_the_stated_rate(episodes: int) -> None:
    """Of 1,000 bounds at 95 %, a true rate of 5 % puts at most 67 above the true mean, at the 99 % level."""
    returns = 1.0 - np.random.default_rng(20260103).exponential(1.0, (1_000, episodes))
    assert sum(compute_lower_bound(row.tolist(), 0.95) > 0.0 for row in returns) <= 67

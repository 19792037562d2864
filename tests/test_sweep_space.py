"""The points of a sweep's space: conditions, grids and the distributions of random values."""

import math

import numpy as np
import pytest
from scipy import stats

from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.space import Choices, Interval

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 512}
DRAWS = 4_000


def load(space, **base):
    return load_sweep({"config": {**BASE, **base}, "space": space})


def draws(interval: Interval, count: int = DRAWS) -> list:
    rng = np.random.default_rng(0)
    return [interval.draw(rng) for _ in range(count)]


def test_a_log_range_is_log_uniform():
    found = draws(Interval(1e-5, 1e-1, whole=False, log=True))
    assert stats.kstest(found, stats.loguniform(1e-5, 1e-1).cdf).pvalue > 0.01
    assert stats.kstest(found, stats.uniform(1e-5, 1e-1).cdf).pvalue < 1e-6


def test_a_range_is_uniform():
    found = draws(Interval(-2.0, 6.0, whole=False, log=False))
    assert stats.kstest(found, stats.uniform(-2.0, 8.0).cdf).pvalue > 0.01


def test_each_whole_number_of_a_range_is_equally_likely_and_both_ends_are_included():
    found = draws(Interval(3, 6, whole=True, log=False))
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert stats.chisquare(counts).pvalue > 0.01
    assert {type(value) for value in found} == {int}


def test_a_whole_number_of_a_log_range_is_as_likely_as_the_numbers_that_are_rounded_to_it():
    """From 1 to 4: the share of k is log((k + 0.5) / (k - 0.5)) / log(4.5 / 0.5)."""
    found = draws(Interval(1, 4, whole=True, log=True))
    values, counts = np.unique(found, return_counts=True)
    assert values.tolist() == [1, 2, 3, 4]
    shares = [math.log((k + 0.5) / (k - 0.5)) / math.log(9) for k in (1, 2, 3, 4)]
    assert stats.chisquare(counts, DRAWS * np.array(shares)).pvalue > 0.01


def test_choices_are_equally_likely():
    choices, rng = Choices(("a", None, (1, 2))), np.random.default_rng(0)
    found = [choices.values.index(choices.draw(rng)) for _ in range(DRAWS)]
    assert stats.chisquare(np.bincount(found)).pvalue > 0.01


@pytest.mark.parametrize(
    ("interval", "value", "settled"),
    [
        (Interval(0.8, 0.99, whole=False, log=False), 0.87654321, 0.876543),  # the sixth digit of the width 0.19
        (Interval(0.0, 1000.0, whole=False, log=False), 123.456789, 123.46),
        (Interval(1e-5, 1e-1, whole=False, log=True), 3.14159265e-4, 3.14159e-4),
        (Interval(0.99, 0.9999, whole=False, log=True), 0.9912345678, 0.99123457),  # not 1.0 at the upper end
        (Interval(0.99999, 0.999999, whole=False, log=True), 0.9999954321, 0.9999954321),
        (Interval(1, 3, whole=False, log=False), 3.0000001, 3.0),
        (Interval(1, 30, whole=True, log=True), 30.4999, 30),
        (Interval(1, 30, whole=True, log=True), 0.5, 1),
    ],
)
def test_values_have_few_digits_and_stay_between_the_ends(interval, value, settled):
    assert interval.settle(value) == settled
    assert type(interval.settle(value)) is type(settled)


@pytest.mark.parametrize(
    ("key", "ends", "whole"),
    [
        ("epochs", [1.0, 3.0], True),
        ("gamma", [0.5, 1], False),
        ("target_kl", [1, 2], False),  # a number or null
        ("max_episode_steps", [10, 20], True),  # a whole number or null
        ("env_kwargs.a", [1, 2], True),
        ("env_kwargs.a", [1, 2.0], False),
    ],
)
def test_values_are_whole_if_the_setting_is(key, ends, whole):
    (dimension,) = load({key: {"range": ends}}).space.dimensions
    assert dimension.values == Interval(*ends, whole=whole, log=False)
    assert all(isinstance(value, int) is whole for value in draws(dimension.values, 20))


def test_choices_have_the_type_of_the_setting():
    (dimension,) = load({"gamma": {"choice": [1, 0.5]}}).space.dimensions
    assert [repr(value) for value in dimension.values.values] == ["1.0", "0.5"]
    (dimension,) = load({"network.hidden": {"choice": [[64.0, 64], []]}}).space.dimensions
    assert repr(dimension.values.values) == "([64, 64], [])"


# The base config has gamma 0.99 and normalize_advantage true.
CASES = [
    ({"gamma": 0.9}, {"gamma": 0.9}, True),
    ({"gamma": 0.9}, {"gamma": 0.95}, False),
    ({"gamma": [0.9, 0.95]}, {"gamma": 0.95}, True),
    ({"gamma": 0.99}, {}, True),
    ({"gamma": [0.9, 0.95]}, {}, False),
    ({"gamma": 0.9, "epochs": 2}, {"gamma": 0.9, "epochs": 2}, True),
    ({"gamma": 0.9, "epochs": 2}, {"gamma": 0.9, "epochs": 3}, False),
    ({"gamma": 0.9, "epochs": 2}, {"gamma": 0.95, "epochs": 2}, False),
    ({"gamma": 0.9, "epochs": 2}, {"gamma": 0.95, "epochs": 3}, False),
    ({"normalize_advantage": True}, {}, True),
    ({"target_kl": None}, {}, True),
    ({"network.hidden": [[64, 64], [8]]}, {}, True),
    ({}, {}, True),
]


@pytest.mark.parametrize(("when", "point", "holds"), CASES)
def test_a_setting_is_set_if_all_of_its_conditions_hold(when, point, holds):
    space = load({
        "gamma": {"choice": [0.9, 0.95]},
        "epochs": {"choice": [2, 3]},
        "value_coef": {"choice": [0.1, 0.2], "when": when},
    }).space  # fmt: skip
    dimension = next(each for each in space.dimensions if each.key == "value_coef")
    assert space.is_set(dimension, point) is holds


def test_a_truth_value_is_not_the_number_one():
    space = load(
        {"env_kwargs.a": {"choice": [1, True]}, "env_kwargs.b": {"choice": [5], "when": {"env_kwargs.a": True}}}
    )
    assert space.space.list_grid() == [{"env_kwargs.a": 1}, {"env_kwargs.a": True, "env_kwargs.b": 5}]
    assert space.space.list_grid()[1]["env_kwargs.a"] is True


def test_a_condition_may_name_a_setting_further_down_and_one_that_is_conditional_itself():
    """`epochs` is 10 in the base config, which counts where it is not set."""
    space = load({
        "value_coef": {"choice": [0.1], "when": {"epochs": [10, 8]}},
        "epochs": {"choice": [2, 8], "when": {"gamma": 0.9}},
        "gamma": {"choice": [0.9, 0.95]},
    }).space  # fmt: skip
    assert space.list_grid() == [
        {"gamma": 0.9, "epochs": 2},
        {"gamma": 0.9, "epochs": 8, "value_coef": 0.1},
        {"gamma": 0.95, "value_coef": 0.1},
    ]


def test_a_grid_is_in_the_order_of_the_file():
    space = load({"gamma": {"choice": [0.9, 0.5]}, "epochs": {"choice": [3, 1, 2]}}).space
    points = [(point["gamma"], point["epochs"]) for point in space.list_grid()]
    assert points == [(0.9, 3), (0.9, 1), (0.9, 2), (0.5, 3), (0.5, 1), (0.5, 2)]


def test_a_drawn_point_has_the_settings_whose_conditions_hold():
    space = load({
        "gamma": {"choice": [0.9, 0.95]},
        "epochs": {"range": [1, 9], "when": {"gamma": 0.9}},
    }).space  # fmt: skip
    rng = np.random.default_rng(0)
    points = [space.draw(rng) for _ in range(50)]
    assert {(point["gamma"], "epochs" in point) for point in points} == {(0.9, True), (0.95, False)}

"""Changes the settings of a fork in population-based training (Jaderberg et al. 2017, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.sweeps.loading import Sweep
from rl_training.sweeps.methods.random_search import MOST_DRAWS
from rl_training.sweeps.space import Choices, Dimension, Interval, Point
from rl_training.sweeps.trial_settings import find_fault

RESAMPLE = 0.25
"""The probability with which a setting is drawn from its values again."""
FACTORS = (0.8, 1.2)
"""A number is multiplied by one of these."""
NEAR_ONE = ("gamma", "gae_lambda")
"""Settings whose distance to one is multiplied: 0.99 becomes 0.988 or 0.992, and not 0.79 or 1.19."""


def explore(sweep: Sweep, params: Mapping[str, Any], rng: np.random.Generator) -> Point:
    """Returns a point near another one.

    A point that the settings refuse is drawn again; after `MOST_DRAWS` the other point itself is returned.

    Args:
        sweep: The sweep.
        params: The other point.
        rng: The generator of the generation.
    """

    def change(dimension: Dimension) -> Any:
        if dimension.key not in params or rng.random() < RESAMPLE:
            return dimension.values.draw(rng)
        if isinstance(dimension.values, Choices):
            return move_to_neighbor(dimension.values, params[dimension.key], rng)
        return scale(dimension.key, dimension.values, params[dimension.key], FACTORS[rng.integers(len(FACTORS))])

    for _ in range(MOST_DRAWS):
        point = sweep.space.choose(change)
        if find_fault(sweep, point) is None:
            return point
    return dict(params)


def move_to_neighbor(choices: Choices, value: Any, rng: np.random.Generator) -> Any:
    """Returns the choice before or after a value, in the order of the file."""
    here = choices.find(value)
    beside = [i for i in (here - 1, here + 1) if 0 <= i < len(choices.values)]
    return choices.values[beside[rng.integers(len(beside))]] if beside else value


def scale(key: str, interval: Interval, value: float, factor: float) -> int | float:
    """Returns a number that is changed by a factor and lies in the interval; a whole number changes by one or more."""
    if key in NEAR_ONE:
        return interval.settle(1.0 - (1.0 - value) * factor)
    if interval.whole:
        return interval.settle(math.ceil(value * factor) if factor > 1 else math.floor(value * factor))
    return interval.settle(value * factor)

"""The dimensions of a space and their values in Optuna's terms."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rl_training.sweeps.space import Choices, Dimension, is_same

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def make_distribution(dimension: Dimension) -> BaseDistribution:
    """Returns Optuna's description of a dimension; choices are given by their index, as they may be lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values = dimension.values
    if isinstance(values, Choices):
        return CategoricalDistribution(range(len(values.values)))
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def encode(dimension: Dimension, value: Any) -> Any:
    """Returns a value as Optuna has it: the index of a choice, and a number as it is."""
    if isinstance(dimension.values, Choices):
        return find_choice(dimension.values, value)
    return value


def find_choice(choices: Choices, value: Any) -> int:
    """Returns the index of a value among choices."""
    return next(i for i, choice in enumerate(choices.values) if is_same(choice, value))


@contextmanager
def silence_optuna() -> Iterator[None]:
    """Keeps Optuna's lines about each study and trial, and its warnings, to itself."""
    from optuna import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="optuna")
            yield
    finally:
        logging.set_verbosity(level)

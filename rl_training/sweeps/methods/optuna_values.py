"""The dimensions of a space, their values and trials in Optuna's terms."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rl_training.sweeps.space import Choices, Dimension

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def make_optuna_trial(dimensions: Iterable[Dimension], params: Mapping[str, Any], **outcome: Any) -> FrozenTrial:
    """Returns a trial that has ended, for a study.

    Args:
        dimensions: The dimensions of the space.
        params: The trial's point.
        outcome: The other arguments of `optuna.trial.create_trial`, such as `value`.
    """
    from optuna.trial import create_trial

    varied = [dimension for dimension in dimensions if dimension.key in params]
    return create_trial(
        params={dimension.key: _encode(dimension, params[dimension.key]) for dimension in varied},
        distributions={dimension.key: _make_distribution(dimension) for dimension in varied},
        **outcome,
    )


def _make_distribution(dimension: Dimension) -> BaseDistribution:
    """Returns Optuna's description of a dimension; choices are given by their index, as they may be lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values = dimension.values
    if isinstance(values, Choices):
        return CategoricalDistribution(range(len(values.values)))
    if values.whole:
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _encode(dimension: Dimension, value: Any) -> Any:
    """Returns a value as Optuna has it: the index of a choice, and a number as it is."""
    return dimension.values.find(value) if isinstance(dimension.values, Choices) else value


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

"""The numbers of an episode beside its return and length: its raw return, its success, and numbers of its last info."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.step_contract import describe

logger = logging.getLogger(__name__)

RAW_RETURN = "raw_return"
IS_SUCCESS = "is_success"

NOT_GIVEN = math.nan
"""Stands in an array for a number that the environment did not give."""
REFUSED = math.inf
"""Stands in an array for a value that is not a finite number."""
_warned: set[tuple[str, str]] = set()
"""Environment and name of each number that this process has warned of; each environment has a reader of its own."""
NO_NUMBERS: Mapping[str, float] = MappingProxyType({})
"""The numbers of an episode that has none."""


class EpisodeNumbers:
    """Reads the numbers of an episode that ended; each is left out if the environment does not give it.

    A value that is not a finite number (or not 0 or 1, for `is_success`) is left out as well, with one warning
    in each process.

    Args:
        config: The settings, of which `env_id`, the wrappers and `metrics.info` are used.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._env_id = config.env_id
        self._keys = {IS_SUCCESS: IS_SUCCESS, **{f"info/{key}": key for key in config.metrics.info}}
        self._wanted = frozenset(self._keys.values())
        wrapped = bool(config.wrappers or config.training_wrappers)
        self.names: tuple[str, ...] = (*([RAW_RETURN] if wrapped else []), *self._keys)
        """The names of all numbers that an episode may have."""
        self.refused: dict[str, str] = {}
        """The newest refused value of each name, in words."""

    def collect(self, info: Mapping[str, Any], raw_return: float | None) -> dict[str, float]:
        """Returns the numbers of an episode by name.

        Args:
            info: The info of the episode's last step.
            raw_return: The return beneath all wrappers; None for an environment without wrappers.
        """
        values = self._read(info, raw_return)
        for name, value in values.items():
            if value == REFUSED:
                self.warn(name, self.refused[name])
        return select_given(values)

    def write(self, row: NDArray[np.float64], info: Mapping[str, Any], raw_return: float | None) -> None:
        """Writes the numbers of an episode into `row` [K], in the order of `names`, without warnings."""
        if raw_return is None and self._wanted.isdisjoint(info):  # the usual case, without overhead
            row.fill(NOT_GIVEN)
        else:
            row[:] = list(self._read(info, raw_return).values())

    def warn(self, name: str, got: str) -> None:
        """Warns once that the values of a name are left out, because one was not a number."""
        if (self._env_id, name) in _warned:
            return
        _warned.add((self._env_id, name))
        where = f"info[{self._keys[name]!r}] of an episode's last step" if name in self._keys else name
        expected = "True or False" if name == IS_SUCCESS else "a finite number"
        logger.warning("environment %s: %s is %s; expected %s, so it is left out", self._env_id, where, got, expected)

    def _read(self, info: Mapping[str, Any], raw_return: float | None) -> dict[str, float]:
        values = {name: self._convert(name, info.get(key)) for name, key in self._keys.items()}
        if RAW_RETURN not in self.names:
            return values
        return {RAW_RETURN: self._convert(RAW_RETURN, raw_return), **values}

    def _convert(self, name: str, value: Any) -> float:
        if value is None:
            return NOT_GIVEN
        number = _as_float(value)
        if math.isfinite(number) and (name != IS_SUCCESS or number in (0.0, 1.0)):
            return number
        self.refused[name] = describe(value) if math.isnan(number) and not isinstance(value, float) else repr(value)
        return REFUSED


def select_given(values: Mapping[str, float]) -> dict[str, float]:
    """Returns the numbers that were given and are finite."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _as_float(value: Any) -> float:
    """Returns a number, a bool, or an array of one of these as a float; NaN for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, int | float | np.integer | np.floating | np.bool_):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf

"""The part of a run's metrics and evaluations that the rules of health look at; every checkpoint holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from pydantic import FiniteFloat

from rl_training.errors import CheckpointError
from rl_training.state_checks import Count, validate

POINTS = 200
"""A run's steps are divided into as many equal buckets, and the first point in each bucket is kept."""


class Point(NamedTuple):
    """A value of a metric."""

    step: int
    value: float


class Evaluation(NamedTuple):
    """A periodic evaluation."""

    step: int
    mean: float
    std: float
    """Standard deviation of the episodes' returns."""
    half_width: float
    """Half the width of the mean's 95 % interval; 0 for a single episode, which has none."""

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.half_width


@dataclass
class Returns:
    """The mean returns of training episodes since the beginning, as far as they were logged."""

    first: FiniteFloat = 0.0
    first_step: Count = 0
    last_step: Count = 0
    lowest: FiniteFloat = 0.0
    highest: FiniteFloat = 0.0
    episodes: Count = 0
    """Episodes that have ended."""

    def add(self, step: int, value: float, episodes: int) -> None:
        """Adds a mean."""
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        self.last_step, self.episodes = step, episodes


@dataclass
class History:
    """What the rules need of a run, in a size that does not grow with the run.

    Args:
        total_timesteps: The run's length in steps.
    """

    total_timesteps: int
    evaluations: list[Evaluation] = field(default_factory=list)
    series: dict[str, list[Point]] = field(default_factory=dict)
    returns: Returns | None = None
    """None until a training episode has ended."""
    largest_value: float = 0.0
    """The largest value of a state that the rewards and the entropy so far make plausible, in magnitude."""

    def add_point(self, name: str, step: int, value: float) -> None:
        """Adds a value of a metric."""
        points = self.series.setdefault(name, [])
        if math.isfinite(value) and self._begins_bucket(points, step):
            points.append(Point(step, value))

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Adds a periodic evaluation."""
        if all(map(math.isfinite, evaluation)) and self._begins_bucket(self.evaluations, evaluation.step):
            self.evaluations.append(evaluation)

    def add_return(self, step: int, value: float, episodes: int) -> None:
        """Adds the mean return of the latest training episodes."""
        if not math.isfinite(value):
            return
        if self.returns is None:
            self.returns = Returns(value, step, step, value, value, episodes)
        self.returns.add(step, value, episodes)

    def allow_value(self, value: float) -> None:
        """Raises `largest_value`, unless it is as large already."""
        if math.isfinite(value):
            self.largest_value = max(self.largest_value, value)

    def _begins_bucket(self, points: Sequence[Point | Evaluation], step: int) -> bool:
        return not points or step * POINTS // self.total_timesteps > points[-1].step * POINTS // self.total_timesteps

    def state_dict(self) -> dict[str, Any]:
        """Returns the history as arrays with a row per point, numbers and dicts."""
        return {
            "evaluations": np.array(self.evaluations, np.float64).reshape(-1, 4),
            "series": {name: np.array(points, np.float64).reshape(-1, 2) for name, points in self.series.items()},
            "returns": None if self.returns is None else vars(self.returns).copy(),
            "largest_value": self.largest_value,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned.

        Raises:
            CheckpointError: It is no such state.
        """
        rows = _read_rows("health.evaluations", state["evaluations"], 4)
        self.evaluations = [Evaluation(int(step), *numbers) for step, *numbers in rows]
        series = validate("health.series", state["series"], dict[str, Any])
        self.series = {
            name: [Point(int(step), value) for step, value in _read_rows(f"health.series.{name}", points, 2)]
            for name, points in series.items()
        }
        returns = state["returns"]
        self.returns = None if returns is None else validate("health.returns", returns, Returns)
        self.largest_value = validate("health.largest_value", state["largest_value"], FiniteFloat)


def _read_rows(name: str, rows: Any, columns: int) -> list[list[float]]:
    """Returns the rows of a restored array, the first column of which are steps that increase."""
    good = isinstance(rows, np.ndarray) and rows.dtype == np.float64 and rows.shape[1:] == (columns,)
    if not (good and np.isfinite(rows).all() and (np.diff(rows[:, 0], prepend=-1.0) > 0).all()):
        raise CheckpointError(f"{name}: expected an array of {columns} columns of finite numbers, by increasing steps")
    found: list[list[float]] = rows.tolist()
    return found

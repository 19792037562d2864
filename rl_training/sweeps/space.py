"""The points that a sweep chooses from: a dimension for each setting that it varies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel

from rl_training.config.document import Place, make_node, to_plain_data
from rl_training.config.reading.typed_reader import TypedReader
from rl_training.config.settings import TrainConfig
from rl_training.sweeps.sweep_config import Parameter

DIGITS = 6
"""Decimal digits of a number that is drawn from an interval; more would make settings and names hard to read."""

MOST_GRID_POINTS = 10_000

Point = dict[str, Any]
"""Settings by dotted key, without those whose conditions do not hold."""


@dataclass(frozen=True)
class Choices:
    """Some values, all equally likely."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Returns one of the values."""
        return self.values[rng.integers(len(self.values))]

    def holds(self, value: Any) -> bool:
        """Returns whether a value is one of these."""
        return any(is_same(choice, value) for choice in self.values)

    def find(self, value: Any) -> int:
        """Returns the index of a value, which must be one of these."""
        return next(i for i, choice in enumerate(self.values) if is_same(choice, value))


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`, both included."""

    low: int | float
    high: int | float
    whole: bool
    """Whether only whole numbers belong to it."""
    log: bool
    """Whether equal ratios are equally likely, and not equal differences."""

    def draw(self, rng: np.random.Generator) -> int | float:
        """Returns a number of the interval."""
        if self.whole and not self.log:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        margin = 0.5 if self.whole else 0.0  # each whole number stands for those that are rounded to it
        low, high, share = self.low - margin, self.high + margin, rng.random()
        if self.log:
            return self.settle(math.exp(math.log(low) * (1.0 - share) + math.log(high) * share))
        return self.settle(low * (1.0 - share) + high * share)

    def holds(self, value: Any) -> bool:
        """Returns whether a value belongs to the interval."""
        kinds = int if self.whole else int | float
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high

    def settle(self, value: float) -> int | float:
        """Returns the number of the interval that is nearest to `value`, with few digits."""
        if self.whole:
            return min(max(round(value), int(self.low)), int(self.high))
        scale = min(abs(value), self.high - self.low) if self.log else self.high - self.low
        rounded = round(value, DIGITS - 1 - math.floor(math.log10(scale))) if 0 < scale < math.inf else value
        return min(max(rounded, float(self.low)), float(self.high))


@dataclass(frozen=True)
class Dimension:
    """A setting that is varied."""

    key: str
    """The dotted key of the setting."""
    values: Choices | Interval
    when: Mapping[str, tuple[Any, ...]]
    """The values that other settings must have for this one to be set."""


@dataclass(frozen=True)
class Space:
    """All points of a sweep."""

    dimensions: tuple[Dimension, ...]
    """Ordered as in the file, except that a dimension follows those that its conditions name."""
    base: Mapping[str, Any]
    """The base config's values of the settings that conditions name."""

    def is_set(self, dimension: Dimension, point: Mapping[str, Any]) -> bool:
        """Returns whether the conditions of a dimension hold in a point, which has all dimensions before it."""
        return all(
            any(is_same(point.get(key, self.base[key]), value) for value in values)
            for key, values in dimension.when.items()
        )

    def choose(self, choose_value: Callable[[Dimension], Any]) -> Point:
        """Returns a point with the value that `choose_value` returns for each dimension whose conditions hold."""
        point: Point = {}
        for dimension in self.dimensions:
            if self.is_set(dimension, point):
                point[dimension.key] = choose_value(dimension)
        return point

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Returns whether a point has only settings and values of this space."""
        values = {dimension.key: dimension.values for dimension in self.dimensions}
        return all(key in values and values[key].holds(value) for key, value in point.items())

    def draw(self, rng: np.random.Generator) -> Point:
        """Returns a random point."""
        return self.choose(lambda dimension: dimension.values.draw(rng))

    def list_grid(self) -> list[Point]:
        """Returns all points of a space without intervals, the last setting varying fastest.

        Raises:
            ValueError: There are more than `MOST_GRID_POINTS`, or a setting has an interval.
        """
        points: list[Point] = [{}]
        for dimension in self.dimensions:
            if isinstance(dimension.values, Interval):
                raise ValueError(f"{dimension.key} has a range, and a grid needs a choice")
            points = list(self._extend(points, dimension, dimension.values))
        return points

    def _extend(self, points: Iterable[Point], dimension: Dimension, choices: Choices) -> Iterator[Point]:
        count = 0
        for point in points:
            more = choices.values if self.is_set(dimension, point) else ()
            count += max(len(more), 1)
            if count > MOST_GRID_POINTS:
                raise ValueError(f"the grid has more than {MOST_GRID_POINTS:,} points")
            yield from ({**point, dimension.key: value} for value in more)
            if not more:
                yield point


def build_space(space: Mapping[str, Parameter], base: TrainConfig) -> Space:
    """Returns the space of a sweep's settings, which `space_checks` has found valid."""
    dimensions = []
    for key in order_by_conditions(space)[0]:
        when = {name: read_conditions(value, name, base) for name, value in space[key].when.items()}
        dimensions.append(Dimension(key, build_values(space[key], key, base), when))
    named = {name for dimension in dimensions for name in dimension.when}
    return Space(tuple(dimensions), {name: find_value(base, name) for name in sorted(named)})


def order_by_conditions(space: Mapping[str, Parameter]) -> tuple[list[str], list[str]]:
    """Returns the keys so that each follows those that its conditions name, and those that depend on themselves."""
    ordered, waiting = [], list(space)
    while ready := [key for key in waiting if not any(name in waiting for name in space[key].when)]:
        ordered.append(ready[0])
        waiting.remove(ready[0])
    return ordered, waiting


def build_values(parameter: Parameter, key: str, base: TrainConfig) -> Choices | Interval:
    """Returns the values of a parameter, as the types that the setting has."""
    if parameter.choice is not None:
        return Choices(tuple(read_as_setting(value, key, base) for value in parameter.choice))
    assert parameter.ends is not None
    whole, log = is_whole(key, base, parameter.ends), parameter.log_range is not None
    return Interval(*parameter.ends, whole=whole, log=log)


def read_conditions(value: Any, key: str, base: TrainConfig) -> tuple[Any, ...]:
    """Returns the values of a condition, which a file gives as one value or as a list, as the type of its setting."""
    return tuple(read_as_setting(item, key, base) for item in (value if isinstance(value, list | tuple) else [value]))


def read_as_setting(value: Any, key: str, base: TrainConfig) -> Any:
    """Returns a value as the setting at a dotted key would hold it: 1 is 1.0 where a number is expected."""
    reader, kind = TypedReader(type(base)), find_type(type(base), key)
    if kind is Any:
        return value
    return to_plain_data(reader.read(make_node(to_plain_data(value), Place(key)), kind, tuple(key.split("."))))


def find_type(model: type[BaseModel], key: str) -> Any:
    """Returns the type of the setting at a dotted key: Any within free mappings, None if there is no such setting."""
    kind: Any = model
    for name in key.split("."):
        section = find_section(kind)
        if section is not None and name in section.model_fields:
            kind = section.model_fields[name].annotation
        elif kind is not Any and not any(get_origin(each) is dict for each in list_members(kind)):
            return None
        else:
            kind = Any
    return kind


def list_members(kind: Any) -> list[Any]:
    """Returns the types that a type may be, without None: `[int, str]` for `int | str | None`."""
    if get_origin(kind) is Annotated:
        return list_members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [each for kind in get_args(kind) if kind is not NoneType for each in list_members(kind)]
    return [kind]


def is_whole(key: str, base: TrainConfig, ends: Sequence[int | float]) -> bool:
    """Returns whether a setting is a whole number; in a free mapping, whether both ends are written as such."""
    kinds = list_members(find_type(type(base), key))
    return all(isinstance(end, int) for end in ends) if Any in kinds else int in kinds and float not in kinds


def find_value(base: TrainConfig, key: str) -> Any:
    """Returns the value of the setting at a dotted key; None if a free mapping does not have it."""
    value: Any = base.model_dump(mode="json")
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def is_same(first: Any, second: Any) -> bool:
    """Returns whether two values are equal and neither is a number where the other is a truth value."""
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)


def find_section(kind: Any) -> type[BaseModel] | None:
    """Returns the settings class of a type that is a section, else None."""
    members = list_members(kind)
    return next((each for each in members if isinstance(each, type) and issubclass(each, BaseModel)), None)

"""The registry of algorithms. Callers look an algorithm up by name and use its `AlgorithmSpec`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from rl_training.errors import UserError
from rl_training.experiment.algorithm_spec import AlgorithmSpec as AlgorithmSpec
from rl_training.experiment.builtin import SPECS

ENTRY_POINT_GROUP = "rl_training.algorithms"
"""A package offers algorithms here; each entry point is an `AlgorithmSpec` or a function that returns one."""

_registered: dict[str, AlgorithmSpec] = {}


def register_algorithm(spec: AlgorithmSpec) -> None:
    """Adds an algorithm.

    Raises:
        ValueError: Another algorithm has this name.
    """
    known = _all().get(spec.name)
    if known is not None and known != spec:
        raise ValueError(f"algorithm {spec.name!r} is registered already; choose another name")
    _registered[spec.name] = spec


def get_algorithm(name: str) -> AlgorithmSpec:
    """Returns the algorithm called `name`.

    Raises:
        UserError: There is none; the message names those that there are.
    """
    known = _all()
    if name not in known:
        raise UserError(f"unknown algorithm {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def list_algorithms() -> list[str]:
    """Returns the names of all algorithms, sorted."""
    return sorted(_all())


def _all() -> dict[str, AlgorithmSpec]:
    return {**SPECS, **_from_entry_points(), **_registered}


@cache
def _from_entry_points() -> dict[str, AlgorithmSpec]:
    specs = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        loaded = entry_point.load()
        spec = loaded if isinstance(loaded, AlgorithmSpec) else loaded()
        specs[spec.name] = spec
    return specs

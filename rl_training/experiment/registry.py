"""The registry of algorithms. Callers look an algorithm up by name and use its `AlgorithmSpec`."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from rl_training.errors import UserError
from rl_training.experiment.algorithm_spec import AlgorithmSpec as AlgorithmSpec
from rl_training.experiment.builtin import SPECS

ENTRY_POINT_GROUP = "rl_training.algorithms"
"""The entry-point group for algorithms of other packages: each is an `AlgorithmSpec` or a function that returns one."""

_registered: dict[str, AlgorithmSpec] = {}


def register_algorithm(spec: AlgorithmSpec) -> None:
    """Registers an algorithm for this process.

    Raises:
        ValueError: Another algorithm has the same name.
    """
    known = _collect_all().get(spec.name)
    if known is not None and known != spec:
        raise ValueError(f"algorithm {spec.name!r} is registered already; choose another name")
    _registered[spec.name] = spec


def get_algorithm(name: str) -> AlgorithmSpec:
    """Returns the algorithm called `name`.

    Raises:
        UserError: There is no such algorithm; the message lists the known ones.
    """
    if is_builtin(name):
        return SPECS[name]
    known = _collect_all()
    if name not in known:
        raise UserError(f"unknown algorithm {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def is_builtin(name: str) -> bool:
    """Returns whether this package has the algorithm, without looking through the installed packages."""
    return name in SPECS


def list_algorithms() -> list[str]:
    """Returns the names of all algorithms, sorted."""
    return sorted(_collect_all())


def _collect_all() -> dict[str, AlgorithmSpec]:
    return {**_load_entry_points(), **_registered, **SPECS}


@cache
def _load_entry_points() -> dict[str, AlgorithmSpec]:
    specs = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        loaded = entry_point.load()
        spec = loaded if isinstance(loaded, AlgorithmSpec) else loaded()
        specs[spec.name] = spec
    return specs

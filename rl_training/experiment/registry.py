"""The algorithm registry: what a caller needs to know of an algorithm, so that none branches on its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from rl_training.config.settings import TrainConfig
from rl_training.errors import UserError

if TYPE_CHECKING:
    import gymnasium as gym

    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.policy import Policy
    from rl_training.runtime.trainer import Trainer, TrainResult

ENTRY_POINT_GROUP = "rl_training.algorithms"
"""A package offers algorithms here; each entry point is an `AlgorithmSpec` or a function that returns one."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """One algorithm, as the rest of the system sees it."""

    name: str
    """The value of `algo` in settings."""
    config_type: type[TrainConfig]
    """Its settings."""
    train: Callable[..., TrainResult]
    """`train(config, callbacks=(), resume_from=None) -> TrainResult`."""
    make_trainer: Callable[..., Trainer]
    """`make_trainer(config, callbacks=(), *, resume_from=None, stop=None) -> Trainer`."""
    check_spaces: Callable[[gym.Space[Any], gym.Space[Any]], Sequence[str]]
    """`check_spaces(observation_space, action_space)` returns what it can't train on, a sentence each."""
    load_policy: Callable[[Checkpoint], Policy]
    """`load_policy(checkpoint)` returns the greedy policy of a verified checkpoint."""


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
    return {**_built_in(), **_from_entry_points(), **_registered}


def _built_in() -> dict[str, AlgorithmSpec]:
    from rl_training.experiment.builtin import SPECS

    return SPECS


@cache
def _from_entry_points() -> dict[str, AlgorithmSpec]:
    specs = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        loaded = entry_point.load()
        spec = loaded if isinstance(loaded, AlgorithmSpec) else loaded()
        specs[spec.name] = spec
    return specs

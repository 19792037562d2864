"""The algorithms that come with the package.

Their functions are imported when they are called, so that a list of algorithms needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from rl_training.config.dqn import DQNConfig
from rl_training.config.ppo import PPOConfig
from rl_training.config.sac import SACConfig
from rl_training.config.settings import TrainConfig
from rl_training.experiment.algorithm_spec import AlgorithmSpec


def _imported_when_called(name: str) -> Callable[..., Any]:
    """Returns a function that imports the one called `module:function` and calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return resolve_name(name)(*args, **kwargs)

    return call


def _spec(name: str, config_type: type[TrainConfig]) -> AlgorithmSpec:
    trainer = f"rl_training.runtime.{name}_trainer"
    return AlgorithmSpec(
        name=name,
        config_type=config_type,
        train=_imported_when_called(f"{trainer}:train_{name}"),
        make_trainer=_imported_when_called(f"{trainer}:make_{name}_trainer"),
        check_spaces=_imported_when_called(f"rl_training.algorithms.{name}:check_spaces"),
        load_policy=_imported_when_called(f"{trainer}:load_{name}_policy"),
    )


SPECS = {spec.name: spec for spec in (_spec("ppo", PPOConfig), _spec("dqn", DQNConfig), _spec("sac", SACConfig))}

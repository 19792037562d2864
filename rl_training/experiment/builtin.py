"""The built-in algorithms.

The functions of an algorithm are imported when they are called, so listing the algorithms does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.config.settings import TrainConfig
from rl_training.experiment.algorithm_spec import AlgorithmSpec


def _import_when_called(name: str) -> Callable[..., Any]:
    """Returns a function that imports `module:function` and calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return resolve_name(name)(*args, **kwargs)

    return call


def _make_spec(name: str, config_type: type[TrainConfig]) -> AlgorithmSpec:
    trainer = f"rl_training.runtime.trainers.{name}_trainer"
    return AlgorithmSpec(
        name=name,
        config_type=config_type,
        train=_import_when_called(f"{trainer}:train_{name}"),
        make_trainer=_import_when_called(f"{trainer}:make_{name}_trainer"),
        check_spaces=_import_when_called(f"{trainer}:check_spaces"),
        load_policy=_import_when_called(f"{trainer}:load_{name}_policy"),
    )


SPECS = {
    spec.name: spec
    for spec in (
        _make_spec("ppo", PPOConfig),
        _make_spec("dqn", DQNConfig),
        _make_spec("sac", SACConfig),
        _make_spec("td3", TD3Config),
        _make_spec("tqc", TQCConfig),
    )
}

"""Training runs of reinforcement-learning agents as a workflow: validate, train, evaluate, promote, resume.

The names below are imported when they are first used, so that what needs no torch (settings, the command line's help)
does not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rl_training.api.algorithms import resume as resume
    from rl_training.config.dqn import DQNConfig as DQNConfig
    from rl_training.config.ppo import PPOConfig as PPOConfig
    from rl_training.config.sac import SACConfig as SACConfig
    from rl_training.config.settings import TrainConfig as TrainConfig
    from rl_training.envs.validation.validate import validate_env as validate_env
    from rl_training.experiment.default_manager import DefaultExperimentManager as DefaultExperimentManager
    from rl_training.experiment.loading import load_config as load_config
    from rl_training.experiment.registry import AlgorithmSpec as AlgorithmSpec
    from rl_training.experiment.registry import get_algorithm as get_algorithm
    from rl_training.experiment.registry import list_algorithms as list_algorithms
    from rl_training.experiment.registry import register_algorithm as register_algorithm
    from rl_training.runtime.callbacks import Callback as Callback
    from rl_training.runtime.callbacks import TrainerState as TrainerState
    from rl_training.runtime.dqn_trainer import train_dqn as train_dqn
    from rl_training.runtime.evaluation import EvaluationResult as EvaluationResult
    from rl_training.runtime.ppo_trainer import train_ppo as train_ppo
    from rl_training.runtime.sac_trainer import train_sac as train_sac
    from rl_training.runtime.trainer import TrainResult as TrainResult
    from rl_training.runtime.workflows import evaluate_checkpoint as evaluate_checkpoint
    from rl_training.runtime.workflows import load_policy as load_policy

_DEFINED_IN = {
    "AlgorithmSpec": "rl_training.experiment.registry",
    "Callback": "rl_training.runtime.callbacks",
    "DQNConfig": "rl_training.config.dqn",
    "DefaultExperimentManager": "rl_training.experiment.default_manager",
    "EvaluationResult": "rl_training.runtime.evaluation",
    "PPOConfig": "rl_training.config.ppo",
    "SACConfig": "rl_training.config.sac",
    "TrainConfig": "rl_training.config.settings",
    "TrainResult": "rl_training.runtime.trainer",
    "TrainerState": "rl_training.runtime.callbacks",
    "evaluate_checkpoint": "rl_training.runtime.workflows",
    "get_algorithm": "rl_training.experiment.registry",
    "list_algorithms": "rl_training.experiment.registry",
    "load_config": "rl_training.experiment.loading",
    "load_policy": "rl_training.runtime.workflows",
    "register_algorithm": "rl_training.experiment.registry",
    "resume": "rl_training.api.algorithms",
    "train_dqn": "rl_training.runtime.dqn_trainer",
    "train_ppo": "rl_training.runtime.ppo_trainer",
    "train_sac": "rl_training.runtime.sac_trainer",
    "validate_env": "rl_training.envs.validation.validate",
}

__all__ = ["__version__", *_DEFINED_IN]


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_DEFINED_IN[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Training runs of reinforcement-learning agents as a workflow: validate, train, evaluate, promote, resume.

Each public name is imported when it is first used. Settings and the command line's help need no torch, so they do not
wait for its import.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pkgutil import get_data
from typing import TYPE_CHECKING, Any

from rl_training import moved_names

__version__ = "0.2.0"

if TYPE_CHECKING:  # the one list of public names
    from rl_training.api.films.recording import record as record
    from rl_training.api.policies import evaluate as evaluate
    from rl_training.api.policies import load_policy as load_policy
    from rl_training.api.policies import promote as promote
    from rl_training.api.reproduction.reproduce import Reproduction as Reproduction
    from rl_training.api.reproduction.reproduce import reproduce as reproduce
    from rl_training.api.summary import RunSummary as RunSummary
    from rl_training.api.train_and_resume import resume as resume
    from rl_training.api.train_and_resume import train as train
    from rl_training.comparison.comparison import Comparison as Comparison
    from rl_training.comparison.comparison import compare as compare
    from rl_training.config.algorithms.dqn import DQNConfig as DQNConfig
    from rl_training.config.algorithms.ppo import PPOConfig as PPOConfig
    from rl_training.config.algorithms.sac import SACConfig as SACConfig
    from rl_training.config.algorithms.td3 import TD3Config as TD3Config
    from rl_training.config.algorithms.tqc import TQCConfig as TQCConfig
    from rl_training.config.settings import TrainConfig as TrainConfig
    from rl_training.envs.validation.validate import validate_env as validate_env
    from rl_training.experiment.default_manager import DefaultExperimentManager as DefaultExperimentManager
    from rl_training.experiment.loading import load_config as load_config
    from rl_training.experiment.registry import AlgorithmSpec as AlgorithmSpec
    from rl_training.experiment.registry import get_algorithm as get_algorithm
    from rl_training.experiment.registry import list_algorithms as list_algorithms
    from rl_training.experiment.registry import register_algorithm as register_algorithm
    from rl_training.run_report.report import report as report
    from rl_training.runs.train_result import TrainResult as TrainResult
    from rl_training.runtime.callbacks import Callback as Callback
    from rl_training.runtime.callbacks import TrainerState as TrainerState
    from rl_training.runtime.evaluation import EvaluationResult as EvaluationResult
    from rl_training.runtime.trainers.dqn_trainer import train_dqn as train_dqn
    from rl_training.runtime.trainers.ppo_trainer import train_ppo as train_ppo
    from rl_training.runtime.trainers.sac_trainer import train_sac as train_sac
    from rl_training.runtime.trainers.td3_trainer import train_td3 as train_td3
    from rl_training.runtime.trainers.tqc_trainer import train_tqc as train_tqc
    from rl_training.runtime.workflows import evaluate_checkpoint as evaluate_checkpoint
    from rl_training.sweeps.running import sweep as sweep
    from rl_training.sweeps.sweep_result import SweepResult as SweepResult


def _read_imports() -> dict[str, str]:
    """Returns the module of each public name, read from the imports above, which only type checkers follow."""
    tree = ast.parse(get_data(__name__, "__init__.py") or b"")
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.asname: str(node.module) for node in imports for alias in node.names if alias.asname}


_DEFINED_IN = _read_imports()
__all__ = ["__version__", *_DEFINED_IN]

moved_names.install()


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_DEFINED_IN[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

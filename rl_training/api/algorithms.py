"""The few functions and types that a user calls from Python."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from rl_training.config.dqn import DQNConfig
from rl_training.config.ppo import PPOConfig
from rl_training.config.sac import SACConfig
from rl_training.config.settings import TrainConfig
from rl_training.envs.validation.validate import validate_env
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import load_config
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm, list_algorithms, register_algorithm
from rl_training.runs.single_training import reserve_training
from rl_training.runtime.callbacks import Callback, TrainerState
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy

__all__ = [
    "AlgorithmSpec",
    "Callback",
    "DQNConfig",
    "DefaultExperimentManager",
    "EvaluationResult",
    "PPOConfig",
    "SACConfig",
    "TrainConfig",
    "TrainResult",
    "TrainerState",
    "evaluate_checkpoint",
    "get_algorithm",
    "list_algorithms",
    "load_config",
    "load_policy",
    "register_algorithm",
    "resume",
    "train_dqn",
    "train_ppo",
    "train_sac",
    "validate_env",
]


@reserve_training()
def resume(
    checkpoint: str | Path,
    callbacks: Iterable[Callback] = (),
    *,
    fine_tune: bool = False,
    allow_modules: Collection[str] = (),
    **overrides: Any,
) -> TrainResult:
    """Trains on from a checkpoint, as if training had never stopped.

    Args:
        checkpoint: A checkpoint's directory, or a run's directory, of which the newest good checkpoint is taken.
        callbacks: What sees the run go on, in the order given.
        fine_tune: Begin a new run with the checkpoint's weights alone, in another environment for one.
        allow_modules: Modules of environments and wrappers that a received checkpoint may name.
        **overrides: Settings that change, `total_timesteps` for one; some must stay as they were.

    Returns:
        What came out of the whole run.

    Raises:
        CheckpointError: There is no good checkpoint there, or a setting that must stay equal was changed.
        ConfigError: An override is no valid setting.
        UserError: This process trains already.
        ModuleRefused: A received checkpoint names a module that nobody has allowed.
    """
    manager = DefaultExperimentManager()
    return manager.resume(checkpoint, callbacks, fine_tune=fine_tune, allow_modules=allow_modules, **overrides).train()

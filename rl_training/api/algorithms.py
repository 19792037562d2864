"""The public Python API."""

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
    """Resumes training from a checkpoint as if it had never stopped.

    Args:
        checkpoint: The directory of a checkpoint, or of a run whose newest good checkpoint is used.
        callbacks: Callbacks of the training, called in this order.
        fine_tune: Whether to start a new run from the checkpoint's weights alone, for example in another environment.
        allow_modules: Modules of environments and wrappers that a received checkpoint may import.
        **overrides: Settings to change, such as `total_timesteps`; some settings can't change.

    Returns:
        The result of the complete run.

    Raises:
        CheckpointError: There is no good checkpoint, or a setting was changed that can't change.
        ConfigError: An override is not a valid setting.
        UserError: This process is already training.
        ModuleRefused: A received checkpoint names a module that is not allowed.
    """
    manager = DefaultExperimentManager()
    return manager.resume(checkpoint, callbacks, fine_tune=fine_tune, allow_modules=allow_modules, **overrides).train()

"""PPO in the registry; torch is imported when a function is called, not before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rl_training.config.ppo import PPOConfig
from rl_training.experiment.registry import AlgorithmSpec

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium as gym

    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.checkpoint import Checkpoint
    from rl_training.runtime.policy import Policy
    from rl_training.runtime.stopping import StopFlag
    from rl_training.runtime.trainer import Trainer, TrainResult


def _train(
    config: PPOConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    from rl_training.runtime.ppo_trainer import train_ppo

    return train_ppo(config, callbacks, resume_from)


def _make_trainer(
    config: PPOConfig,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: str | Path | Checkpoint | None = None,
    stop: StopFlag | None = None,
) -> Trainer:
    from rl_training.runtime.ppo_trainer import make_ppo_trainer

    return make_ppo_trainer(config, callbacks, resume_from=resume_from, stop=stop)


def _check_spaces(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Sequence[str]:
    from rl_training.algorithms.ppo import check_spaces

    return check_spaces(observation_space, action_space)


def _load_policy(checkpoint: Checkpoint) -> Policy:
    from rl_training.runtime.ppo_trainer import load_ppo_policy

    return load_ppo_policy(checkpoint)


SPEC = AlgorithmSpec(
    name="ppo",
    config_type=PPOConfig,
    train=_train,
    make_trainer=_make_trainer,
    check_spaces=_check_spaces,
    load_policy=_load_policy,
)

"""TD3's trainer: the off-policy loop with TD3's mathematics."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rl_training.algorithms.continuous.td3 import TD3, check_spaces
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.network_trainer import load_network_policy
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.trainer_factory import make_trainer, train
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer


class TD3Trainer(OffPolicyTrainer):
    """Trains TD3; see `rl_training.algorithms.continuous.td3` for the mathematics."""

    config: TD3Config
    algorithm: TD3
    scale_actions = True

    def _make_algorithm(self) -> TD3:
        return TD3(self.config, self.envs.encoder, self.envs.codec, self.device)


make_td3_trainer = partial(make_trainer, TD3Trainer)
"""Returns TD3's trainer; see `rl_training.runtime.trainer_factory.make_trainer`."""


def train_td3(
    config: TD3Config, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains TD3 without MLflow, held-out evaluation, promotion and handling of signals; `rl_training.train` has them.

    For the arguments, the result and the errors see `rl_training.runtime.trainer_factory.train`.
    """
    return train(TD3Trainer, TD3Config, check_spaces, config, callbacks, resume_from)


load_td3_policy = partial(load_network_policy, config_type=TD3Config, make_algorithm=TD3, scale_actions=True)
"""Returns the greedy policy of one of TD3's checkpoints; see `load_network_policy`."""

"""SAC's trainer: the off-policy loop with SAC's mathematics."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rl_training.algorithms.continuous.sac import SAC, check_spaces
from rl_training.config.algorithms.sac import SACConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.network_trainer import load_network_policy
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.trainer_factory import make_trainer, train
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer


class SACTrainer(OffPolicyTrainer):
    """Trains SAC; see `rl_training.algorithms.continuous.sac` for the mathematics."""

    config: SACConfig
    algorithm: SAC
    scale_actions = True
    needs_middle = True

    def _make_algorithm(self) -> SAC:
        return SAC(self.config, self.envs.encoder, self.envs.codec, self.device)


make_sac_trainer = partial(make_trainer, SACTrainer)
"""Returns SAC's trainer; see `rl_training.runtime.trainer_factory.make_trainer`."""


def train_sac(
    config: SACConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains SAC without MLflow, held-out evaluation, promotion and handling of signals; `rl_training.train` has them.

    For the arguments, the result and the errors see `rl_training.runtime.trainer_factory.train`.
    """
    return train(SACTrainer, SACConfig, check_spaces, config, callbacks, resume_from)


load_sac_policy = partial(load_network_policy, config_type=SACConfig, make_algorithm=SAC, scale_actions=True)
"""Returns the greedy policy of one of SAC's checkpoints; see `load_network_policy`."""

"""TQC's trainer: the off-policy loop with TQC's mathematics."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rl_training.algorithms.continuous.tqc import TQC, check_spaces
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.network_trainer import load_network_policy
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.trainer_factory import make_trainer, train
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer


class TQCTrainer(OffPolicyTrainer):
    """Trains TQC; see `rl_training.algorithms.continuous.tqc` for the mathematics."""

    config: TQCConfig
    algorithm: TQC
    scale_actions = True
    needs_middle = True

    def _make_algorithm(self) -> TQC:
        return TQC(self.config, self.envs.encoder, self.envs.codec, self.device)


make_tqc_trainer = partial(make_trainer, TQCTrainer)
"""Returns TQC's trainer; see `rl_training.runtime.trainer_factory.make_trainer`."""


def train_tqc(
    config: TQCConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains TQC without MLflow, held-out evaluation, promotion and handling of signals; `rl_training.train` has them.

    For the arguments, the result and the errors see `rl_training.runtime.trainer_factory.train`.
    """
    return train(TQCTrainer, TQCConfig, check_spaces, config, callbacks, resume_from)


load_tqc_policy = partial(load_network_policy, config_type=TQCConfig, make_algorithm=TQC, scale_actions=True)
"""Returns the greedy policy of one of TQC's checkpoints; see `load_network_policy`."""

"""DQN's trainer: the off-policy loop with DQN's mathematics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.algorithms.dqn import DQN, check_spaces
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.data.priorities import Priorities
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.network_trainer import load_network_policy
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.trainer_factory import make_trainer, train
from rl_training.runtime.trainers.off_policy_trainer import OffPolicyTrainer


class DQNTrainer(OffPolicyTrainer):
    """Trains DQN; see `rl_training.algorithms.dqn` for the mathematics."""

    config: DQNConfig
    algorithm: DQN

    def _make_algorithm(self) -> DQN:
        return DQN(self.config, self.envs.encoder, self.envs.codec, self.device)

    def _make_buffer(self) -> ReplayBuffer:
        buffer, prioritized = super()._make_buffer(), self.config.prioritized_replay
        if prioritized is not None:
            buffer.priorities = Priorities(buffer.capacity, prioritized.alpha, prioritized.epsilon)
        return buffer

    def _learn_from(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        metrics = super()._learn_from(batch, progress)
        if self.buffer.priorities is not None and batch.places is not None:
            self.buffer.priorities.update(batch.places, self.algorithm.backend.numpy(self.algorithm.errors))
        return metrics

    def _trainer_state(self) -> dict[str, Any]:
        state, buffer = super()._trainer_state(), self.buffer
        return state if buffer.priorities is None else state | {"priorities": buffer.priorities.state_dict(buffer.size)}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        if self.buffer.priorities is not None:
            self.buffer.priorities.load_state_dict(trainer["priorities"], self.buffer.size)
        return super()._load_states(policy, trainer)

    def _after_step(self, before: int) -> None:
        every = self.config.target_update_every
        if self.num_timesteps // every > before // every:
            self.algorithm.update_target()


make_dqn_trainer = partial(make_trainer, DQNTrainer)
"""Returns DQN's trainer; see `rl_training.runtime.trainer_factory.make_trainer`."""


def train_dqn(
    config: DQNConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains DQN without MLflow, held-out evaluation, promotion and handling of signals; `rl_training.train` has them.

    For the arguments, the result and the errors see `rl_training.runtime.trainer_factory.train`.
    """
    return train(DQNTrainer, DQNConfig, check_spaces, config, callbacks, resume_from)


load_dqn_policy = partial(load_network_policy, config_type=DQNConfig, make_algorithm=DQN)
"""Returns the greedy policy of one of DQN's checkpoints; see `load_network_policy`."""

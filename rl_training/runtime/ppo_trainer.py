"""PPO's training loop: collect a rollout, learn from it, again, until the steps are done.

Shape legend: T rollout steps, N environments, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.algorithms.ppo import PPO, check_spaces
from rl_training.config.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.training_envs import TrainingEnvs, VectorStep
from rl_training.runs.single_training import reserve_training
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.network_trainer import NetworkTrainer, check_trainable, load_network_policy
from rl_training.runtime.policy import Policy
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.trainer_factory import ResumeFrom, make_trainer


class PPOTrainer(NetworkTrainer):
    """Trains PPO; see `rl_training.algorithms.ppo` for the mathematics."""

    config: PPOConfig
    algorithm: PPO

    def __init__(
        self, config: PPOConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.algorithm = PPO(config, self.envs.encoder, self.envs.codec, self.device)
        self.buffer = RolloutBuffer(
            config.rollout_steps,
            config.num_envs,
            self.envs.encoder.shape,
            self.envs.encoder.dtype,
            self.envs.codec.shape,
            self.envs.codec.dtype,
        )

        self._no_values = np.zeros(config.num_envs, np.float32)

    def _make_envs(self) -> TrainingEnvs:
        return TrainingEnvs(self.config, gamma=self.config.gamma)

    def _learn(self) -> None:
        while self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            if self.progress.phase == "collect":
                self._collect()
            self._update()

    def _collect(self) -> None:
        """Fills the buffer with T steps of N environments (fewer at the very end)."""
        if self.buffer.position == 0:
            self.buffer.reset(self._rollout_steps())
        while not self.buffer.full:
            self.between_steps()
            observation = self.envs.normalized()  # [N, O]
            action, log_prob, value = self.algorithm.act(observation)  # [N, A], [N], [N]
            step = self.envs.step(action)
            self.buffer.add(
                observation,
                action,
                step.scaled_reward,
                step.terminated,
                step.truncated,
                value,
                log_prob,
                self._final_value(step),
            )
            self.progress.num_timesteps += self.config.num_envs
            self.progress.count(step.episodes)

        last_value = self.algorithm.value(self.envs.normalized())  # [N]
        self.buffer.compute_returns_and_advantages(last_value, self.config.gamma, self.config.gae_lambda)
        self.progress.phase = "update"
        self._emit("on_collect_end", self.progress.rollout_metrics() if self._log_due() else {})

    def _update(self) -> None:
        """Learns from the full buffer, then empties it."""
        before_rollout = self.num_timesteps - self.buffer.num_transitions
        metrics = self.algorithm.update(self.buffer, before_rollout / self.config.total_timesteps, self.check_stop)
        self.buffer.reset()
        self.progress.phase = "collect"
        self.progress.iteration += 1
        if self._log_due():
            self.progress.last_log = self.num_timesteps
            self._emit("on_update_end", {**self.progress.rollout_metrics(), **metrics, **self._time_metrics()})
        else:
            self._emit("on_update_end", {})

    def _rollout_steps(self) -> int:
        """The rollout's length: the last one is shortened, so that training ends at `total_timesteps`."""
        left = -(-(self.config.total_timesteps - self.num_timesteps) // self.config.num_envs)
        return min(self.config.rollout_steps, left)

    def _final_value(self, step: VectorStep) -> npt.NDArray[np.float32]:
        """V of the true final observations, [N], where one may count; the buffer takes those of cut episodes."""
        return self.algorithm.value(step.next_normalized) if step.truncated.any() else self._no_values

    def _trainer_state(self) -> dict[str, Any]:
        observation = self.envs.normalized().copy()  # [N, O]; what follows the newest step
        return {**super()._trainer_state(), "buffer": self.buffer.state_dict(), "observation": observation}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.buffer.load_state_dict(trainer["buffer"])
        fresh = super()._load_states(policy, trainer)
        if fresh and self.buffer.position > 0 and self.progress.phase == "collect":
            self.buffer.cut_newest(fresh, self.algorithm.value(trainer["observation"]))
        return fresh


def make_ppo_trainer(
    config: PPOConfig,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: ResumeFrom = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Returns PPO's trainer; see `rl_training.runtime.trainer_factory.make_trainer`."""
    return make_trainer(PPOTrainer, config, callbacks, resume_from=resume_from, stop=stop)


@reserve_training()
def train_ppo(
    config: PPOConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains PPO.

    Args:
        config: The settings.
        callbacks: What sees the run, in the order given.
        resume_from: A checkpoint or a run's directory to go on from.

    Returns:
        What came out.

    Raises:
        UserError: The settings, the environment or the checkpoint can't be used, or this process trains already.
        RunFailed: The environment, the numbers or a callback failed in mid-run.
    """
    if resume_from is None:
        check_trainable(config, PPOConfig, check_spaces)
    return make_ppo_trainer(config, callbacks, resume_from=resume_from).train()


def load_ppo_policy(checkpoint: Checkpoint) -> Policy:
    """Returns the greedy policy of a checkpoint, without making an environment.

    Raises:
        CheckpointError: The checkpoint is damaged or not PPO's.
    """
    return load_network_policy(checkpoint, PPOConfig, PPO)

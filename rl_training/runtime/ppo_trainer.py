"""PPO's training loop: collect a rollout and learn from it, until all steps are done.

Shapes: T rollout steps, N environments, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.algorithms.ppo import PPO, check_spaces
from rl_training.config.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.rollout_memory import check_memory
from rl_training.envs.training_envs import TrainingEnvs, VectorStep
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.runtime.fine_tuning import CarriedOver
from rl_training.runtime.network_trainer import NetworkAgent, choose_device, load_network_policy, require_size
from rl_training.runtime.policy import Policy
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.trainer_factory import make_trainer, train


class PPOTrainer(Trainer):
    """Trains PPO; see `rl_training.algorithms.ppo` for the mathematics."""

    config: PPOConfig
    require_size = staticmethod(require_size)

    def __init__(
        self, config: PPOConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.envs = self._opened.enter_context(closing(TrainingEnvs(config, gamma=config.gamma)))
        encoder, codec = self.envs.encoder, self.envs.codec
        self.device, self.device_reason = choose_device(config, encoder)
        check_memory(config, encoder, codec)
        self.algorithm = PPO(config, encoder, codec, self.device)
        self.agent = NetworkAgent(self.envs, self.algorithm)
        self.buffer = RolloutBuffer(
            config.rollout_steps, config.num_envs, encoder.shape, encoder.dtype, codec.shape, codec.dtype
        )
        self._no_values = np.zeros(config.num_envs, np.float32)

    def _start(self) -> None:
        self.envs.start()

    def _learn(self) -> None:
        while self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            if self.progress.phase == "collect":
                self._collect()
            self._update()

    def _collect(self) -> None:
        """Fills the buffer with T steps of N environments; the last rollout of a run may be shorter."""
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
            self.count_step(step)

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
        """Returns the rollout's length; the last rollout is shortened so that training ends at `total_timesteps`."""
        left = -(-(self.config.total_timesteps - self.num_timesteps) // self.config.num_envs)
        return min(self.config.rollout_steps, left)

    def _final_value(self, step: VectorStep) -> npt.NDArray[np.float32]:
        """Returns V of the final observations, [N]; the buffer uses those of truncated episodes alone."""
        return self.algorithm.value(step.next_normalized) if step.truncated.any() else self._no_values

    def policy(self) -> Policy:
        """Returns the current greedy policy."""
        return self.agent.policy()

    def _policy_state(self) -> dict[str, Any]:
        return self.agent.policy_state()

    def _trainer_state(self) -> dict[str, Any]:
        observation = self.envs.normalized().copy()  # [N, O]; follows the newest step
        return {**self.agent.trainer_state(), "buffer": self.buffer.state_dict(), "observation": observation}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.buffer.load_state_dict(trainer["buffer"])
        fresh = self.agent.load_states(policy, trainer)
        if fresh and self.buffer.position > 0 and self.progress.phase == "collect":
            self.buffer.cut_newest(fresh, self.algorithm.value(trainer["observation"]))
        return fresh

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Takes over another run's weights and statistics; see `runtime.fine_tuning`."""
        return self.agent.carry_over(policy, trainer)


make_ppo_trainer = partial(make_trainer, PPOTrainer)
"""Returns PPO's trainer; see `rl_training.runtime.trainer_factory.make_trainer`."""


def train_ppo(
    config: PPOConfig, callbacks: Iterable[Callback] = (), resume_from: str | Path | Checkpoint | None = None
) -> TrainResult:
    """Trains PPO without MLflow, held-out evaluation, promotion and handling of signals; `rl_training.train` has them.

    For the arguments, the result and the errors see `rl_training.runtime.trainer_factory.train`.
    """
    return train(PPOTrainer, PPOConfig, check_spaces, config, callbacks, resume_from)


load_ppo_policy = partial(load_network_policy, config_type=PPOConfig, make_algorithm=PPO)
"""Returns the greedy policy of one of PPO's checkpoints; see `load_network_policy`."""

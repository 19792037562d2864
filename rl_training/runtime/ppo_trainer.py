"""PPO's training loop: collect a rollout, learn from it, again, until the steps are done.

Shape legend: T rollout steps, N environments, O one encoded observation, A one policy-side action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.ppo import PPO
from rl_training.config.checking import check
from rl_training.config.ppo import PPOConfig
from rl_training.config.reader import read_text
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.space_json import space_from_json, space_to_json
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.training import TrainingEnvs, VectorStep
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, load_policy_state
from rl_training.runtime.policy import GreedyPolicy, Policy
from rl_training.runtime.run_utils import TrainingRun, resolve_device
from rl_training.runtime.setup import make_trainer
from rl_training.runtime.stopping import StopFlag
from rl_training.runtime.trainer import Trainer, TrainResult


class PPOTrainer(Trainer):
    """Trains PPO; see `rl_training.algorithms.ppo` for the mathematics."""

    config: PPOConfig

    def __init__(
        self, config: PPOConfig, run: TrainingRun, callbacks: Iterable[Callback] = (), *, stop: StopFlag | None = None
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.envs = TrainingEnvs(config, gamma=config.gamma)
        self.device = resolve_device(config.device, images=self.envs.encoder.kind != "vector")
        self.ppo = PPO(config, self.envs.encoder, self.envs.codec, self.device)
        self.buffer = RolloutBuffer(
            config.rollout_steps,
            config.num_envs,
            self.envs.encoder.shape,
            self.envs.encoder.dtype,
            self.envs.codec.shape,
            self.envs.codec.dtype,
        )

    def _start(self) -> None:
        self.envs.start()

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
            action, log_prob, value = self.ppo.act(observation)  # [N, A], [N], [N]
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

        last_value = self.ppo.value(self.envs.normalized())  # [N]
        self.buffer.compute_returns_and_advantages(last_value, self.config.gamma, self.config.gae_lambda)
        self.progress.phase = "update"
        self._emit("on_collect_end", self.progress.rollout_metrics() if self._log_due() else {})

    def _update(self) -> None:
        """Learns from the full buffer, then empties it."""
        before_rollout = self.num_timesteps - self.buffer.num_transitions
        metrics = self.ppo.update(self.buffer, before_rollout / self.config.total_timesteps, self.check_stop)
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
        """V of the true final observation where an episode was cut (truncated, not terminated), else 0: [N]."""
        final_value = np.zeros(self.config.num_envs, np.float32)
        cut = step.truncated & ~step.terminated
        if cut.any():
            final_value[cut] = self.ppo.value(step.next_normalized)[cut]
        return final_value

    def policy(self) -> Policy:
        """Returns the current policy, greedy, with the normaliser's statistics as they are now."""
        return GreedyPolicy(
            encoder=self.envs.encoder,
            normalizer=self.envs.observation_normalizer,
            act_greedy=self.ppo.act_greedy,
            codec=self.envs.codec,
            observation_space=self.envs.single_observation_space,
            action_space=self.envs.single_action_space,
        )

    def _policy_state(self) -> dict[str, Any]:
        normalizer = self.envs.observation_normalizer
        return {
            "weights": self.ppo.policy_state(),
            "observation_normalizer": normalizer.state_dict() if normalizer is not None else None,
            "observation_space": space_to_json(self.envs.single_observation_space),
            "action_space": space_to_json(self.envs.single_action_space),
        }

    def _trainer_state(self) -> dict[str, Any]:
        return {
            "algorithm": self.ppo.state_dict(),
            "envs": self.envs.state_dict(),
            "buffer": self.buffer.state_dict(),
        }

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.ppo.load_policy_state(policy["weights"])
        self.ppo.load_state_dict(trainer["algorithm"])
        self.buffer.load_state_dict(trainer["buffer"])
        if self.envs.observation_normalizer is not None:
            self.envs.observation_normalizer.load_state_dict(policy["observation_normalizer"])
        return self.envs.load_state_dict(trainer["envs"])

    def _close(self) -> None:
        self.envs.close()


def make_ppo_trainer(
    config: PPOConfig,
    callbacks: Iterable[Callback] = (),
    *,
    resume_from: str | Path | Checkpoint | None = None,
    stop: StopFlag | None = None,
) -> Trainer:
    """Returns PPO's trainer; see `rl_training.runtime.setup.make_trainer`."""
    return make_trainer(PPOTrainer, config, callbacks, resume_from=resume_from, stop=stop)


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
        UserError: The settings, the environment or the checkpoint can't be used.
        RunFailed: The environment, the numbers or a callback failed in mid-run.
    """
    return make_ppo_trainer(config, callbacks, resume_from=resume_from).train()


def load_ppo_policy(checkpoint: Checkpoint) -> Policy:
    """Returns the greedy policy of a checkpoint, without making an environment.

    Raises:
        CheckpointError: The checkpoint is damaged or not PPO's.
    """
    config = check(read_text(checkpoint.config_text(), str(checkpoint.path)), PPOConfig)
    state = load_policy_state(checkpoint)
    observation_space, action_space = (space_from_json(state[name]) for name in ("observation_space", "action_space"))
    encoder, codec = ObservationEncoder(observation_space), ActionCodec(action_space)
    ppo = PPO(config, encoder, codec, torch.device("cpu"))
    ppo.load_policy_state(state["weights"])
    normalizer = None
    if state["observation_normalizer"] is not None:
        normalizer = ObservationNormalizer(encoder, config.normalization.clip)
        normalizer.load_state_dict(state["observation_normalizer"])
    return GreedyPolicy(
        encoder=encoder,
        normalizer=normalizer,
        act_greedy=ppo.act_greedy,
        codec=codec,
        observation_space=observation_space,
        action_space=action_space,
    )

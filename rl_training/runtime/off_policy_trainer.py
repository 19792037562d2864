"""The off-policy training loop: act, store, learn from what is stored, until the steps are done.

Every train_freq environment steps end a block, and gradient_steps updates follow it, once the warm-up is over. How many
updates there have been by a step is a function of that step alone (`OffPolicyConfig.updates_due`).

Shape legend: N environments, O one encoded observation, A one policy-side action, B batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from rl_training.config.off_policy import OffPolicyConfig
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.data.replay_memory import check_memory
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.run_layout import REPLAY
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, ReplayStore, WriteShards
from rl_training.runtime.network_trainer import NetworkAlgorithm, NetworkTrainer
from rl_training.runtime.run_utils import TrainingRun
from rl_training.state_checks import Count, validate

STATES = ("train/learning_rate", "train/exploration_rate", "train/entropy_coef")
"""What training sets or moves step by step is logged as it is now; all other metrics of updates are means."""


class OffPolicyAlgorithm(NetworkAlgorithm, Protocol):
    """What the loop needs of DQN or SAC."""

    @property
    def replay_rng(self) -> np.random.Generator:
        """The stream that batches are drawn from."""

    def act(self, observation: npt.NDArray[Any], num_timesteps: int) -> npt.NDArray[Any]:
        """Returns exploring actions [N, *A] for normalised observations [N, *O]."""

    def update(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one gradient step; returns its metrics by their tracked names."""


@dataclass
class UpdateMetrics:
    """What the updates since the last record have measured."""

    sums: dict[str, float] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)
    updates: Count = 0

    def add(self, metrics: dict[str, float]) -> None:
        """Takes in what one update has measured."""
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.newest, self.updates = metrics, self.updates + 1

    def summary(self) -> dict[str, float]:
        """Returns means over these updates, and the newest value of `STATES`; nothing where there was no update."""
        means = {name: total / self.updates for name, total in self.sums.items()}
        return means | {name: self.newest[name] for name in STATES if name in self.newest}


class OffPolicyTrainer(NetworkTrainer):
    """Trains an algorithm from a replay buffer; `dqn_trainer.py` and `sac_trainer.py` say which."""

    config: OffPolicyConfig
    algorithm: OffPolicyAlgorithm
    scale_actions: ClassVar[bool] = False
    """Whether the algorithm's actions lie in [-1, 1], to be scaled to the environment's bounds."""

    def __init__(
        self,
        config: OffPolicyConfig,
        run: TrainingRun,
        callbacks: Iterable[Callback] = (),
        *,
        stop: StopFlag | None = None,
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        check_memory(config, self.envs.encoder, self.envs.codec)
        self.algorithm = self._make_algorithm()
        self.buffer = self._make_buffer()
        self.replay = ReplayStore(run.run_dir / REPLAY)
        self.updates = 0
        """Updates so far."""
        self.measured = UpdateMetrics()

    @abstractmethod
    def _make_algorithm(self) -> OffPolicyAlgorithm:
        """Returns the algorithm for the environments' spaces."""

    def _make_buffer(self) -> ReplayBuffer:
        config, encoder, codec = self.config, self.envs.encoder, self.envs.codec
        size, num_envs, n_step, gamma = config.buffer_size, config.num_envs, config.n_step, config.gamma
        obs_shape, action = encoder.shape, (codec.shape, codec.dtype)
        if config.frame_channels is None:
            return ReplayBuffer(size, num_envs, obs_shape, encoder.dtype, *action, n_step=n_step, gamma=gamma)
        frame_channels = config.frame_channels
        return FrameReplayBuffer(size, num_envs, obs_shape, frame_channels, *action, n_step=n_step, gamma=gamma)

    def _make_envs(self) -> TrainingEnvs:
        return TrainingEnvs(self.config, gamma=self.config.gamma, scale_actions=self.scale_actions)

    def _learn(self) -> None:
        while self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            if self.progress.phase == "collect":
                self._collect()
            if self.progress.phase == "update":
                self._update()

    def _collect(self) -> None:
        """Takes one step of N environments and stores it; where it completes a block, updates are next."""
        self.between_steps()
        config, before = self.config, self.num_timesteps
        observation = self.envs.observation  # [N, O], raw: statistics change while it is stored
        action = self.algorithm.act(self.envs.normalized(), before)  # [N, A]
        step = self.envs.step(action)
        self.replay.make_room(self.buffer)
        self.buffer.add(observation, action, step.reward, step.next_observation, step.terminated, step.truncated)
        self.progress.num_timesteps += config.num_envs
        self.progress.count(step.episodes)
        self._after_step(before)
        if self.num_timesteps // config.train_freq > before // config.train_freq:
            self.progress.phase = "update"
            self._emit("on_collect_end", self.progress.rollout_metrics() if self._log_due() else {})

    def _after_step(self, before: int) -> None:
        """What an algorithm does by the clock of environment steps, which has gone on from `before`; nothing here."""

    def _update(self) -> None:
        """Makes the updates that are due, which are none in the warm-up."""
        config = self.config
        due, before_step = config.updates_due(self.num_timesteps), self.num_timesteps - config.num_envs
        while self.updates < due:
            self.check_stop()
            batch = self._normalized(self.buffer.sample(config.batch_size, self.algorithm.replay_rng))
            self.measured.add(self.algorithm.update(batch, before_step / config.total_timesteps))
            self.updates += 1
        if (full_shards := self.replay.seal_pieces(self.buffer)) is not None:
            self._saver.write_ahead(full_shards)
        self.progress.phase = "collect"
        self.progress.iteration += 1
        metrics: dict[str, float] = {}
        if self._log_due():
            self.progress.last_log = self.num_timesteps
            metrics = {**self.progress.rollout_metrics(), **self._update_metrics(), **self._time_metrics()}
            self.measured = UpdateMetrics()
        self._emit("on_update_end", metrics)

    def _update_metrics(self) -> dict[str, float]:
        counts = {
            "train/updates": float(self.updates),
            "train/updates_per_step": self.config.gradient_steps / self.config.train_freq,
        }
        return counts | self.measured.summary()

    def _normalized(self, batch: ReplayBatch) -> ReplayBatch:
        """Returns the batch by the statistics as they are now; sums of rewards are scaled and cut as a whole."""
        observations, rewards = self.envs.observation_normalizer, self.envs.reward_normalizer
        if observations is not None:
            batch = replace(
                batch, obs=observations.normalize(batch.obs), next_obs=observations.normalize(batch.next_obs)
            )
        return batch if rewards is None else replace(batch, rewards=rewards.normalize(batch.rewards))

    def _trainer_state(self) -> dict[str, Any]:
        return {**super()._trainer_state(), "updates": self.updates, "measured": asdict(self.measured)}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.updates = validate("updates", trainer["updates"], Count)
        self.measured = validate("measured", trainer["measured"], UpdateMetrics)
        fresh = super()._load_states(policy, trainer)
        if fresh:  # what is stored next of these environments does not follow what was stored last
            self.replay.cut_newest(self.buffer, fresh)
        return fresh

    def _replay_shards(self) -> WriteShards:
        return self.replay.seal(self.buffer)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint's state, its replay buffer included; see `Trainer.restore`."""
        self.replay.load(checkpoint, self.buffer)
        super().restore(checkpoint)

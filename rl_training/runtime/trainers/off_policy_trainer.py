"""The off-policy training loop: act, store the transitions, and learn from stored ones, until all steps are done.

A block ends after every `train_freq` environment steps, and `gradient_steps` updates follow each block once the warm-up
is over. The number of updates is a function of the step alone (`OffPolicyConfig.updates_due`).

Shapes: N environments, O one encoded observation, A one policy-side action, B batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from rl_training.algorithms.network_algorithm import OffPolicyAlgorithm
from rl_training.config.algorithms.off_policy import OffPolicyConfig
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.data.replay_memory import check_memory
from rl_training.envs.goals.goal_rewards import GoalRewards
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.run_layout import REPLAY
from rl_training.runs.stopping import StopFlag
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import Checkpoint, ReplayStore, WriteShards
from rl_training.runtime.fine_tuning import CarriedOver
from rl_training.runtime.loop_parts.batches_ahead import draw_ahead
from rl_training.runtime.network_trainer import NetworkAgent, choose_device, require_size
from rl_training.runtime.policy import Policy
from rl_training.runtime.run_utils import TrainingRun
from rl_training.runtime.trainer import Trainer
from rl_training.state_checks import Count, validate

STATES = ("train/learning_rate", "train/exploration_rate", "train/entropy_coef")
"""Metrics that training sets or moves with each step: the newest value is logged; all others are logged as means."""


@dataclass
class UpdateMetrics:
    """The metrics of the updates since metrics were last logged."""

    sums: dict[str, float] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)
    updates: Count = 0
    counts: dict[str, Count] = field(default_factory=dict)
    """The number of updates with each metric: a delayed step of the policy has metrics that others lack."""

    def __post_init__(self) -> None:
        """Completes the state of an earlier version, whose updates had all metrics each."""
        self.counts = self.counts or dict.fromkeys(self.sums, self.updates)

    def add(self, metrics: dict[str, float]) -> None:
        """Adds the metrics of one update."""
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
        self.newest, self.updates = metrics, self.updates + 1

    def summary(self) -> dict[str, float]:
        """Returns the means over these updates and the newest value of `STATES`; empty if there was no update."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        return means | {name: self.newest[name] for name in STATES if name in self.newest}


class OffPolicyTrainer(Trainer):
    """Trains an algorithm from a replay buffer; a trainer beside this file names the algorithm."""

    config: OffPolicyConfig
    algorithm: OffPolicyAlgorithm
    scale_actions: ClassVar[bool] = False
    """Whether the algorithm's actions lie in [-1, 1] and are scaled to the environment's bounds."""
    needs_middle: ClassVar[bool] = False
    """Whether the algorithm learns from the observations between n steps too."""
    require_size = staticmethod(require_size)

    def __init__(
        self,
        config: OffPolicyConfig,
        run: TrainingRun,
        callbacks: Iterable[Callback] = (),
        *,
        stop: StopFlag | None = None,
    ) -> None:
        super().__init__(config, run, callbacks, stop=stop)
        self.envs = self._opened.enter_context(closing(self._make_envs()))
        self.device, self.device_reason = choose_device(config, self.envs.encoder)
        check_memory(config, self.envs.encoder, self.envs.codec)
        self.algorithm = self._make_algorithm()
        self.agent = NetworkAgent(self.envs, self.algorithm)
        self.buffer = self._make_buffer()
        self.replay = ReplayStore(run.run_dir / REPLAY)
        self.updates = 0
        """The number of updates so far."""
        self.measured = UpdateMetrics()

    def _make_envs(self) -> TrainingEnvs:
        return TrainingEnvs(self.config, gamma=self.config.gamma, scale_actions=self.scale_actions)

    @abstractmethod
    def _make_algorithm(self) -> OffPolicyAlgorithm:
        """Returns the algorithm for the spaces of the environments."""

    def _make_buffer(self) -> ReplayBuffer:
        config, encoder, codec = self.config, self.envs.encoder, self.envs.codec
        size, num_envs, n_step, gamma = config.buffer_size, config.num_envs, config.n_step, config.gamma
        action, middle = (codec.shape, codec.dtype), self.needs_middle
        if config.hindsight is not None:
            goals = self._opened.enter_context(closing(GoalRewards(config, encoder)))
            if self.envs.observation_normalizer is not None:
                self.envs.observation_normalizer.imagine = goals.columns.with_achieved_as_desired
            fraction = config.hindsight.relabelled_fraction
            return HindsightReplayBuffer(
                size, num_envs, encoder, *action, gamma, goals.columns, goals.compute, fraction
            )
        if config.frame_channels is None:
            form = (size, num_envs, encoder.shape, encoder.dtype, *action)
            return ReplayBuffer(*form, n_step=n_step, gamma=gamma, returns_middle=middle)
        frames = (size, num_envs, encoder.shape, config.frame_channels, *action)
        return FrameReplayBuffer(*frames, n_step=n_step, gamma=gamma, returns_middle=middle)

    def _start(self) -> None:
        self.envs.start()

    def _learn(self) -> None:
        while self.num_timesteps < self.config.total_timesteps or self.progress.phase == "update":
            if self.progress.phase == "collect":
                self._collect()
            if self.progress.phase == "update":
                self._update()

    def _collect(self) -> None:
        """Takes one step of N environments and stores it; updates are next if the step completes a block."""
        self.between_steps()
        config, before = self.config, self.num_timesteps
        observation = self.envs.observation  # [N, O], raw, because statistics change while it is stored
        action = self.algorithm.act(self.envs.normalized(), before)  # [N, A]
        step = self.envs.step(action)
        self.replay.make_room(self.buffer)
        self.buffer.add(observation, action, step.reward, step.next_observation, step.terminated, step.truncated)
        self.progress.count_step(step, config.num_envs)
        self._after_step(before)
        if self.num_timesteps // config.train_freq > before // config.train_freq:
            self.progress.phase = "update"
        if self._listeners.need_steps:
            self._listeners.hear(step)
        if self.progress.phase == "update":
            self._emit("on_collect_end", self.progress.rollout_metrics() if self._log_due() else {})

    def _after_step(self, before: int) -> None:
        """Does what an algorithm schedules by environment steps; before this step there were `before`."""
        return

    def _update(self) -> None:
        """Takes the updates that are due; there are none in the warm-up."""
        due, size = self.config.updates_due(self.num_timesteps), self.config.batch_size
        progress = (self.num_timesteps - self.config.num_envs) / self.config.total_timesteps
        draws = draw_ahead(self.buffer, self.algorithm, self._normalize, size, range(self.updates, due))
        with closing(draws) as batches:
            while self.updates < due:
                self.check_stop()
                self.measured.add(self._learn_from(next(batches), progress))
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

    def _learn_from(self, batch: ReplayBatch, progress: float) -> dict[str, float]:
        """Takes one update; returns its metrics."""
        return self.algorithm.update(batch, progress)

    def _update_metrics(self) -> dict[str, float]:
        counts = {
            "train/updates": float(self.updates),
            "train/updates_per_step": self.config.gradient_steps / self.config.train_freq,
        }
        return counts | self.measured.summary()

    def _normalize(self, batch: ReplayBatch) -> ReplayBatch:
        """Returns the batch in the current statistics; the reward of n steps is scaled and clipped as a sum."""
        observations, rewards = self.envs.observation_normalizer, self.envs.reward_normalizer
        if observations is not None:
            names = ("obs", "next_obs", "middle_obs")
            given = {name: array for name in names if (array := getattr(batch, name)) is not None}
            batch = replace(batch, **{name: observations.normalize(array) for name, array in given.items()})
        return batch if rewards is None else replace(batch, rewards=rewards.normalize(batch.rewards))

    def policy(self) -> Policy:
        """Returns the current greedy policy."""
        return self.agent.policy()

    def _policy_state(self) -> dict[str, Any]:
        return self.agent.policy_state()

    def _trainer_state(self) -> dict[str, Any]:
        return {**self.agent.trainer_state(), "updates": self.updates, "measured": asdict(self.measured)}

    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        self.updates = validate("updates", trainer["updates"], Count)
        self.measured = validate("measured", trainer["measured"], UpdateMetrics)
        fresh = self.agent.load_states(policy, trainer)
        if fresh:  # the next transitions of these environments do not follow the stored ones
            self.replay.cut_newest(self.buffer, fresh)
        return fresh

    def _replay_shards(self) -> WriteShards:
        return self.replay.seal(self.buffer)

    def _load_replay(self, checkpoint: Checkpoint) -> None:
        self.replay.load(checkpoint, self.buffer)

    def carry_over(self, policy: Mapping[str, Any], trainer: Mapping[str, Any] | None) -> CarriedOver:
        """Takes over another run's weights and statistics; see `runtime.fine_tuning`."""
        return self.agent.carry_over(policy, trainer)

"""The interface between a training loop and the frame around it.

Each algorithm's trainer provides the abstract methods, and its loop calls `count_step`, `check_stop` and `_emit`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.envs.training_envs import TrainingEnvs, VectorStep
from rl_training.errors import UserError
from rl_training.runs.progress import Progress
from rl_training.runs.stopping import StopFlag, StopTraining
from rl_training.runtime.callbacks import CallbackList, Event, TrainerState
from rl_training.runtime.checkpoint import Checkpoint, WriteShards
from rl_training.runtime.loop_parts.curriculum import Curriculum
from rl_training.runtime.policy import Policy


class TrainingLoop(ABC):
    """What the frame around a training loop needs from the algorithm, and what the loop needs from the frame.

    A trainer that keeps its environments in `envs`, as a `TrainingEnvs`, offers them to callbacks and curricula.
    """

    config: TrainConfig
    callbacks: CallbackList
    stop: StopFlag
    progress: Progress
    state: TrainerState
    metrics: dict[str, float]
    _curriculum: Curriculum | None
    _hears_steps = False
    """Whether a callback overrides `on_step`."""
    _needs_steps = False
    """Whether that or a curriculum needs each step."""
    _reports_steps = False
    """Whether the loop has called `count_step` for a callback or a curriculum that needs it."""
    _wall_start: float
    _first_step: int

    @staticmethod
    def require_size(config: TrainConfig, checkpoint: Checkpoint) -> None:
        """Checks that a checkpoint has the size that its settings imply, before they are used to allocate anything."""
        return

    @abstractmethod
    def _start(self) -> None:
        """Begins the first episodes of a new run."""

    @abstractmethod
    def _learn(self) -> None:
        """Runs the training loop from the current state until `total_timesteps`."""

    @abstractmethod
    def policy(self) -> Policy:
        """Returns the current greedy policy, which evaluations play."""

    @abstractmethod
    def _policy_state(self) -> dict[str, Any]:
        """Returns the state that evaluation and serving need: weights, normaliser, spaces."""

    @abstractmethod
    def _trainer_state(self) -> dict[str, Any]:
        """Returns the rest of the state that training needs to continue."""

    @abstractmethod
    def _load_states(self, policy: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[int]:
        """Restores both states; returns the environments whose episode could not be replayed."""

    def _replay_shards(self) -> WriteShards | None:
        """Returns the function that writes the current replay buffer; None for an algorithm without one."""
        return None

    def _load_replay(self, checkpoint: Checkpoint) -> None:
        """Restores the replay buffer of an algorithm that has one."""
        return

    def _close(self) -> None:
        """Closes what a trainer holds outside of `_opened`."""
        return

    def _find_envs(self) -> TrainingEnvs | None:
        """Returns the training environments for callbacks and curricula; None if a trainer has no `envs`."""
        envs = getattr(self, "envs", None)
        return envs if isinstance(envs, TrainingEnvs) else None

    # The part that the frame provides.

    @property
    def num_timesteps(self) -> int:
        """Environment steps so far, summed over all environments."""
        return self.progress.num_timesteps

    def check_stop(self) -> None:
        """Raises `StopTraining` if a stop was requested."""
        if self.stop.requested:
            raise StopTraining

    def _emit(self, event: Event, metrics: Mapping[str, float]) -> None:
        if self._curriculum is not None and "rollout/episodes" in metrics:
            metrics = {**metrics, "rollout/curriculum_stage": float(self._curriculum.stage)}
        self.metrics.update(metrics)
        self.state.num_timesteps, self.state.iteration = self.num_timesteps, self.progress.iteration
        self.state.metrics = metrics
        self.callbacks.call(event, self.state)

    def count_step(self, step: VectorStep) -> None:
        """Counts a step of all environments and reports it to callbacks that override `on_step`.

        A training loop calls this method after each step, once the step is stored and the complete state is consistent.

        Raises:
            CallbackError: A callback raised.
        """
        self._count(step)
        if self._needs_steps:
            self._report_step(step)

    def _count(self, step: VectorStep) -> None:
        self.progress.num_timesteps += self.config.num_envs
        self.progress.count(step.episodes)

    def _report_step(self, step: VectorStep) -> None:
        self._reports_steps = True
        if self._curriculum is not None:
            self._curriculum.count(step.episodes)
        if self._hears_steps:
            self.state.infos = step.infos
            self._emit("on_step", {})
            self.state.infos = ()

    def _require_reports(self) -> None:
        """Checks after the first step that the loop of a custom algorithm calls `count_step`.

        Raises:
            UserError: It does not, and a callback or the curriculum needs the steps.
        """
        if self._needs_steps and not self._reports_steps and self.num_timesteps > self._first_step:
            raise UserError(
                f"{type(self).__name__} does not call count_step(step) after each step, which `on_step` of callbacks "
                f"and a curriculum need; call it instead of progress.count(step.episodes) and adding to num_timesteps"
            )

    def _log_due(self) -> bool:
        every = self.config.logging.every
        return self.num_timesteps // every > self.progress.last_log // every

    def _time_metrics(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._wall_start
        speed = (self.num_timesteps - self._first_step) / max(seconds, 1e-9)
        return {"time/steps_per_second": speed, "time/wall_seconds": seconds}
